"""A new CA for the platform, without downtime, in steps that can be stopped and continued.

1. `trust`: the new CA is made, and every cell and agent trusts both. The old one still signs.
2. `sign`: the new CA signs. Cells renew their certificates by themselves.
3. `drop`: the old CA is no longer trusted.

The stage is read from the files, so that a run after a kill continues where the last one stopped. A step begins only
after every region has finished the one before. Runs on the machine of the global cell, which holds the CA's key.
"""

from __future__ import annotations

import os
import shutil
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from holdfast.client import cell_access
from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.cell_certificates import CellCertificateAuthority, bundle_hashes, issued_by
from holdfast.identity.certificates import make_ca, write_public
from holdfast.identity.shared_material import EPOCH_FILE, read_epoch
from holdfast.install.cells import write_operator_kubeconfig
from holdfast.install.places import Places
from holdfast.model.join import TrustBundle

STAGES = ("trust", "sign", "drop")
# Time for all regions to finish a step. After that the command stops; run again, it continues.
STEP_TIMEOUT_S = 300.0
# Time for agents to fetch the new CA from their region: three times their interval.
AGENT_SETTLE_S = 45.0
POLL_EVERY_S = 1.0

Say = Callable[[str], None]


class CaState(msgspec.Struct, frozen=True, rename="camel"):
    """`signer` and `trusted` are SHA-256 of CA certificates. `step` is the last step done of a rotation, or empty."""

    signer: str
    trusted: tuple[str, ...]
    expires_at: str = ""
    step: str = ""


def ca_state(places: Places) -> CaState:
    from holdfast.identity.node_certificates import validity_period
    from holdfast.model.times import seconds_text

    pki = _pki(places)
    authority = CellCertificateAuthority(pki / "ca.crt", pki / "ca.key")
    known = bundle_hashes(authority.bundle.encode())
    step = "" if len(known) == 1 else "trust" if list(known).index(authority.fingerprint) == 0 else "sign"
    ends = seconds_text(validity_period(known[authority.fingerprint].encode())[1])
    return CaState(signer=authority.fingerprint, trusted=tuple(known), expires_at=ends, step=step)


def rotate(places: Places, say: Say, *, until: str, skip: frozenset[str], settle_s: float) -> CaState:
    """Does the steps that are left, up to `until`. `skip` names regions that are not waited for."""
    pki = _pki(places)
    rotation = _Rotation(places, say, skip)
    if ca_state(places).step == "":
        _begin(pki, say)
    if ca_state(places).step == "trust":
        new = ca_state(places).trusted[1]
        rotation.wait_for_servers("trusts the new CA", lambda api, url: new in _trusted(api))
        rotation.wait("trusts the new CA", lambda api, item: new in _trusted(api))
        rotation.wait_for_nodes(settle_s)
        if until == "trust":
            return ca_state(places)
        if not (pki / "next" / "ca.key").exists():
            raise CommandError(
                f"{pki / 'next' / 'ca.key'}: not found; the rotation was begun on another server of the global cell",
                next_step="continue it there, or wait until that server is back",
                code=ExitCode.CONFLICT,
            )
        _replace_key(pki)
        say("sign: the new CA signs")
    rotation.rewrite_kubeconfig()
    state = ca_state(places)
    rotation.wait_for_own_certificate(state.signer)
    rotation.wait_for_servers("uses certificates of the new CA", lambda api, url: _serves(url, pki, state.signer))
    rotation.wait_for_records(state.signer)
    rotation.wait("uses certificates of the new CA", lambda api, item: _renewed(api, item, pki, state.signer))
    if until == "sign":
        return state
    write_public(pki / "ca.crt", bundle_hashes((pki / "ca.crt").read_bytes())[state.signer].encode())
    _keep_owner(pki / "ca.crt")
    _raise_epoch(pki)
    rotation.rewrite_kubeconfig()
    rotation.wait_for_servers("has dropped the old CA", lambda api, url: _trusted(api) == {state.signer})
    rotation.wait("has dropped the old CA", lambda api, item: _trusted(api) == {state.signer})
    say("drop: the old CA is no longer trusted")
    return ca_state(places)


def _begin(pki: Path, say: Say) -> None:
    """Makes the new CA aside, then adds it to the trusted ones. The new key waits in `next/`."""
    made = make_ca(pki / "next", now_s=time.time(), common_name=f"holdfast {time.strftime('%Y-%m-%d %H:%M:%S')}")
    write_public(pki / "ca.crt", (pki / "ca.crt").read_bytes() + made.certificate.read_bytes())
    for path in (pki / "next", made.certificate, made.key, pki / "ca.crt"):
        _keep_owner(path)
    _raise_epoch(pki)
    say("trust: a new CA is made; cells and agents learn to trust it")


def _replace_key(pki: Path) -> None:
    """One rename decides which CA signs. The certificates of both are in `ca.crt`."""
    os.replace(pki / "next" / "ca.key", pki / "ca.key")
    shutil.rmtree(pki / "next", ignore_errors=True)
    _raise_epoch(pki)


def _raise_epoch(pki: Path) -> None:
    """The other servers of the global cell then take the CA of this one."""
    write_public(pki / EPOCH_FILE, str(read_epoch(pki) + 1).encode())
    _keep_owner(pki / EPOCH_FILE)


def _keep_owner(path: Path) -> None:
    """The service may run as another user than this command."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def _pki(places: Places) -> Path:
    pki = places.pki("global")
    if not (pki / "ca.key").exists():
        raise CommandError(
            f"{pki / 'ca.key'}: not found; the CA's key is on the machine of the global cell",
            next_step="run the command there, or add --state DIR",
            code=ExitCode.CONFLICT,
        )
    return pki


class _Rotation:
    """The waiting between two steps."""

    def __init__(self, places: Places, say: Say, skip: frozenset[str]) -> None:
        self._places = places
        self._say = say
        self._skip = skip

    def rewrite_kubeconfig(self) -> None:
        pki, held = self._places.pki("global"), self._places.record("global")
        authority = CellCertificateAuthority(pki / "ca.crt", pki / "ca.key")
        url = held.advertise if held is not None else ""
        write_operator_kubeconfig(self._places, authority, url, others=self._global_urls())
        _keep_owner(pki / "operator.pem")

    def _servers(self) -> list[tuple[str, str, str]]:
        """Cell, URL and issuer of each server that is not revoked."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while True:
            api = cell_access.access_of(self._places.kubeconfig, cell_access.GLOBAL).api(cell_access.GLOBAL)
            try:
                return [
                    (item["spec"]["cell"], item["spec"]["url"], (item.get("status") or {}).get("issuer", ""))
                    for item in api.list("servers")
                    if not item["spec"].get("revoked")
                ]
            except CommandError:
                if time.monotonic() >= deadline:
                    raise
            finally:
                api.close()
            time.sleep(POLL_EVERY_S)

    def _global_urls(self) -> list[str]:
        return [url for cell, url, _ in self._servers() if cell == cell_access.GLOBAL]

    def wait_for_records(self, signer: str) -> None:
        """Polls until every server of every cell has all its certificates from the new CA."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while True:
            left = [url for cell, url, issuer in self._servers() if issuer != signer and cell not in self._skip]
            if not left:
                return
            self._check_deadline(deadline, left, "uses certificates of the new CA")
            time.sleep(POLL_EVERY_S)

    def _check_deadline(self, deadline: float, left: list[str], what: str) -> None:
        if time.monotonic() >= deadline:
            raise CommandError(
                f"rotation of the CA: servers {', '.join(left)}: expected that each {what}, and it does not yet",
                next_step="bring them back, or holdfast server revoke NAME; then run the command again",
                code=ExitCode.TIMED_OUT,
            )

    def wait_for_servers(self, what: str, done: Callable[[CellApi, str], bool]) -> None:
        """Polls the servers of the global cell, which take each step from this one."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while True:
            left = [url for url in self._global_urls() if not self._is_done(url, done)]
            if not left:
                return
            self._check_deadline(deadline, left, what)
            time.sleep(POLL_EVERY_S)

    def _is_done(self, url: str, done: Callable[[CellApi, str], bool]) -> bool:
        known = cell_access.access_of(self._places.kubeconfig, cell_access.GLOBAL)
        api = msgspec.structs.replace(known, url=url, others=()).api(cell_access.GLOBAL)
        try:
            return done(api, url)
        except CommandError:
            return False
        finally:
            api.close()

    def wait(self, what: str, done: Callable[[CellApi, dict[str, Any]], bool]) -> None:
        """Polls every region. Raises with the regions that have not finished when the time is over."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while True:
            left = [name for name, finished in self._each_region(done) if not finished and name not in self._skip]
            if not left:
                self._say(f"every region {what}")
                return
            if time.monotonic() >= deadline:
                raise CommandError(
                    f"rotation of the CA: regions {', '.join(left)}: expected that each {what}, and it does not yet",
                    next_step="bring them back and run the command again; or --skip REGION, which must then join again",
                    code=ExitCode.TIMED_OUT,
                )
            time.sleep(POLL_EVERY_S)

    def _each_region(self, done: Callable[[CellApi, dict[str, Any]], bool]) -> list[tuple[str, bool]]:
        kubeconfig = self._places.kubeconfig
        found: list[tuple[str, bool]] = []
        for item in self._region_objects():
            name, endpoint = item["metadata"]["name"], cell_access.region_url(item["spec"])
            if not endpoint:
                continue
            api = cell_access.access_of(kubeconfig, name, endpoint).api(name)
            try:
                found.append((name, done(api, item)))
            except CommandError:
                found.append((name, False))
            finally:
                api.close()
        return found

    def _region_objects(self) -> list[dict[str, Any]]:
        """Retries for a while: the global cell's own certificate changes meanwhile."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while True:
            try:
                return cell_access.region_objects(self._places.kubeconfig)
            except CommandError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_EVERY_S)

    def wait_for_own_certificate(self, signer: str) -> None:
        """The global cell renews its own certificate. Old and new are both trusted meanwhile."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        pki = self._places.pki("global")
        while not issued_by((pki / "ca.crt").read_bytes(), signer, (pki / "server.pem").read_bytes()):
            if time.monotonic() >= deadline:
                raise CommandError(
                    "global cell: it has not renewed its certificate", next_step="holdfast doctor; then run again"
                )
            time.sleep(POLL_EVERY_S)

    def wait_for_nodes(self, settle_s: float) -> None:
        """Agents ask their region for the CA. A node that is away must join again after the rotation."""
        away = [
            f"{name} ({region})"
            for region, nodes in self._nodes()
            for name, contact in nodes
            if contact != "Live" and region not in self._skip
        ]
        if away:
            raise CommandError(
                f"rotation of the CA: nodes without contact: {', '.join(away[:10])}",
                next_step="bring them back or delete them, then run again; or --skip their region",
                code=ExitCode.CONFLICT,
            )
        self._say(f"waiting {settle_s:g} s for agents to take the new CA")
        time.sleep(settle_s)

    def _nodes(self) -> list[tuple[str, list[tuple[str, str]]]]:
        found: list[tuple[str, list[tuple[str, str]]]] = []
        for item in self._region_objects():
            name, endpoint = item["metadata"]["name"], cell_access.region_url(item["spec"])
            if endpoint and name not in self._skip:
                listed = cell_access.access_of(self._places.kubeconfig, name, endpoint).api(name).list("nodes")
                states = [(n["metadata"]["name"], (n["status"].get("contact") or {}).get("state", "")) for n in listed]
                found.append((name, states))
        return found


def _trusted(api: CellApi) -> set[str]:
    return set(bundle_hashes(msgspec.convert(api.get("/join/v1/ca"), TrustBundle).ca.encode()))


def _renewed(api: CellApi, item: dict[str, Any], pki: Path, signer: str) -> bool:
    """Whether the region's link and server certificates are of the new CA."""
    if ((item.get("status") or {}).get("certificate") or {}).get("issuer") != signer:
        return False
    return all(_serves(url, pki, signer) for url in api.urls)


def _serves(url: str, pki: Path, signer: str) -> bool:
    """Whether the server at this URL shows a certificate of the CA."""
    parts = urlsplit(url)
    try:
        shown = ssl.get_server_certificate((parts.hostname or "", parts.port or 443), timeout=5.0)
    except OSError:
        return False
    return issued_by((pki / "ca.crt").read_bytes(), signer, shown.encode())
