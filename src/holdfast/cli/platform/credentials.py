"""The platform's own certificate authority and what it signs: one server certificate per cell, one client
certificate per link and agent, and the operator's."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from holdfast.cli.platform.layout import Layout, Platform

OPERATOR = "operator"


class Files(msgspec.Struct, frozen=True):
    ca: Path
    cert: Path
    key: Path


class Credentials:
    """Names the files; `prepare` makes those that are missing and leaves the others alone."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.pki

    def cell(self, name: str) -> Files:
        return self._files(f"cell-{name}")

    def link(self, region: str) -> Files:
        return self._files(f"link-{region}")

    def agent(self, region: str, node: str) -> Files:
        return self._files(f"agent-{region}-{node}")

    def operator(self) -> Files:
        return self._files(OPERATOR)

    def _files(self, name: str) -> Files:
        return Files(ca=self._folder / "ca.crt", cert=self._folder / f"{name}.crt", key=self._folder / f"{name}.key")

    def prepare(self, platform: Platform) -> None:
        """Makes the authority and every certificate the platform needs. Safe to repeat."""
        from holdfast.gate.certificates import issue, make_ca
        from holdfast.gate.principal import NODES, OPERATORS, REGIONS

        now_s = time.time()
        folder = self._folder
        make_ca(folder, now_s=now_s)
        for name, _ in platform.cells:
            issue(folder, f"cell-{name}", f"holdfast-cell-{name}", now_s=now_s, server=True, client=False,
                  dns=("localhost",), ips=("127.0.0.1", "::1"))  # fmt: skip
        for region in platform.regions:
            issue(folder, f"link-{region.name}", f"holdfast:region:{region.name}", (REGIONS,), now_s=now_s)
            for agent in region.agents:
                user = f"holdfast:node:{region.name}:{agent.name}"
                issue(folder, f"agent-{region.name}-{agent.name}", user, (NODES,), now_s=now_s)
        issue(folder, OPERATOR, OPERATOR, (OPERATORS,), now_s=now_s)
