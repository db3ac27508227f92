"""The platform's CA and the certificates it issues: one server certificate per cell, one client certificate per link,
and the operator's certificate.

Each region has its own CA for nodes, which only that region's cell holds. Agents get their certificates by joining.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.layout import Layout, Platform

if TYPE_CHECKING:
    from holdfast.identity.tokens import TokenFile

OPERATOR = "operator"


class CredentialFiles(msgspec.Struct, frozen=True):
    ca: Path
    cert: Path
    key: Path


class Credentials:
    """Paths of the certificate files. `prepare` creates missing files and keeps existing ones."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.pki

    def cell(self, name: str) -> CredentialFiles:
        return self._files(f"cell-{name}")

    def link(self, region: str) -> CredentialFiles:
        return self._files(f"link-{region}")

    def nodes(self, region: str) -> tuple[Path, Path]:
        """Certificate and key of the region's CA for nodes."""
        folder = self._folder / f"nodes-{region}"
        return folder / "ca.crt", folder / "ca.key"

    @property
    def ca(self) -> Path:
        return self._folder / "ca.crt"

    def operator(self) -> CredentialFiles:
        return self._files(OPERATOR)

    def person(self, user: str) -> CredentialFiles:
        """The certificate that `holdfast user add --certificate` issued."""
        files = self._files(f"user-{user}")
        if "/" in user or not files.cert.exists():
            text = f"user {user}: no certificate on this machine"
            advice = "holdfast kubeconfig --token TOKEN, if `holdfast user add` printed a token for this user"
            raise CommandError(text, next_step=advice)
        return files

    def _files(self, name: str) -> CredentialFiles:
        return CredentialFiles(
            ca=self._folder / "ca.crt", cert=self._folder / f"{name}.crt", key=self._folder / f"{name}.key"
        )

    def issue_drill_scheduler(self) -> CredentialFiles:
        """Issues a scheduler certificate for a drill, valid for one day."""
        from holdfast.identity.certificates import issue
        from holdfast.model.principal import CONTROLLERS

        name = "drill-scheduler"
        issue(self._folder, name, "holdfast:controller:scheduler", (CONTROLLERS,), now_s=time.time(), days=1)
        return self._files(name)

    def issue_drill_node(self, region: str, node: str) -> CredentialFiles:
        """Issues a node certificate for a drill, valid for one day."""
        from holdfast.identity.certificates import issue
        from holdfast.model.principal import NODES

        issue(self._folder, f"drill-{node}", f"holdfast:node:{region}:{node}", (NODES,), now_s=time.time(), days=1)
        return self._files(f"drill-{node}")

    def issue_drill_operator(self) -> CredentialFiles:
        """Issues the certificate of a second operator for a drill, valid for one day: approvals need two people."""
        from holdfast.identity.certificates import issue
        from holdfast.model.principal import OPERATORS

        name = "drill-approver"
        issue(self._folder, name, name, (OPERATORS,), now_s=time.time(), days=1)
        return self._files(name)

    def revoked_serials(self) -> frozenset[str]:
        from holdfast.identity.certificates import REVOKED_FILE, RevokedSerials

        return RevokedSerials(self._folder / REVOKED_FILE).all()

    def link_expires_s(self, region: str) -> float:
        """Expiry time of the certificate file of a region's link."""
        from holdfast.identity.node_certificates import validity_period

        return validity_period(self.link(region).cert.read_bytes())[1]

    def link_serial(self, region: str) -> str:
        from holdfast.identity.certificates import serial_of

        return serial_of(self._folder, f"link-{region}")

    def renew_link(self, region: str) -> str:
        """Issues a new key and certificate for a region's link and returns the serial. The old certificate stays valid
        until it is revoked."""
        from holdfast.identity.certificates import issue
        from holdfast.model.principal import REGIONS

        name = f"link-{region}"
        made = issue(self._folder, name, f"holdfast:region:{region}", (REGIONS,), now_s=time.time(), anew=True)
        return made.serial

    def revoke(self, serial: str) -> None:
        """Revokes the certificate with this serial in all cells."""
        from holdfast.identity.certificates import revoke_serial

        revoke_serial(self._folder, serial)

    def remove(self, files: CredentialFiles) -> None:
        files.cert.unlink(missing_ok=True)
        files.key.unlink(missing_ok=True)

    def prepare(self, platform: Platform) -> None:
        """Creates the CAs and all certificates of the platform. Idempotent."""
        from holdfast.identity.certificates import issue, make_ca
        from holdfast.model.principal import OPERATORS, REGIONS

        now_s = time.time()
        folder = self._folder
        make_ca(folder, now_s=now_s)
        for name, _ in platform.cells:
            issue(
                folder,
                f"cell-{name}",
                f"holdfast-cell-{name}",
                now_s=now_s,
                server=True,
                client=False,
                dns=("localhost",),
                ips=("127.0.0.1", "::1"),
            )
        for region in platform.regions:
            issue(folder, f"link-{region.name}", f"holdfast:region:{region.name}", (REGIONS,), now_s=now_s)
            make_ca(folder / f"nodes-{region.name}", now_s=now_s, common_name=f"holdfast nodes of {region.name}")
        issue(folder, OPERATOR, OPERATOR, (OPERATORS,), now_s=now_s)


def token_file(state: str) -> TokenFile:
    """The bearer tokens of the platform in this directory."""
    from holdfast.identity.tokens import TokenFile

    layout = Layout(state)
    if layout.remote:
        raise CommandError(
            f"{state}: API tokens are in files beside a platform's cells (expected a directory, found a kubeconfig)",
            next_step="--state DIR on its machine; join tokens are made from anywhere: holdfast token create --join",
            code=ExitCode.USAGE,
        )
    layout.load()
    return TokenFile(layout.tokens)
