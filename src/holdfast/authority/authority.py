"""The authority of a region: the one elected writer of placement.

It owns Reservation, Binding, Decision, LeasePage and the placement and fence blocks. It acts only between `start` and
`stop`, under a fencing token that every commit compares; otherwise it refuses (S5). The caller is already authorized.

    await authority.start(token)     # after winning the election
    await authority.run()            # until it loses, or is cancelled
    authority.stop()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from holdfast.authority import records, restore_records
from holdfast.authority.background_jobs import BackgroundJobs
from holdfast.authority.batching import CommitBatcher, ReserveBatch
from holdfast.authority.bind import BindHandler
from holdfast.authority.commit_rounds import CommitRounds, RoundJob
from holdfast.authority.commits import Commits, not_leader_error, stored
from holdfast.authority.gangs import Gangs
from holdfast.authority.heartbeats import Heartbeats
from holdfast.authority.lease_book import LeaseBook
from holdfast.authority.ledger import Ledger
from holdfast.authority.lost_claims import LostClaims
from holdfast.authority.release import ReleaseHandler
from holdfast.authority.reserve import ReserveJob
from holdfast.authority.slot_admission import RecoverySlotAdmission
from holdfast.authority.state import BINDING, HOLD, RESERVATION, VOLUME, AuthorityState
from holdfast.client.contract import FencingToken
from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.gate.audit import AuditLog
from holdfast.model import limits
from holdfast.model.cell_identity import IDENTITY_TERM, identity_of_term
from holdfast.model.election_term import INCARNATION_TERM, RESTORE_COMPLETE, Term, is_restore_in_progress
from holdfast.model.errors import Expired, Fault, StaleToken, Unavailable
from holdfast.model.kinds import BY_NAME, Kind
from holdfast.model.override import is_deletion_confirmed
from holdfast.model.placement_api import (
    BindRequest,
    PlacementResponse,
    PlacementResult,
    ReleaseRequest,
    RenewRequest,
    ReserveRequest,
)
from holdfast.model.principal import Principal, controller
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.replica import Replica
from holdfast.store.objects import ObjectChange, Objects

# Interval of the authority's background jobs: fencing, reservation expiry, slot admission.
AUTHORITY_TICK_S = 1.0
# Interval at which the authority writes quota usage to the GrantCopies.
USAGE_REPORT_EVERY_S = 1.0
# Interval at which the authority searches for claims without a replica, and for replicas without their claim.
ORPHAN_CHECK_EVERY_S = 10.0
# Interval at which the authority deletes the oldest Decisions.
DECISION_PRUNE_EVERY_S = 30.0

_log = structlog.get_logger()
_FOLLOWED = (BINDING, RESERVATION, HOLD, VOLUME)
_TERM = BY_NAME["Term"]
T = TypeVar("T")
_claims_all = metrics.AUTHORITY_CLAIMS.labels("all")
_claims_unbound = metrics.AUTHORITY_CLAIMS.labels("unbound")
_claims_quota_released = metrics.AUTHORITY_CLAIMS.labels("lingering")


class Authority:
    def __init__(
        self,
        region: str,
        objects: Objects,
        ports: Ports,
        *,
        lease_ttl_s: float = limits.NODE_LEASE_TTL_S,
        trail: AuditLog | None = None,
    ) -> None:
        """`trail` is the cell's audit log; it is notified of appended records, so that it trims itself in time."""
        self.region = region
        self._objects = objects
        self._ports = ports
        self._caller = controller("authority", cell=region)
        self._state = AuthorityState(region, objects, ports, LeaseBook(lease_ttl_s))
        self._commits = Commits(objects, ports, trail)
        self._rounds = CommitRounds(self._state, self._commits)
        self._heartbeats = Heartbeats(self._state, self._commits, self._caller)
        self._jobs = BackgroundJobs(self._state, self._rounds, self._commits, self._caller)
        self._lost = LostClaims(self._state, self._rounds, self._caller)
        self._slots = RecoverySlotAdmission(self._state, self._rounds, self._caller)
        self._gangs = Gangs(self._state, self._rounds, self._commits, self._caller)
        self._batcher = CommitBatcher(self._reserve_batch)
        self._claim_released = asyncio.Event()
        """Set when a claim was released while other claims wait for victims."""
        self._shielded_tasks: dict[asyncio.Task[Any], None] = {}
        self._watch_from: dict[str, int] = {}
        self._restore_ends_at_s = 0.0

    def annotate_bindings(self, annotations: Callable[[Replica], dict[str, str]]) -> None:
        """Adds these annotations to each new Binding."""
        self._state.annotate = annotations

    # Requests

    async def reserve(self, caller: Principal, request: ReserveRequest) -> PlacementResponse:
        """Reserves each item, and with `bind` binds it if nothing must be waited for.

        When this returns, every accepted item and the Decision are durable.
        """
        self._check_restored()
        if self._gangs.has_uncommitted_gang(request.items):
            job = ReserveJob(self._state, caller, request.items, request.decision, bind=request.bind)
            answers = await self._process(job)
            await self._store_refused(job, request, answers)
            return answers
        return await self._batcher.submit(caller, request)

    async def _reserve_batch(
        self, caller: Principal, requests: Sequence[ReserveRequest]
    ) -> Sequence[PlacementResponse]:
        """Processes all requests in one round; returns one response per request."""
        jobs = [ReserveJob(self._state, caller, r.items, r.decision, bind=r.bind) for r in requests]
        response = await self._process(jobs[0] if len(jobs) == 1 else ReserveBatch(self._state, jobs))
        responses, first = [], 0
        for job, request in zip(jobs, requests, strict=True):
            own = response.results[first : first + len(job.items)]
            first += len(job.items)
            answers = msgspec.structs.replace(response, results=own)
            await self._store_refused(job, request, answers)
            responses.append(answers)
        return responses

    async def _store_refused(self, job: ReserveJob, request: ReserveRequest, answers: PlacementResponse) -> None:
        """Stores a Decision of which no item was accepted, if the request asks for it."""
        if request.decision is not None and request.record_refused and not job.recorded():
            await self._shielded(self._jobs.record_decision(job, answers.results))

    async def bind(self, caller: Principal, request: BindRequest) -> PlacementResponse:
        self._check_restored()
        return await self._process(BindHandler(self._state, caller, request.items, request.decision))

    async def release(
        self, caller: Principal, request: ReleaseRequest, *, token: FencingToken | None = None
    ) -> PlacementResponse:
        """`token` is the calling controller's fencing token; a stale one raises StaleToken."""
        if token is not None:
            self._check_token(token)
        answers = await self._process(ReleaseHandler(self._state, caller, request.items, token))
        if self._state.ledger.unbound:
            self._claim_released.set()
        return answers

    async def renew(self, caller: Principal, request: RenewRequest) -> PlacementResponse:
        """Heartbeats and registrations. The response follows the flush that makes them durable."""
        if not self._commits.leading:
            raise not_leader_error()
        answers = await self._heartbeats.renew(request.items)
        self._count("renew", answers)
        return PlacementResponse(
            tuple(answers),
            self._objects.head(BINDING),
            self.incarnation,
            identity=self._identity,
            confirms_deletion=self._confirms_deletion,
        )

    # Lifecycle

    async def start(self, token: FencingToken) -> None:
        """Takes the token and rebuilds ledger and lease book from the stored objects."""
        await self._commits.take_token(token)
        self._state.load()
        self._restore_ends_at_s = self._ports.clock.monotonic() + self._state.leases.grace_s
        self._rounds = CommitRounds(self._state, self._commits)
        self._jobs = BackgroundJobs(self._state, self._rounds, self._commits, self._caller)
        self._lost = LostClaims(self._state, self._rounds, self._caller)
        self._slots = RecoverySlotAdmission(self._state, self._rounds, self._caller)
        self._gangs = Gangs(self._state, self._rounds, self._commits, self._caller)
        self._watch_from = {kind.name: self._objects.head(kind) for kind in _FOLLOWED}
        _log.info(
            "authority_started",
            region=self.region,
            token=token.revision,
            claims=len(self._state.ledger.claims),
            leases=len(self._state.leases.by_node),
        )

    def stop(self) -> None:
        """Refuses all further requests. Commits in flight complete, and their callers get responses."""
        self._commits.step_down("stopped")
        self._heartbeats.fail_pending()

    @property
    def leading(self) -> bool:
        return self._commits.leading

    async def run(self) -> None:
        """Runs the background tasks until leadership is lost. Call it after `start`."""
        jobs: list[tuple[str, Coroutine[Any, Any, None]]] = [
            ("authority leases", self._renew_leases()),
            ("authority fences", self._fence_leases()),
            ("authority background jobs", self._run_jobs()),
            ("authority bind preconditions", self._advance_on_release()),
            *((f"authority follows {kind.name}", self._follow(kind)) for kind in _FOLLOWED),
        ]
        tasks = [asyncio.create_task(work, name=name) for name, work in jobs]
        try:
            await self._commits.leadership_lost.wait()
        finally:
            self.stop()
            await cancel_and_wait(*tasks)

    async def tick(self) -> None:
        """Runs every background job once."""
        await self._heartbeats.flush()
        await self._heartbeats.fence()
        await self._tidy()
        await self._compare_records()
        await self._jobs.report_usage()
        await self._jobs.prune_decisions()

    # Inspection

    @property
    def ledger(self) -> Ledger:
        return self._state.ledger

    def rebuilt_ledger(self) -> Ledger:
        """The ledger rebuilt from the published objects; equal to `ledger` while no commit is in flight."""
        return self._state.rebuilt_ledger()

    def lease_epoch(self, node: str) -> int:
        return self._state.leases.epoch(node)

    # Inside

    async def _process(self, job: RoundJob) -> PlacementResponse:
        if not self._commits.leading:
            raise not_leader_error()
        started_s = self._ports.clock.monotonic()
        if isinstance(job, ReserveJob) and self._gangs.has_uncommitted_gang(job.items):
            settled = await self._shielded(self._gangs.reserve(job))
        else:
            settled = await self._shielded(self._rounds.process(job))
        metrics.AUTHORITY_COMMIT.labels(job.verb).observe(self._ports.clock.monotonic() - started_s)
        self._count(job.verb, settled.results)
        return PlacementResponse(tuple(settled.results), settled.revision or self._objects.head(BINDING))

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Completes the work even if the caller is cancelled, so that the ledger follows every commit."""
        task = asyncio.create_task(work)
        self._shielded_tasks[task] = None
        task.add_done_callback(self._on_shielded_done)
        return await asyncio.shield(task)

    def _on_shielded_done(self, done: asyncio.Task[Any]) -> None:
        """Retrieves the exception, because the caller may have been cancelled."""
        self._shielded_tasks.pop(done, None)
        if not done.cancelled():
            done.exception()

    def _count(self, verb: str, answers: list[PlacementResult]) -> None:
        counts: dict[tuple[str, str], int] = {}
        for answer in answers:
            key = (answer.result.value, answer.reason)
            counts[key] = counts.get(key, 0) + 1
        for (result, reason), count in counts.items():
            metrics.AUTHORITY_RESPONSES.labels(verb, result, reason).inc(count)

    @property
    def incarnation(self) -> int:
        """The cell's incarnation: 1 if it was never restored; each restore has a higher one."""
        term = self._objects.get(_TERM, "", INCARNATION_TERM)
        return term.spec.term if isinstance(term, Term) else 1

    @property
    def _identity(self) -> str:
        """The identity of the region's cell; empty if its store was written by an earlier release."""
        term = self._objects.get(_TERM, "", IDENTITY_TERM)
        found = identity_of_term(term) if isinstance(term, Term) else None
        return found.identity if found is not None else ""

    @property
    def _confirms_deletion(self) -> bool:
        """Whether an override confirms that work which this cell has no record of is to be stopped."""
        overrides, now = self._state.overrides(), self._state.now()
        return is_deletion_confirmed(overrides, region=self.region, tenant="", workload="", now=now)

    @property
    def restore_in_progress(self) -> bool:
        """Whether the cell was restored and leases of the previous incarnation may still be held."""
        term = self._objects.get(_TERM, "", INCARNATION_TERM)
        return isinstance(term, Term) and is_restore_in_progress(term)

    def _check_restored(self) -> None:
        if self.restore_in_progress:
            remaining_s = max(0.0, self._restore_ends_at_s - self._ports.clock.monotonic())
            raise Unavailable(
                f"region {self.region}: restored from a backup; placement is refused for {remaining_s:.0f} s more, "
                "until every agent has registered again or is certain to have stopped",
                facts={"reason": Reason.RESTORE_IN_PROGRESS.value},
            )

    async def _complete_restore(self) -> None:
        """Ends the restore when no agent can hold a lease of the previous incarnation any more."""
        if not self.restore_in_progress or self._ports.clock.monotonic() < self._restore_ends_at_s:
            return
        term = self._objects.get(_TERM, "", INCARNATION_TERM)
        assert isinstance(term, Term)
        completed = msgspec.structs.replace(
            term,
            metadata=records.without_revision(term.metadata),
            spec=msgspec.structs.replace(term.spec, holder=RESTORE_COMPLETE),
        )
        probe = stored(_TERM, term.metadata, lambda responses: responses.spec.holder == RESTORE_COMPLETE)
        await self._commits.commit(
            {restore_records.incarnation_key(): term.revision}, [records.put_object(_TERM, completed)], (), probe
        )
        _log.info("restore_completed", region=self.region, incarnation=term.spec.term)

    def _check_token(self, token: FencingToken) -> None:
        term = self._objects.get(_TERM, "", token.election)
        if term is None or term.revision != token.revision:
            raise StaleToken(
                f"election {token.election}: stale token {token.revision}; another process leads",
                facts={"token": token.revision, "current": term.revision if term is not None else 0},
            )

    async def _renew_leases(self) -> None:
        """Flushes renewals in batches; does nothing while there are none."""
        while self._commits.leading:
            delay_s = await self._heartbeats.wait_for_renewals()
            await self._ports.clock.sleep(delay_s)
            await self._run_job("flush", self._heartbeats.flush())

    async def _fence_leases(self) -> None:
        while self._commits.leading:
            await self._ports.clock.sleep(AUTHORITY_TICK_S)
            await self._run_job("fence", self._heartbeats.fence())
            self._update_gauges()

    async def _run_jobs(self) -> None:
        clock = self._ports.clock
        due = {"orphans": clock.monotonic(), "prune": clock.monotonic(), "use": clock.monotonic()}
        while self._commits.leading:
            await clock.sleep(AUTHORITY_TICK_S)
            await self._run_job("tidy", self._tidy())
            now_s = clock.monotonic()
            for name, every_s, work in (
                ("use", USAGE_REPORT_EVERY_S, self._jobs.report_usage),
                ("orphans", ORPHAN_CHECK_EVERY_S, self._compare_records),
                ("prune", DECISION_PRUNE_EVERY_S, self._jobs.prune_decisions),
            ):
                if now_s - due[name] >= every_s:
                    due[name] = now_s
                    await self._run_job(name, work())

    async def _compare_records(self) -> None:
        """Compares replicas and claims both ways: claims without a replica, and replicas without their claim."""
        await self._jobs.release_orphans()
        await self._lost.repair()

    async def _advance_on_release(self) -> None:
        """Promotes and binds waiting claims as soon as a claim is released, not only at the next tick."""
        while self._commits.leading:
            await self._claim_released.wait()
            self._claim_released.clear()
            await self._run_job("waits", self._advance_waiting())

    async def _advance_waiting(self) -> None:
        await self._jobs.promote()
        await self._complete_restore()
        await self._gangs.commit_and_bind()

    async def _tidy(self) -> None:
        await self._jobs.expire()
        await self._jobs.remove_ended()
        await self._jobs.confirm_provisional()
        await self._advance_waiting()
        await self._slots.admit()
        await self._slots.sync_consumers()

    async def _run_job(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs one job. A failure is logged; the next tick runs the job again."""
        try:
            await work
        except Fault as fault:
            _log.info("background_job_failed", job=name, reason=fault.reason, message=fault.message)
        except Exception:
            _log.exception("background_job_failed", job=name)

    async def _follow(self, kind: Kind) -> None:
        """Follows removals by other writers (garbage collection, operators) and changes of recovery slots."""
        after = self._watch_from.get(kind.name, 0)
        while self._commits.leading:
            try:
                async for changes in self._objects.stream(kind, after=after):
                    for change in changes:
                        after = change.revision
                        self._on_change(kind, change)
            except Expired:
                after = self._objects.head(kind)
                self._rounds.reload_all()
            except Fault as fault:
                _log.info("stream_ended", kind=kind.name, reason=fault.reason)
                await self._ports.clock.sleep(limits.BACKOFF_FIRST_S)

    def _on_change(self, kind: Kind, change: ObjectChange) -> None:
        item = change.new or change.old
        if item is None:
            return
        if kind is HOLD:
            assert isinstance(item, RecoverySlot)
            self._rounds.slots_changed(item.spec.node, removed="" if change.new is not None else item.metadata.name)
        elif kind is VOLUME and change.new is None:
            self._rounds.volume_removed(item.metadata.namespace, item.metadata.name)
        elif change.new is None:  # only the authority writes claims, and its own are booked already
            self._rounds.claim_removed(item.metadata.namespace, item.metadata.name)

    def _update_gauges(self) -> None:
        monotonic_s = self._ports.clock.monotonic()
        book, ledger = self._state.leases, self._state.ledger
        metrics.AUTHORITY_LEASES.set(book.count_live(monotonic_s))
        _claims_all.set(len(ledger.claims))
        _claims_unbound.set(len(ledger.unbound))
        _claims_quota_released.set(len(ledger.quota_released))
