"""Serving addresses by workload and region, from Endpoints and Regions, and the order in which regions answer.

Two sources report Endpoints: the global cell all of them, the own region its own. The own region's report replaces the
global cell's copy of it, because it is newer and also arrives while the global cell is down.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.foundation.ports import Clock
from holdfast.foundation.region_contact import RegionContact
from holdfast.model.endpoint import Address, Endpoint
from holdfast.model.region import PeerProbeResult, Region

UNKNOWN_LATENCY_MS = 1e9
"""Regions whose latency nobody measured come last, by name."""

WorkloadKey = tuple[str, str]
"""Tenant and workload."""


class AddressTable:
    """`region` is where this name server runs; empty: no region is nearer than another."""

    def __init__(self, region: str, clock: Clock) -> None:
        self._region = region
        self._endpoints: dict[WorkloadKey, dict[str, Endpoint]] = {}
        self._regions: dict[str, Region] = {}
        self._contact = RegionContact(self._regions.values, clock)
        self._own: dict[WorkloadKey, Endpoint] | None = None

    def put_region(self, region: Region) -> None:
        self._regions[region.metadata.name] = region

    def remove_region(self, name: str) -> None:
        self._regions.pop(name, None)

    def put(self, endpoint: Endpoint) -> None:
        """An Endpoint as the global cell has it."""
        self._endpoints.setdefault(_key(endpoint), {})[endpoint.spec.region] = endpoint

    def has_all(self, regions: Iterable[Region], endpoints: Iterable[Endpoint]) -> bool:
        """Whether these Regions and Endpoints of the global cell, and an answer of the own region, are in the table."""
        known = all(e.spec.region in self._endpoints.get(_key(e), {}) for e in endpoints)
        own = not self._region or self._own is not None
        return known and own and all(region.metadata.name in self._regions for region in regions)

    def remove(self, endpoint: Endpoint) -> None:
        of_workload = self._endpoints.get(_key(endpoint), {})
        of_workload.pop(endpoint.spec.region, None)
        if not of_workload:
            self._endpoints.pop(_key(endpoint), None)

    def replace_own(self, endpoints: Iterable[Endpoint] | None) -> None:
        """All Endpoints as the own region has them; None: it does not answer, and the global cell's copies count."""
        if endpoints is None:
            self._own = None
            return
        # A list may be older than a change that the watch has delivered: it must not bring an address back.
        before = self._own or {}
        self._own = {_key(new): _newer(new, before.get(_key(new))) for new in endpoints}

    def put_own(self, endpoint: Endpoint) -> None:
        """One changed Endpoint of the own region. Ignored while the own region does not answer."""
        if self._own is not None:
            self._own[_key(endpoint)] = _newer(endpoint, self._own.get(_key(endpoint)))

    def remove_own(self, endpoint: Endpoint) -> None:
        """One deleted Endpoint of the own region. Its name exists until the next list."""
        emptied = msgspec.structs.replace(endpoint.spec, addresses=())
        self.put_own(msgspec.structs.replace(endpoint, spec=emptied))

    def workloads(self) -> list[WorkloadKey]:
        """Every workload whose name exists, sorted."""
        return sorted({*self._endpoints, *(self._own or {})})

    def is_known(self, tenant: str, workload: str) -> bool:
        """Whether any region ever served the workload, so that its name exists."""
        key = (tenant, workload)
        return key in self._endpoints or key in (self._own or {})

    def serving(self, tenant: str, workload: str, region: str = "") -> list[tuple[str, tuple[Address, ...]]]:
        """Regions with serving addresses, the nearest first; only `region` if it is given."""
        key = (tenant, workload)
        found = dict(self._endpoints.get(key, {}))
        if self._own is not None:
            found.pop(self._region, None)
            if key in self._own:
                found[self._region] = self._own[key]
        listed = [
            (name, endpoint.spec.addresses)
            for name, endpoint in found.items()
            if endpoint.spec.addresses and region in ("", name) and not self._is_withdrawn(name, endpoint)
        ]
        return sorted(listed, key=lambda pair: (self._distance_ms(pair[0]), pair[0]))

    def _is_withdrawn(self, region: str, endpoint: Endpoint) -> bool:
        if self._own is not None and region == self._region:
            return False  # it answers this name server, whatever the global cell hears
        return self._contact.has_expired(endpoint, self._regions.get(region))

    def _distance_ms(self, region: str) -> float:
        if region == self._region:
            return 0.0
        measured = [
            probe.latency_ms
            for here, there in ((self._region, region), (region, self._region))
            for probe in _probes(self._regions.get(here))
            if probe.region == there and probe.reachable and probe.latency_ms > 0
        ]
        return min(measured, default=UNKNOWN_LATENCY_MS)


def _probes(region: Region | None) -> tuple[PeerProbeResult, ...]:
    return region.status.report.peers if region is not None and region.status.report is not None else ()


def _newer(endpoint: Endpoint, known: Endpoint | None) -> Endpoint:
    """The later of two states of one Endpoint; the first if they are equally old."""
    return known if known is not None and known.uid == endpoint.uid and known.revision > endpoint.revision else endpoint


def _key(endpoint: Endpoint) -> WorkloadKey:
    return endpoint.metadata.namespace, endpoint.spec.workload
