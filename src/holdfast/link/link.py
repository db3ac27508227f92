"""The link of one region: follows both sides and keeps couriers busy in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from holdfast.client.contract import Client
from holdfast.link import grant_sync, mirror, report
from holdfast.link.courier import Courier
from holdfast.link.peers import PeerProbe, Peers
from holdfast.model import limits
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.endpoint import Endpoint
from holdfast.model.errors import Fault
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.hold import Hold
from holdfast.model.meta import Key
from holdfast.model.node import Node
from holdfast.model.quota import Grant
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.term import Term
from holdfast.runtime.informer import Changed, Informers
from holdfast.runtime.ports import Ports

_HERE: tuple[type[Any], ...] = (
    *mirror.MIRRORED, GrantCopy, Node, Hold, Binding, Replica, SchedulingRequest, Endpoint, Term,
)  # fmt: skip


class Link:
    """`there` is the global cell seen as this region; `mirrors` and `grants` write here under their own names."""

    def __init__(
        self,
        region: str,
        *,
        there: Client,
        mirrors: Client,
        grants: Client,
        here: Informers,
        ports: Ports,
        probe: PeerProbe | None = None,
    ) -> None:
        """Without a `probe` this region says nothing of the others, and is no witness."""
        self.region = region
        self._peers = Peers(region, probe, ports) if probe is not None else None
        self._there_client = there
        self._here = here
        self._ports = ports
        self._there = Informers(there, ports)
        now = ports.clock.now
        away, home = self._there.cache, here.cache
        self._copying: Courier[mirror.MirrorKey] = Courier(
            "mirror", mirrors, lambda key: mirror.mirror_writes(key, away, home), ports
        )
        self._limits: Courier[Key] = Courier(
            "grants", grants, lambda key: grant_sync.copy_writes(key, away, home, region, now()), ports
        )
        self._acks: Courier[Key] = Courier(
            "acknowledgements", there, lambda key: grant_sync.acknowledgement(key, away, home, region, now()), ports
        )
        self._progress: Courier[Key] = Courier(
            "progress", there, lambda key: report.assignment_writes(key, away, home), ports
        )
        self._endpoints: Courier[Key] = Courier(
            "endpoints", there, lambda key: report.endpoint_writes(key, away, home), ports
        )
        self._log = structlog.get_logger().bind(region=region)

    async def run(self) -> None:
        """Runs until cancelled. Waits for both sides before anything is compared: an empty cache proves nothing."""
        for kind in _HERE:
            self._here.of(kind)
        own = {"region": self.region}
        for kind in mirror.MIRRORED:
            self._there.of(kind, own if kind in mirror.FIELDS_OF_REGION else None)
        self._there.of(Grant, own)
        self._there.of(Endpoint, own)
        await self._there.start()
        try:
            await self._here.synced()
            await self._there.synced()
            self._log.info("link_synced")
            self._wire()
            async with asyncio.TaskGroup() as group:
                for courier in (self._copying, self._limits, self._acks, self._progress, self._endpoints):
                    group.create_task(courier.run())
                group.create_task(self._compare_all())
                group.create_task(self._beat())
                if self._peers is not None:
                    group.create_task(self._look_around(self._peers))
        finally:
            await self._there.stop()

    def _wire(self) -> None:
        for kind in mirror.MIRRORED:
            for side in (self._there, self._here):
                side.of(kind).on_change(lambda changes: self._copying.mark(mirror.keys_of(changes)))
        self._there.of(Grant).on_change(self._on_grants)
        self._here.of(GrantCopy).on_change(self._on_copies)
        self._there.of(Assignment).on_change(self._on_assignments)
        self._here.of(Assignment).on_change(self._on_assignments)
        self._here.of(Replica).on_change(self._on_parts)
        self._here.of(SchedulingRequest).on_change(self._on_parts)
        self._there.of(Endpoint).on_change(self._on_endpoints)
        self._here.of(Endpoint).on_change(self._on_endpoints)

    def _on_grants(self, changes: Sequence[Changed[Any]]) -> None:
        found = [Key(g.metadata.namespace, grant_sync.copy_name(g.spec.grant_class)) for g in _items(changes)]
        self._limits.mark(found)
        self._acks.mark(found)

    def _on_copies(self, changes: Sequence[Changed[Any]]) -> None:
        found = [c.key for c in _items(changes)]
        self._limits.mark(found)
        self._acks.mark(found)

    def _on_assignments(self, changes: Sequence[Changed[Any]]) -> None:
        self._progress.mark(a.key for a in _items(changes))

    def _on_parts(self, changes: Sequence[Changed[Any]]) -> None:
        self._progress.mark(Key(r.metadata.namespace, r.spec.assignment) for r in _items(changes))

    def _on_endpoints(self, changes: Sequence[Changed[Any]]) -> None:
        self._endpoints.mark(e.key for e in _items(changes))

    async def _compare_all(self) -> None:
        """Everything, from time to time: what an event or a delivery missed is found here."""
        while True:
            away, home = self._there.cache, self._here.cache
            self._copying.mark(mirror.all_keys(away, home))
            self._limits.mark(grant_sync.keys(away, home))
            self._acks.mark(grant_sync.keys(away, home))
            self._progress.mark(a.key for a in away.list(Assignment))
            self._endpoints.mark(e.key for e in (*away.list(Endpoint), *home.list(Endpoint)))
            await self._ports.clock.sleep(limits.RESYNC_S)

    async def _beat(self) -> None:
        """The region's pulse, as regular as the clock allows."""
        while True:
            now = self._ports.clock.now()
            seen = self._peers.seen() if self._peers is not None else ()
            writes = list(report.region_report(self._there.cache, self._here.cache, self.region, now, seen))
            try:
                if writes:
                    await self._there_client.commit(writes)
            except Fault as fault:
                self._log.info("report_failed", reason=fault.reason, message=fault.message)
            await self._ports.clock.sleep(self._pause_s())

    async def _look_around(self, peers: Peers) -> None:
        while True:
            await peers.look(self._there.cache.list(Region))
            await self._ports.clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Several reports fit into the silence after which the region would count as lost."""
        known = self._there.cache.get(Region, self.region)
        lost_after_s = known.spec.lost_after_seconds if known is not None else 0.0
        pause_s = lost_after_s / limits.REGION_REPORTS_PER_LOSS
        return min(max(pause_s, limits.REGION_REPORT_LEAST_S), limits.REGION_REPORT_EVERY_S)


def _items(changes: Sequence[Changed[Any]]) -> list[Any]:
    return [change.new if change.new is not None else change.old for change in changes]
