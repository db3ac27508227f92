"""The link of one region: follows the global cell, reports to it, and runs the controllers of the link while it is up.

It ends, and with it everything that is exchanged, when one side is a life of its cell that a restore has ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.controllers.cache import Cache
from holdfast.controllers.informer import CacheChange, Informers
from holdfast.controllers.runner import Runner
from holdfast.foundation.ports import Ports
from holdfast.link import grant_sync, mirror, ordinal_report, report, restore_handshake
from holdfast.link.override_expiry import OverrideExpiry
from holdfast.link.peer_probes import PeerProbe, PeerProber
from holdfast.model import connectivity, limits, tenure
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.core import Lease
from holdfast.model.decision import Decision
from holdfast.model.election_term import Term
from holdfast.model.endpoint import Endpoint
from holdfast.model.errors import Fault
from holdfast.model.meta import Key
from holdfast.model.override import Override
from holdfast.model.quota import Grant
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.writes import Create, Update

CONFLICT = 409


class Link:
    """`there` is the global cell seen as this region; `mirrors` writes here under the link's name."""

    def __init__(
        self,
        region: str,
        *,
        there: Client,
        mirrors: Client,
        here: Informers,
        ports: Ports,
        countdown: OverrideExpiry,
        probe: PeerProbe | None = None,
    ) -> None:
        """Without a `probe` this region says nothing of the others, and is no witness. `countdown` is told of the
        global cell's clock, and says until when its overrides act here."""
        self.region = region
        self.countdown = countdown
        self.runners: dict[str, Runner] = {}
        """The controllers of the link by name, given to it by the cell. They run while the link is up."""
        self.peer = Informers(there, ports, resync_s=here.resync_s)
        self.heard_s = 0.0
        """When the last report that was taken was sent, by the wall clock; 0 before the first."""
        self._peers = PeerProber(region, probe, ports) if probe is not None else None
        self._there_client = there
        self._mirrors = mirrors
        self._here = here
        self._ports = ports
        self._heard_monotonic_s = 0.0
        """When the last call was sent that the global cell has answered: what this region's leases count from."""
        self._leases_seen_s = 0.0
        """When every lease was last looked at, by the clock that only passes."""
        self._log = structlog.get_logger().bind(region=region)
        for kind in (RecoverySlot, Binding, Term, Lease):  # read by reports; the controllers name the other kinds they read
            here.of(kind)
        for own in (Assignment, Grant, Endpoint):  # of these a region needs only its own
            self.peer.of(own, {"region": region})
        self.peer.of(Region).on_change(self._on_regions)

    async def run(self) -> None:
        """Runs until cancelled. Waits for both sides before anything is compared: an empty cache proves nothing."""
        await self.peer.start()
        try:
            await self._here.synced()
            await self._reach(heard=False)
            await self.peer.synced()
            await self._reach(heard=True)
            await self._check_lives()
            self._log.info("link_synced")
            async with asyncio.TaskGroup() as group:
                for name, runner in self.runners.items():
                    group.create_task(self._renew_limits(runner) if name == "grant-sync" else runner.run())
                group.create_task(self._beat())
                if self._peers is not None:
                    group.create_task(self._look_around(self._peers))
        finally:
            await self.peer.stop()

    async def prepare_assignment_report(self, key: Key) -> None:
        """Reads the replicas of an exclusive Assignment before its status is decided (`exclusive`)."""
        await ordinal_report.refresh_replicas(key, self.peer.cache, self._here, self._mirrors)

    async def _check_lives(self) -> None:
        """Ends the link when a side was restored and this is its former life; else remembers whom it met."""
        away, home = self.peer.cache, self._here.cache
        restore_handshake.check_incarnations(away, home, self.region)
        writes = list(restore_handshake.record_incarnation(away, home, self.region))
        try:
            if writes:
                await self._mirrors.commit(writes)
        except Fault as fault:
            self._log.info("incarnation_write_failed", reason=fault.reason, message=fault.message)

    async def _renew_limits(self, grant_sync: Runner) -> None:
        """After a restore nothing is to be spent before what was given to another meanwhile is on its way out."""
        while not restore_handshake.can_renew_grants(self.peer.cache, self._here.cache):
            await self._ports.clock.sleep(limits.LINK_FLUSH_EVERY_S)
        await grant_sync.run()

    async def _reach(self, *, heard: bool) -> None:
        """Writes down whether the global cell answers, when that has changed."""
        known = self._here.cache.get(Lease, connectivity.NAME, connectivity.NAMESPACE)
        if known is not None and connectivity.is_connected(known) is heard:
            return
        wanted = connectivity.connectivity_lease(self._ports.clock.now(), heard=heard)
        write = Create(wanted) if known is None else Update(msgspec.structs.replace(known, spec=wanted.spec))
        try:
            await self._mirrors.commit([write])
        except Fault as fault:
            self._log.info("connectivity_write_failed", reason=fault.reason, message=fault.message)

    def _on_regions(self, changes: Sequence[CacheChange[Any]]) -> None:
        """Each report that was heard tells more of the global cell's clock, and so when overrides end here."""
        there = self.peer.cache
        if self.countdown.clock.observe(there.get(Region, self.region)):
            self.runners["link"].queue.add_all(mirror.queue_key(Override, o.key) for o in there.list(Override))

    async def _beat(self) -> None:
        """The region's pulse, as regular as the clock allows."""
        unanswered = 0
        while True:
            await self._check_lives()
            now = self._ports.clock.now()
            seen = self._peers.results() if self._peers is not None else ()
            made = await self._decisions()
            fresh = await self._fresh()
            away, home = self.peer.cache, self._here.cache
            writes = list(report.region_report(away, home, self.region, now, seen, decisions=made, fresh=fresh))
            try:
                if writes:
                    self.countdown.clock.record_sent(report.report_sequence(now), self._ports.clock.monotonic())
                    committed = await self._there_client.commit(writes, brief=True)
                    unanswered = 0
                    await self._reach(heard=True)
                    await self._heard(now)
                    await self._renew_tenure(now, committed.revision)
            except Fault as fault:
                self._log.info("report_failed", reason=fault.reason, message=fault.message)
                unanswered += fault.code != CONFLICT
                if unanswered >= limits.CONNECTIVITY_FAILURES_MAX:
                    await self._reach(heard=False)
            await self._ports.clock.sleep(self._pause_s())

    async def _fresh(self) -> Cache | None:
        """What an answer to a restored global cell rests on, asked for now; most of the time nobody waits."""
        if not restore_handshake.is_restore_pending(self.peer.cache, self.region):
            return None
        asked = Cache()
        try:
            for kind in restore_handshake.HANDSHAKE_KINDS:
                fields = {"region": self.region} if kind is not Region else None
                for item in (await self._there_client.list(kind, fields=fields)).items:
                    asked.put(item)
        except Fault:
            return None
        return asked

    async def _decisions(self) -> Sequence[Decision]:
        """The region's decisions, where a guard wants them counted; most of the time nobody does."""
        if not any(r.spec.guard is not None for r in self._here.cache.list(PolicyRevision)):
            return ()
        try:
            return (await self._mirrors.list(Decision)).items
        except Fault:
            return ()

    async def _heard(self, asked_s: float) -> None:
        """The global cell has answered. Leases are looked at several times while they last, and after a silence at
        once, unless grants are still known here only as they were before it: part of them may have come back by time
        and be someone else's by now."""
        passed_s = self._ports.clock.monotonic()
        silent_s = passed_s - self._heard_monotonic_s if self.heard_s else math.inf
        if silent_s > limits.GRANT_LEASE_S and not await self._grants_are_current():
            return
        put_back = asked_s < self.heard_s
        self.heard_s, self._heard_monotonic_s = asked_s, passed_s
        due = passed_s - self._leases_seen_s > limits.GRANT_LEASE_S * grant_sync.CHECK_AFTER_FRACTION
        if put_back or due or silent_s > 2 * limits.REGION_REPORT_EVERY_S:
            self._leases_seen_s = passed_s
            self.runners["grant-sync"].resync_now()
            self.runners["grant-acknowledgement"].resync_now()

    async def _renew_tenure(self, asked_s: float, revision: int) -> None:
        """Asks which exclusive ordinals of scope Global are this region's, and keeps the answer as its tenure.

        The answer is of a moment after the asking (its revision proves it): an ordinal that it names had not been
        taken away when the tenure began to count.
        """
        held = self._here.cache.get(Lease, tenure.NAME, tenure.NAMESPACE)
        known = (*self._here.cache.list(Assignment), *self.peer.cache.list(Assignment))
        if held is None and not any(tenure.needs_tenure(a.spec.exclusive) for a in known):
            return
        there = await self._there_client.list(Assignment, fields={"region": self.region})
        if there.revision < revision:
            return
        # Asked for, as it was written a moment ago: a cache that lags would cost renewals one after the other.
        held = await self._mirrors.get(Lease, tenure.NAME, tenure.NAMESPACE)
        lease = tenure.tenure_lease(self.region, asked_s, tenure.confirmed_ordinals(list(there.items)))
        if held is None:
            await self._mirrors.commit([Create(lease)])
            return
        meta = msgspec.structs.replace(held.metadata, annotations=lease.metadata.annotations)
        await self._mirrors.commit([Update(msgspec.structs.replace(held, metadata=meta, spec=lease.spec))])

    async def _grants_are_current(self) -> bool:
        there = await self._there_client.list(Grant, fields={"region": self.region})
        known = ((g, self.peer.cache.get(Grant, g.metadata.name, g.metadata.namespace)) for g in there.items)
        return all(seen is not None and seen.spec.epoch >= grant.spec.epoch for grant, seen in known)

    async def _look_around(self, peers: PeerProber) -> None:
        while True:
            await peers.probe_all(self.peer.cache.list(Region))
            await self._ports.clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Several reports fit into the silence after which the region would count as lost."""
        known = self.peer.cache.get(Region, self.region)
        lost_after_s = known.spec.lost_after_seconds if known is not None else 0.0
        pause_s = lost_after_s / limits.REGION_REPORTS_PER_LOST_AFTER
        return min(max(pause_s, limits.REGION_REPORT_INTERVAL_MIN_S), limits.REGION_REPORT_EVERY_S)
