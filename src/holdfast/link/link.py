"""The link of one region: watches the global cell, reports to it, and runs the link controllers while it is connected.

The link stops, and with it every exchange, if one side belongs to an incarnation that a restore has replaced.
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

# Longest interval between two reports of a region.
REGION_REPORT_EVERY_S = 5.0
# Shortest interval between two reports of a region, whatever its `lostAfterSeconds`.
REGION_REPORT_INTERVAL_MIN_S = 1.0
# Reports within `lostAfterSeconds`. Several must be lost before a region counts as lost.
REGION_REPORTS_PER_LOST_AFTER = 6
# Consecutive unanswered reports after which a region considers the global cell unreachable.
CONNECTIVITY_FAILURES_MAX = 2

CONFLICT = 409


class Link:
    """`global_client` calls the global cell as this region. `mirror_client` writes in this region as role `link`."""

    def __init__(
        self,
        region: str,
        *,
        global_client: Client,
        mirror_client: Client,
        here: Informers,
        ports: Ports,
        override_expiry: OverrideExpiry,
        probe: PeerProbe | None = None,
    ) -> None:
        """Without a `probe` this region is not a witness. `override_expiry` receives samples of the global clock and
        converts expiries to local time."""
        self.region = region
        self.override_expiry = override_expiry
        self.runners: dict[str, Runner] = {}
        """Link controllers by name, set by the cell. They run while the link is connected."""
        self.peer = Informers(global_client, ports, resync_s=here.resync_s)
        self.last_contact_s = 0.0
        """Wall clock time at which the last accepted report was sent; 0 before the first."""
        self._peers = PeerProber(region, probe, ports) if probe is not None else None
        self._global_client = global_client
        self._mirror_client = mirror_client
        self._here = here
        self._ports = ports
        self._last_contact_mono_s = 0.0
        """Monotonic time at which the last answered report was sent. Grant leases count from it."""
        self._leases_checked_s = 0.0
        """Monotonic time at which all grant leases were last checked."""
        self._log = structlog.get_logger().bind(region=region)
        for kind in (RecoverySlot, Binding, Term, Lease):  # read by reports; link controllers declare their own kinds
            here.of(kind)
        for own in (Assignment, Grant, Endpoint):  # a region needs only its own objects of these kinds
            self.peer.of(own, {"region": region})
        self.peer.of(Region).on_change(self._on_regions)

    async def run(self) -> None:
        """Runs until cancelled. Waits until both caches are synced, because an empty cache proves nothing."""
        await self.peer.start()
        try:
            await self._here.synced()
            await self._write_connectivity(connected=False)
            await self.peer.synced()
            await self._write_connectivity(connected=True)
            await self._check_incarnations()
            self._log.info("link_synced")
            async with asyncio.TaskGroup() as group:
                for name, runner in self.runners.items():
                    group.create_task(self._run_grant_sync(runner) if name == "grant-sync" else runner.run())
                group.create_task(self._report())
                if self._peers is not None:
                    group.create_task(self._probe_peers(self._peers))
        finally:
            await self.peer.stop()

    async def prepare_assignment_report(self, key: Key) -> None:
        """Lists the replicas of an exclusive Assignment before its report (see `ordinal_report`)."""
        await ordinal_report.refresh_replicas(key, self.peer.cache, self._here, self._mirror_client)

    async def _check_incarnations(self) -> None:
        """Raises if one side is a replaced incarnation; otherwise records the incarnation of the global cell."""
        global_view, region_view = self.peer.cache, self._here.cache
        restore_handshake.check_incarnations(global_view, region_view, self.region)
        writes = list(restore_handshake.record_incarnation(global_view, region_view, self.region))
        try:
            if writes:
                await self._mirror_client.commit(writes)
        except Fault as fault:
            self._log.info("incarnation_write_failed", reason=fault.reason, message=fault.message)

    async def _run_grant_sync(self, grant_sync: Runner) -> None:
        """Runs grant-sync. After a restore of this region it first waits until foreign exclusive work is removed."""
        while not restore_handshake.can_renew_grants(self.peer.cache, self._here.cache):
            await self._ports.clock.sleep(limits.LINK_FLUSH_EVERY_S)
        await grant_sync.run()

    async def _write_connectivity(self, *, connected: bool) -> None:
        """Writes the connectivity Lease if the state changed."""
        known = self._here.cache.get(Lease, connectivity.NAME, connectivity.NAMESPACE)
        if known is not None and connectivity.is_connected(known) is connected:
            return
        wanted = connectivity.connectivity_lease(self._ports.clock.now(), connected=connected)
        write = Create(wanted) if known is None else Update(msgspec.structs.replace(known, spec=wanted.spec))
        try:
            await self._mirror_client.commit([write])
        except Fault as fault:
            self._log.info("connectivity_write_failed", reason=fault.reason, message=fault.message)

    def _on_regions(self, changes: Sequence[CacheChange[Any]]) -> None:
        """A confirmed report is a sample of the global clock, which may change the local expiry of overrides."""
        global_cache = self.peer.cache
        if self.override_expiry.clock.observe(global_cache.get(Region, self.region)):
            self.runners["link"].queue.add_all(mirror.queue_key(Override, o.key) for o in global_cache.list(Override))

    async def _report(self) -> None:
        """Sends the region report periodically."""
        unanswered = 0
        while True:
            await self._check_incarnations()
            now = self._ports.clock.now()
            seen = self._peers.results() if self._peers is not None else ()
            made = await self._decisions()
            fresh = await self._restore_objects()
            global_view, region_view = self.peer.cache, self._here.cache
            writes = list(
                report.region_report(global_view, region_view, self.region, now, seen, decisions=made, fresh=fresh)
            )
            try:
                if writes:
                    self.override_expiry.clock.record_sent(report.report_sequence(now), self._ports.clock.monotonic())
                    committed = await self._global_client.commit(writes, brief=True)
                    unanswered = 0
                    await self._write_connectivity(connected=True)
                    await self._renew_leases(now)
                    await self._renew_tenure(now, committed.revision)
            except Fault as fault:
                self._log.info("report_failed", reason=fault.reason, message=fault.message)
                unanswered += fault.code != CONFLICT
                if unanswered >= CONNECTIVITY_FAILURES_MAX:
                    await self._write_connectivity(connected=False)
            await self._ports.clock.sleep(self._report_interval_s())

    async def _restore_objects(self) -> Cache | None:
        """The objects for the acknowledgement of a restore, listed now; None if no acknowledgement is pending."""
        if not restore_handshake.is_restore_pending(self.peer.cache, self.region):
            return None
        asked = Cache()
        try:
            for kind in restore_handshake.HANDSHAKE_KINDS:
                fields = {"region": self.region} if kind is not Region else None
                for item in (await self._global_client.list(kind, fields=fields)).items:
                    asked.put(item)
        except Fault:
            return None
        return asked

    async def _decisions(self) -> Sequence[Decision]:
        """The region's Decisions, if a PolicyRevision has a `spec.guard`, which counts them; otherwise none."""
        if not any(r.spec.guard is not None for r in self._here.cache.list(PolicyRevision)):
            return ()
        try:
            return (await self._mirror_client.list(Decision)).items
        except Fault:
            return ()

    async def _renew_leases(self, sent_s: float) -> None:
        """Records an answered report and renews grant leases, several times per lease and at once after missed reports.

        If no report was answered for longer than a lease, a share may have been reclaimed: the cached Grants must be
        current first.
        """
        mono_s = self._ports.clock.monotonic()
        silent_s = mono_s - self._last_contact_mono_s if self.last_contact_s else math.inf
        if silent_s > limits.GRANT_LEASE_S and not await self._grants_are_current():
            return
        stepped_back = sent_s < self.last_contact_s
        self.last_contact_s, self._last_contact_mono_s = sent_s, mono_s
        due = mono_s - self._leases_checked_s > limits.GRANT_LEASE_S * grant_sync.CHECK_AFTER_FRACTION
        if stepped_back or due or silent_s > 2 * REGION_REPORT_EVERY_S:
            self._leases_checked_s = mono_s
            self.runners["grant-sync"].resync_now()
            self.runners["grant-acknowledgement"].resync_now()

    async def _renew_tenure(self, sent_s: float, revision: int) -> None:
        """Lists this region's exclusive ordinals of scope Global and stores them as its tenure.

        The list is at least as new as the report sent at `sent_s` (its revision proves it), so no listed ordinal was
        withdrawn before the tenure began.
        """
        held = self._here.cache.get(Lease, tenure.NAME, tenure.NAMESPACE)
        known = (*self._here.cache.list(Assignment), *self.peer.cache.list(Assignment))
        if held is None and not any(tenure.needs_tenure(a.spec.exclusive) for a in known):
            return
        listing = await self._global_client.list(Assignment, fields={"region": self.region})
        if listing.revision < revision:
            return
        # Read from the API: the Lease was written a moment ago, and a stale cache would make the update conflict.
        held = await self._mirror_client.get(Lease, tenure.NAME, tenure.NAMESPACE)
        lease = tenure.tenure_lease(self.region, sent_s, tenure.confirmed_ordinals(list(listing.items)))
        if held is None:
            await self._mirror_client.commit([Create(lease)])
            return
        meta = msgspec.structs.replace(held.metadata, annotations=lease.metadata.annotations)
        await self._mirror_client.commit([Update(msgspec.structs.replace(held, metadata=meta, spec=lease.spec))])

    async def _grants_are_current(self) -> bool:
        listing = await self._global_client.list(Grant, fields={"region": self.region})
        known = ((g, self.peer.cache.get(Grant, g.metadata.name, g.metadata.namespace)) for g in listing.items)
        return all(seen is not None and seen.spec.epoch >= grant.spec.epoch for grant, seen in known)

    async def _probe_peers(self, peers: PeerProber) -> None:
        while True:
            await peers.probe_all(self.peer.cache.list(Region))
            await self._ports.clock.sleep(self._report_interval_s())

    def _report_interval_s(self) -> float:
        """Report interval: several reports within `lostAfterSeconds`."""
        known = self.peer.cache.get(Region, self.region)
        lost_after_s = known.spec.lost_after_seconds if known is not None else 0.0
        pause_s = lost_after_s / REGION_REPORTS_PER_LOST_AFTER
        return min(max(pause_s, REGION_REPORT_INTERVAL_MIN_S), REGION_REPORT_EVERY_S)
