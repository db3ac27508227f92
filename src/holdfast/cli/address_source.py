"""The serving addresses of a workload: the global cell's; while it does not answer, those that each region lists for
itself. A region that does not answer either keeps the addresses that were read last, as nobody can say that they are
wrong.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout

Address = dict[str, Any]
CATCH_UP_S = 10.0
"""After an outage the global cell's list is as old as the outage, until the regions have reported again."""
_OVERLOADED = (429, 503, 504)


class AddressSource:
    def __init__(self, global_api: CellApi, regions: Mapping[str, CellApi]) -> None:
        self._global = global_api
        self._regions = regions
        self._last: dict[str, list[Address]] = {}
        """The addresses by region, as they were read last."""
        self._outage_ended_s: float | None = None
        """Monotonic time at which the global cell answered again; None if it did not fail before."""
        self.notice = ""
        """Says that the addresses are not the global cell's."""

    @classmethod
    def of_platform(cls, layout: Layout) -> AddressSource:
        platform = layout.load()
        cells = {name: connect_cell(layout, platform, name) for name, _ in platform.cells}
        return cls(cells.pop("global"), cells)

    def read(self, tenant: str, name: str) -> list[Address]:
        """The addresses by region and replica."""
        self.notice = ""
        try:
            found = _addresses(self._global, tenant, name)
        except CommandError as stop:
            if not _is_outage(stop):
                raise
            self._outage_ended_s = time.monotonic()
            found = self._read_regions(tenant, name, stop)
        else:
            if self._outage_ended_s is not None and time.monotonic() - self._outage_ended_s < CATCH_UP_S:
                self._last = self._by_region(found)
                found = self._read_regions(tenant, name)
        self._last = self._by_region(found)
        return sorted(found, key=lambda address: (address["region"], address.get("replica", "")))

    def read_or_none(self, tenant: str, name: str) -> list[Address] | None:
        """As `read`; None while no cell answers, so that a proxy keeps its current configuration."""
        try:
            return self.read(tenant, name)
        except CommandError as stop:
            if not _is_outage(stop):
                raise
            return None

    def is_known(self, tenant: str, name: str) -> bool:
        """Whether the workload exists. Without the global cell nobody can say that it does not."""
        return bool(self.notice) or any(w["metadata"]["name"] == name for w in self._global.list("workloads", tenant))

    def _by_region(self, found: list[Address]) -> dict[str, list[Address]]:
        return {region: [a for a in found if a["region"] == region] for region in self._regions}

    def _read_regions(self, tenant: str, name: str, outage: CommandError | None = None) -> list[Address]:
        found: list[Address] = []
        silent: list[str] = []
        for region, api in sorted(self._regions.items()):
            try:
                found += [a for a in _addresses(api, tenant, name) if a["region"] == region]
            except CommandError:
                silent.append(region)
                found += self._last.get(region, [])
        if outage is not None:
            if len(silent) == len(self._regions):
                raise outage
            missing = f"; {', '.join(silent)} did not answer" if silent else ""
            self.notice = f"{outage.message}; these are the addresses that the regions list{missing}"
        return found


def _is_outage(stop: CommandError) -> bool:
    return stop.code is ExitCode.UNREACHABLE or getattr(stop, "status", 0) in _OVERLOADED


def _addresses(api: CellApi, tenant: str, name: str) -> list[Address]:
    """What one cell lists. It omits addresses of regions that are out of contact."""
    found: list[Address] = api.get(f"/endpoints/{quote(tenant)}/{quote(name)}")["workloads"].get(name, [])
    return found
