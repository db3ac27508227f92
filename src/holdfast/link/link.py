"""The link of one region: watches the global cell, reports to it, and runs the link controllers while it is connected.

Each report is a heartbeat with a deadline: it is a write in the global cell, so a hung process, a stuck disk and a cut
network look the same, and are noticed after GLOBAL_SILENCE_MAX_S.

The link stops, and with it every exchange, if one side belongs to an incarnation that a restore has replaced. It does
not start while the two cells do not recognize each other (`recognizer`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.controllers.cache import Cache
from holdfast.controllers.informer import CacheChange, Informers
from holdfast.controllers.runner import Runner
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import run_until_first_ends
from holdfast.link import (
    deletion_orders,
    grant_sync,
    held_work,
    mirror,
    ordinal_report,
    recognition,
    report,
    restore_handshake,
)
from holdfast.link.config_sync import ConfigCopies, ConfigOriginals, ConfigSync
from holdfast.link.contact_clock import ContactClock
from holdfast.link.override_expiry import OverrideExpiry
from holdfast.link.peer_probes import PeerProbe, PeerProber
from holdfast.link.recognizer import Recognizer
from holdfast.model import connectivity, limits, tenure
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.cell_identity import CellIdentity
from holdfast.model.core import Lease
from holdfast.model.decision import Decision
from holdfast.model.election_term import Term
from holdfast.model.endpoint import Endpoint
from holdfast.model.errors import Fault, StaleToken
from holdfast.model.meta import Key
from holdfast.model.override import Override
from holdfast.model.quota import Grant, GrantClass, grant_name
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.region import CellWarning, Region
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.writes import Create, Update

# Longest interval between two reports of a region.
REGION_REPORT_EVERY_S = 5.0
# Shortest interval between two reports of a region, whatever its `lostAfterSeconds`.
REGION_REPORT_INTERVAL_MIN_S = 1.0
# Reports within `lostAfterSeconds`. Several must be lost before a region counts as lost.
REGION_REPORTS_PER_LOST_AFTER = 6
# Time limit of one report with all its calls. A hung cell must not delay the next report by the retries of each call.
REPORT_TIMEOUT_S = 8.0
# Time without an answered report after which a region considers the global cell unreachable, whatever the cause. A
# report is sent every REGION_REPORT_EVERY_S, so the last one has been unanswered for at least 3 s.
GLOBAL_SILENCE_MAX_S = 8.0
# Interval at which the silence of the global cell is measured.
SILENCE_CHECK_EVERY_S = 1.0
# Time limit of the write in the region's own store before each report. A region whose store hangs does not report.
OWN_WRITE_TIMEOUT_S = 4.0

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
        originals: ConfigOriginals | None = None,
        copies: ConfigCopies | None = None,
    ) -> None:
        """Without a `probe` this region is not a witness; without `originals` no Secrets are copied. `override_expiry`
        receives samples of the global clock and converts expiries to local time."""
        self.region = region
        self.override_expiry = override_expiry
        self.runners: dict[str, Runner] = {}
        """Link controllers by name, set by the cell. They run while the link is connected."""
        self.warnings: Callable[[], tuple[CellWarning, ...]] = tuple
        """What the process says about its own cell in each report. Set by the process, before the link runs."""
        self.peer = Informers(global_client, ports, resync_s=here.resync_s)
        self.contacts = ContactClock()
        self._peers = PeerProber(region, probe, ports) if probe is not None else None
        self._global_client = global_client
        self._mirror_client = mirror_client
        self._here = here
        self._ports = ports
        self._last_contact_mono_s = 0.0
        """Monotonic time at which the last answered report was sent. Grant leases count from it."""
        self._last_answer_mono_s = 0.0
        """Monotonic time of the last answer of the global cell to a report."""
        self._leases_checked_s = 0.0
        """Monotonic time at which all grant leases were last checked."""
        self._config = ConfigSync(region, originals, copies, mirror_client, peer=self.peer.cache, here=here.cache)
        self._guard = deletion_orders.RemovalGuard()
        self._recognizer = Recognizer(region, global_client, mirror_client, here.cache, ports)
        self._cached_cell: CellIdentity | None = None
        """The era of the global cell in which every cache of it was listed; None if that is unknown."""
        self._log = structlog.get_logger().bind(region=region)
        for kind in (RecoverySlot, Binding, Term, Lease):  # read by reports; link controllers declare their own kinds
            here.of(kind)
        for own in (Assignment, Grant, Endpoint):  # a region needs only its own objects of these kinds
            self.peer.of(own, {"region": region})
        self.peer.of(Region).on_change(self._on_regions)

    async def run(self) -> None:
        """Runs until cancelled."""
        await run_until_first_ends(self._exchange(), self._watch_silence())

    async def _watch_silence(self) -> None:
        """Records that the global cell is unreachable when it has answered no report for GLOBAL_SILENCE_MAX_S."""
        self._last_answer_mono_s = self._ports.clock.monotonic()
        while True:
            await self._ports.clock.sleep(SILENCE_CHECK_EVERY_S)
            silent_s = self._ports.clock.monotonic() - self._last_answer_mono_s
            if silent_s >= GLOBAL_SILENCE_MAX_S and await self._write_connectivity(connected=False):
                self._log.warning("global_cell_silent", silent_s=round(silent_s, 1))

    async def _exchange(self) -> None:
        """Waits until both caches are synced, because an empty cache proves nothing. Then runs the controllers."""
        await self.peer.start()
        try:
            await self._here.synced()
            await self._write_connectivity(connected=False)
            await self.peer.synced()
            await self._heard()
            await self._until_caches_are_of_recognized_cell()
            await self._check_incarnations()
            self._guard.paused = held_work.was_paused(self._here.cache.get(Region, self.region))
            self._log.info("link_synced")
            await run_until_first_ends(
                *(
                    self._run_grant_sync(runner) if name == "grant-sync" else runner.run()
                    for name, runner in self.runners.items()
                ),
                self._report(),
                *([self._probe_peers(self._peers)] if self._peers is not None else []),
            )
        finally:
            await self.peer.stop()

    async def _until_caches_are_of_recognized_cell(self) -> None:
        """Waits until the cells recognize each other and every cache was listed in the present era of the global cell.

        Each cache has its own watch. After a restore one may still show a Grant or Assignment that the restore undid.
        """
        remembered = recognition.remembered_identity(self._here.cache)
        await self._recognizer.until_recognized()
        if self._cached_cell is None:
            self._cached_cell = recognition.era_of_new_caches(remembered, self._recognizer.recognized)
        while self._cached_cell != self._recognizer.recognized:
            await self._list_again_after_restore()
            await self._recognizer.until_recognized()

    async def _list_again_after_restore(self) -> None:
        """Lists every cache of the global cell again if the recognized era is not the one they were listed in."""
        recognized = self._recognizer.recognized
        if self._cached_cell != recognized:
            self._log.info("global_cell_listed_again", era=recognized.era if recognized is not None else "")
            await self.peer.refresh()
            self._cached_cell = recognized

    async def prepare_assignment_report(self, key: Key) -> None:
        """Lists the replicas of an exclusive Assignment before its report (see `ordinal_report`)."""
        await ordinal_report.refresh_replicas(key, self.peer.cache, self._here, self._mirror_client)

    async def prepare_mirror(self, key: Key) -> None:
        """Before a copy is deleted: raises if the global cell is not the one that this region follows."""
        kind, name = mirror.mirror_key(key)
        copy = self._here.cache.get(kind, name.name, name.namespace)
        original = self.peer.cache.get(kind, name.name, name.namespace)
        if isinstance(original, Assignment) and self._config.must_precede(
            original, copy if isinstance(copy, Assignment) else None
        ):
            await self._config.run_once()
        if copy is not None and (original is None or original.uid != copy.uid):
            await self._recognizer.check()
            await self._list_again_after_restore()

    async def prepare_grant(self, key: Key) -> None:
        """The same, before a limit is closed because its Grant is missing."""
        grant = grant_name(self.region, GrantClass(key.name.capitalize()))
        if self.peer.cache.get(Grant, grant, key.namespace) is None:
            await self._recognizer.check()
            await self._list_again_after_restore()

    def may_remove(self, copy: Assignment, here: View) -> bool:
        """Whether the workload may be removed from this region now (`deletion_orders.RemovalGuard`)."""
        return self._guard.allows(copy, here, self._ports.clock.monotonic())

    async def _say_held(self) -> str:
        """Says why this region holds work, and returns the message for the report."""
        held = held_work.holding(self.peer.cache, self._here.cache, self.region, paused=self._guard.paused)
        if self._guard.paused and (held is None or held.reason is not Reason.MASS_DELETION_PAUSED):
            self._guard.resume()
        await self._recognizer.say(held)
        return held.message if held is not None else ""

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

    async def _heard(self) -> None:
        """The global cell has answered."""
        self._last_answer_mono_s = self._ports.clock.monotonic()
        await self._write_connectivity(connected=True)

    async def _write_connectivity(self, *, connected: bool) -> bool:
        """Writes the connectivity Lease if the state changed. Returns whether it was written."""
        known = self._here.cache.get(Lease, connectivity.NAME, connectivity.NAMESPACE)
        if known is not None and connectivity.is_connected(known) is connected:
            return False
        wanted = connectivity.connectivity_lease(self._ports.clock.now(), connected=connected)
        write = Create(wanted) if known is None else Update(msgspec.structs.replace(known, spec=wanted.spec))
        try:
            await self._mirror_client.commit([write])
            return True
        except Fault as fault:
            self._log.info("connectivity_write_failed", reason=fault.reason, message=fault.message)
            return False

    def _on_regions(self, changes: Sequence[CacheChange[Any]]) -> None:
        """A confirmed report is a sample of the global clock, which may change the local expiry of overrides."""
        global_cache = self.peer.cache
        if self.override_expiry.clock.observe(global_cache.get(Region, self.region)):
            self.runners["link"].queue.add_all(mirror.queue_key(Override, o.key) for o in global_cache.list(Override))

    async def _report(self) -> None:
        """Sends the region report periodically. A report that takes too long is given up; the next one replaces it."""
        while True:
            try:
                async with asyncio.timeout(REPORT_TIMEOUT_S):
                    if await self._own_store_writes():
                        await self._report_once()
                        await self._config.run_once()
            except TimeoutError:
                self._log.warning("report_timed_out", limit_s=REPORT_TIMEOUT_S)
            except Fault as fault:
                if isinstance(fault, StaleToken):
                    raise
                self._log.info("report_failed", reason=fault.reason, message=fault.message)
                if fault.code == CONFLICT:
                    await self._heard()
            await self._ports.clock.sleep(self._report_interval_s())

    async def _own_store_writes(self) -> bool:
        """Whether this region's store answers a write in time. A refusal is an answer; only a hang is not.

        Without this a region whose disk hangs would report from its caches that all is well.
        """
        known = self._here.cache.get(Lease, connectivity.NAME, connectivity.NAMESPACE)
        if known is None:
            return True
        renewed = msgspec.structs.replace(known.spec, renew_time=micro_text(self._ports.clock.now()))
        try:
            async with asyncio.timeout(OWN_WRITE_TIMEOUT_S):
                await self._mirror_client.commit([Update(msgspec.structs.replace(known, spec=renewed))])
        except Fault:
            return True
        except TimeoutError:
            self._log.error("own_store_silent", limit_s=OWN_WRITE_TIMEOUT_S)
            return False
        return True

    async def _report_once(self) -> None:
        await self._check_incarnations()
        await self._check_recognized()
        await self._list_again_after_restore()
        now, mono_s = self._ports.clock.now(), self._ports.clock.monotonic()
        seen = self._peers.results() if self._peers is not None else ()
        made = await self._decisions()
        fresh = await self._restore_objects()
        held = await self._say_held()
        global_view, region_view = self.peer.cache, self._here.cache
        writes = list(
            report.region_report(
                global_view,
                region_view,
                self.region,
                now,
                seen,
                decisions=made,
                fresh=fresh,
                holding=held,
                warnings=self.warnings(),
            )
        )
        if writes:
            self.override_expiry.clock.record_sent(report.report_sequence(now), self._ports.clock.monotonic())
            committed = await self._global_client.commit(writes, brief=True)
            await self._heard()
            await self._renew_leases(now, mono_s)
            await self._renew_tenure(now, committed.revision)

    async def _check_recognized(self) -> None:
        """Raises if the global cell answers and is not the known one."""
        try:
            await self._recognizer.check()
        except StaleToken:
            raise
        except Fault as fault:
            self._log.info("global_cell_not_read", reason=fault.reason, message=fault.message)

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

    async def _renew_leases(self, sent_s: float, sent_mono_s: float) -> None:
        """Records an answered report and renews grant leases, several times per lease, and at once after missed reports
        or if the wall clock was stepped back.

        If no report was answered for longer than a lease, a share may have been reclaimed: the cached Grants must be
        current first.
        """
        mono_s = self._ports.clock.monotonic()
        silent_s = mono_s - self._last_contact_mono_s if self.contacts.last_contact_s else math.inf
        if silent_s > limits.GRANT_LEASE_S and not await self._grants_are_current():
            return
        stepped_back = self.contacts.observe(sent_s, sent_mono_s)
        self._last_contact_mono_s = mono_s
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
