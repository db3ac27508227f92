"""The link of one region: follows both sides and keeps couriers busy in both directions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.fleet import rejoin
from holdfast.flow.retreat import over_quota, preempt
from holdfast.link import answering, break_glass, grant_sync, mirror, report
from holdfast.link.countdown import Countdown
from holdfast.link.courier import Courier
from holdfast.link.exclusive import see_ordinals
from holdfast.link.peers import PeerProbe, Peers
from holdfast.model import limits, reach, tenure
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, Reservation
from holdfast.model.core import Lease
from holdfast.model.decision import Decision
from holdfast.model.endpoint import Endpoint
from holdfast.model.errors import Fault
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.hold import Hold
from holdfast.model.meta import Key
from holdfast.model.node import Node
from holdfast.model.override import Override
from holdfast.model.quota import Grant
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.term import Term
from holdfast.model.writes import Create, Update
from holdfast.runtime.cache import Cache
from holdfast.runtime.informer import Changed, Informers
from holdfast.runtime.ports import Ports

_HERE: tuple[type[Any], ...] = (
    *mirror.MIRRORED, GrantCopy, Node, Hold, Binding, Reservation, Replica, SchedulingRequest, Endpoint, Term, Lease,
)  # fmt: skip
CONFLICT = 409


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
        countdown: Countdown,
        probe: PeerProbe | None = None,
    ) -> None:
        """Without a `probe` this region says nothing of the others, and is no witness. `countdown` is told of the
        global cell's clock, and says until when its overrides act here."""
        self.region = region
        self._countdown = countdown
        self._peers = Peers(region, probe, ports) if probe is not None else None
        self._there_client = there
        self._mirrors = mirrors
        self._here = here
        self._ports = ports
        self._there = Informers(there, ports, resync_s=here.resync_s)
        self._heard_s = 0.0
        """When the last report that was taken was sent, by the wall clock; 0 before the first."""
        self._heard_monotonic_s = 0.0
        """When the last call was sent that the global cell has answered: what this region's leases count from."""
        self._leases_seen_s = 0.0
        """When every lease was last looked at, by the clock that only passes."""
        now = ports.clock.now
        away, home = self._there.cache, here.cache
        self._copying: Courier[mirror.MirrorKey] = Courier(
            "mirror",
            mirrors,
            lambda key: mirror.mirror_writes(key, away, home, now(), region=region, timed=countdown.copied),
            ports,
        )
        self._limits: Courier[Key] = Courier(
            "grants",
            grants,
            lambda key: grant_sync.copy_writes(key, away, home, region, self._heard_s, ends_s=countdown.here_s),
            ports,
        )
        self._acks: Courier[Key] = Courier(
            "acknowledgements", there, lambda key: grant_sync.acknowledgement(key, away, home, region, now()), ports
        )
        self._progress: Courier[Key] = Courier(
            "progress",
            there,
            lambda key: report.assignment_writes(key, away, home),
            ports,
            before=lambda key: see_ordinals(key, away, here, mirrors),
        )
        self._endpoints: Courier[Key] = Courier(
            "endpoints", there, lambda key: report.endpoint_writes(key, away, home), ports
        )
        self._given: Courier[Key] = Courier(
            "break-glass", there, lambda key: break_glass.record_writes(key, away, home, region, now()), ports
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
            await self._reach(heard=False)
            await self._there.synced()
            await self._reach(heard=True)
            await self._check_lives()
            self._log.info("link_synced")
            self._wire()
            async with asyncio.TaskGroup() as group:
                for courier in (self._copying, self._acks, self._progress, self._endpoints, self._given):
                    group.create_task(courier.run())
                group.create_task(self._renew_limits())
                group.create_task(self._compare_all())
                group.create_task(self._beat())
                if self._peers is not None:
                    group.create_task(self._look_around(self._peers))
        finally:
            await self._there.stop()

    async def _check_lives(self) -> None:
        """Ends the link when a side was restored and this is its former life; else remembers whom it met."""
        away, home = self._there.cache, self._here.cache
        answering.check_lives(away, home, self.region)
        writes = list(answering.remember(away, home, self.region))
        try:
            if writes:
                await self._mirrors.commit(writes)
        except Fault as fault:
            self._log.info("life_unremembered", reason=fault.reason, message=fault.message)

    async def _renew_limits(self) -> None:
        """After a restore nothing is to be spent before what was given to another meanwhile is on its way out."""
        while not answering.may_spend(self._there.cache, self._here.cache):
            await self._ports.clock.sleep(limits.LINK_FLUSH_EVERY_S)
        await self._limits.run()

    async def _reach(self, *, heard: bool) -> None:
        """Writes down whether the global cell answers, when that has changed."""
        known = self._here.cache.get(Lease, reach.NAME, reach.NAMESPACE)
        if known is not None and reach.is_heard(known) is heard:
            return
        wanted = reach.reach_lease(self._ports.clock.now(), heard=heard)
        write = Create(wanted) if known is None else Update(msgspec.structs.replace(known, spec=wanted.spec))
        try:
            await self._mirrors.commit([write])
        except Fault as fault:
            self._log.info("reach_unwritten", reason=fault.reason, message=fault.message)

    def _wire(self) -> None:
        for kind in mirror.MIRRORED:
            for side in (self._there, self._here):
                side.of(kind).on_change(lambda changes: self._copying.mark(mirror.keys_of(changes)))
        self._there.of(Region).on_change(self._on_regions)
        self._there.of(Grant).on_change(self._on_grants)
        self._here.of(GrantCopy).on_change(self._on_copies)
        self._there.of(Assignment).on_change(self._on_assignments)
        self._here.of(Assignment).on_change(self._on_assignments)
        self._here.of(Replica).on_change(self._on_parts)
        self._here.of(SchedulingRequest).on_change(self._on_parts)
        self._here.of(Node).on_change(self._on_nodes)
        self._here.of(Reservation).on_change(self._on_nominations)
        for side in (self._there, self._here):
            side.of(Override).on_change(lambda changes: self._given.mark(o.key for o in _items(changes)))
        self._there.of(Endpoint).on_change(self._on_endpoints)
        self._here.of(Endpoint).on_change(self._on_endpoints)

    def _on_regions(self, changes: Sequence[Changed[Any]]) -> None:
        """What was held back until the last region had answered a restored global cell can be taken on now."""
        away, home = self._there.cache, self._here.cache
        if self._countdown.clock.learn(away.get(Region, self.region)):
            self._copying.mark((Override, o.key) for o in away.list(Override))
        heard = [c for c in changes if c.old is not None and c.new is not None and not rejoin.has_answered(c.old)]
        if heard and not rejoin.unheard(away, self._ports.clock.now()):
            self._copying.mark(key for key in mirror.all_keys(away, home) if key[0] is Assignment)

    def _on_grants(self, changes: Sequence[Changed[Any]]) -> None:
        found = [Key(g.metadata.namespace, grant_sync.copy_name(g.spec.grant_class)) for g in _items(changes)]
        self._limits.mark(found)
        self._acks.mark(found)

    def _on_copies(self, changes: Sequence[Changed[Any]]) -> None:
        found = [c.key for c in _items(changes)]
        self._limits.mark(found)
        self._acks.mark(found)
        home = self._here.cache
        for tenant in sorted({key.namespace for key in found}):
            if over_quota.excess_of(home.list(GrantCopy, tenant)):  # some must leave, within their disruption budgets
                self._progress.mark(a.key for a in home.list(Assignment, tenant))

    def _on_assignments(self, changes: Sequence[Changed[Any]]) -> None:
        self._progress.mark(a.key for a in _items(changes))

    def _on_parts(self, changes: Sequence[Changed[Any]]) -> None:
        self._progress.mark(Key(r.metadata.namespace, r.spec.assignment) for r in _items(changes))

    def _on_nodes(self, changes: Sequence[Changed[Any]]) -> None:
        """A drain may be held back by a budget that other regions have a part of: they should hear of it."""
        for change in changes:
            if change.new is not None and change.old is not None and change.new.spec.drain != change.old.spec.drain:
                there = self._here.cache.by(Replica, "node", change.new.metadata.name)
                self._progress.mark(Key(r.metadata.namespace, r.spec.assignment) for r in there)

    def _on_nominations(self, changes: Sequence[Changed[Any]]) -> None:
        """So may work that is to make way for someone stronger."""
        for item in _items(changes):
            if item.spec.victims:
                found = preempt.victims_of(item, self._here.cache)
                self._progress.mark(Key(r.metadata.namespace, r.spec.assignment) for r in found)

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
            self._given.mark(o.key for o in home.list(Override))
            self._endpoints.mark(e.key for e in (*away.list(Endpoint), *home.list(Endpoint)))
            await self._ports.clock.sleep(self._here.resync_s)

    async def _beat(self) -> None:
        """The region's pulse, as regular as the clock allows."""
        unanswered = 0
        while True:
            await self._check_lives()
            now = self._ports.clock.now()
            seen = self._peers.seen() if self._peers is not None else ()
            made = await self._decisions()
            fresh = await self._fresh()
            away, home = self._there.cache, self._here.cache
            writes = list(report.region_report(away, home, self.region, now, seen, decisions=made, fresh=fresh))
            try:
                if writes:
                    self._countdown.clock.sending(report.sequence(now), self._ports.clock.monotonic())
                    committed = await self._there_client.commit(writes, brief=True)
                    unanswered = 0
                    await self._reach(heard=True)
                    await self._heard(now)
                    await self._renew_tenure(now, committed.revision)
            except Fault as fault:
                self._log.info("report_failed", reason=fault.reason, message=fault.message)
                unanswered += fault.code != CONFLICT
                if unanswered >= limits.REACH_FAILURES:
                    await self._reach(heard=False)
            await self._ports.clock.sleep(self._pause_s())

    async def _fresh(self) -> Cache | None:
        """What an answer to a restored global cell rests on, asked for now; most of the time nobody waits."""
        if not answering.is_awaited(self._there.cache, self.region):
            return None
        asked = Cache()
        try:
            for kind in answering.ASKED:
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
        silent_s = passed_s - self._heard_monotonic_s if self._heard_s else math.inf
        if silent_s > limits.GRANT_LEASE_S and not await self._grants_are_current():
            return
        put_back = asked_s < self._heard_s
        self._heard_s, self._heard_monotonic_s = asked_s, passed_s
        due = passed_s - self._leases_seen_s > limits.GRANT_LEASE_S * grant_sync.LOOKED_AT_AFTER
        if put_back or due or silent_s > 2 * limits.REGION_REPORT_EVERY_S:
            self._leases_seen_s = passed_s
            found = grant_sync.keys(self._there.cache, self._here.cache)
            self._limits.mark(found)
            self._acks.mark(found)

    async def _renew_tenure(self, asked_s: float, revision: int) -> None:
        """Asks which exclusive ordinals of scope Global are this region's, and keeps the answer as its tenure.

        The answer is of a moment after the asking (its revision proves it): an ordinal that it names had not been
        taken away when the tenure began to count.
        """
        held = self._here.cache.get(Lease, tenure.NAME, tenure.NAMESPACE)
        known = (*self._here.cache.list(Assignment), *self._there.cache.list(Assignment))
        if held is None and not any(tenure.needs_tenure(a.spec.exclusive) for a in known):
            return
        there = await self._there_client.list(Assignment, fields={"region": self.region})
        if there.revision < revision:
            return
        # Asked for, as it was written a moment ago: a cache that lags would cost renewals one after the other.
        held = await self._mirrors.get(Lease, tenure.NAME, tenure.NAMESPACE)
        lease = tenure.tenure_lease(self.region, asked_s, tenure.covered_by(list(there.items)))
        if held is None:
            await self._mirrors.commit([Create(lease)])
            return
        meta = msgspec.structs.replace(held.metadata, annotations=lease.metadata.annotations)
        await self._mirrors.commit([Update(msgspec.structs.replace(held, metadata=meta, spec=lease.spec))])

    async def _grants_are_current(self) -> bool:
        there = await self._there_client.list(Grant, fields={"region": self.region})
        known = ((g, self._there.cache.get(Grant, g.metadata.name, g.metadata.namespace)) for g in there.items)
        return all(seen is not None and seen.spec.epoch >= grant.spec.epoch for grant, seen in known)

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
