"""The authority of a region: the one elected writer of placement.

It owns reservations, bindings, decisions, lease pages, and the placement and fence blocks. It acts only between `start`
and `stop`, under a token that every commit compares; outside of that it refuses (S5). Callers are authorized before
they come here.

    await authority.start(token)     # after winning the election
    await authority.run()            # until it loses, or is cancelled
    authority.stop()
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
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
from holdfast.authority.ledger import Ledger, rebuild_ledger
from holdfast.authority.release import ReleaseHandler
from holdfast.authority.reserve import ReserveJob
from holdfast.authority.slot_admission import RecoverySlotAdmission
from holdfast.authority.state import BINDING, HOLD, RESERVATION, AuthorityState
from holdfast.client.contract import FencingToken
from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.gate.audit import AuditLog
from holdfast.gate.principal import Principal, controller
from holdfast.model import limits
from holdfast.model.binding import Binding, Reservation
from holdfast.model.election_term import INCARNATION_TERM, Term
from holdfast.model.errors import Expired, Fault, StaleToken, Unavailable
from holdfast.model.kinds import BY_NAME, Kind
from holdfast.model.node import Node
from holdfast.model.placement_api import (
    BindRequest,
    PlacementResponse,
    PlacementResult,
    ReleaseRequest,
    RenewRequest,
    ReserveRequest,
)
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.store.objects import ObjectChange, Objects

_log = structlog.get_logger()
_TERM = BY_NAME["Term"]
T = TypeVar("T")
_claims_all = metrics.AUTHORITY_CLAIMS.labels("all")
_claims_unbound = metrics.AUTHORITY_CLAIMS.labels("unbound")
_claims_lingering = metrics.AUTHORITY_CLAIMS.labels("lingering")


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
        """`trail` is the cell's audit log, told of each record so that it is trimmed in time."""
        self.region = region
        self._objects = objects
        self._ports = ports
        self._who = controller("authority", cell=region)
        self._state = AuthorityState(region, objects, ports, LeaseBook(lease_ttl_s))
        self._commits = Commits(objects, ports, trail)
        self._rounds = CommitRounds(self._state, self._commits)
        self._heartbeats = Heartbeats(self._state, self._commits, self._who)
        self._chores = BackgroundJobs(self._state, self._rounds, self._commits, self._who)
        self._places = RecoverySlotAdmission(self._state, self._rounds, self._who)
        self._gangs = Gangs(self._state, self._rounds, self._commits, self._who)
        self._gathering = CommitBatcher(self._reserve_together)
        self._freed = asyncio.Event()
        """Something was given back while claims wait for others to leave."""
        self._apart: dict[asyncio.Task[Any], None] = {}
        self._followed_from: dict[str, int] = {}
        self._rejoins_at_s = 0.0

    # What callers ask

    async def reserve(self, who: Principal, request: ReserveRequest) -> PlacementResponse:
        """Claims, and with `bind` the bindings too, as soon as nothing has to be waited for.

        Every accepted item is durable when this returns, and so is the decision.
        """
        self._check_joined()
        if self._gangs.has_uncommitted_gang(request.items):
            job = ReserveJob(self._state, who, request.items, request.decision, bind=request.bind)
            answers = await self._answer(job)
            await self._record(job, request, answers)
            return answers
        return await self._gathering.submit(who, request)

    async def _reserve_together(self, who: Principal, requests: Sequence[ReserveRequest]) -> Sequence[PlacementResponse]:
        """One round for all of them; each gets what concerns it."""
        jobs = [ReserveJob(self._state, who, r.items, r.decision, bind=r.bind) for r in requests]
        whole = await self._answer(jobs[0] if len(jobs) == 1 else ReserveBatch(self._state, jobs))
        found, first = [], 0
        for job, request in zip(jobs, requests, strict=True):
            own = whole.results[first : first + len(job.items)]
            first += len(job.items)
            answers = msgspec.structs.replace(whole, results=own)
            await self._record(job, request, answers)
            found.append(answers)
        return found

    async def _record(self, job: ReserveJob, request: ReserveRequest, answers: PlacementResponse) -> None:
        """Keeps a decision of which nothing was accepted, where that is asked for."""
        if request.decision is not None and request.record_refused and not job.recorded():
            await self._shielded(self._chores.record_decision(job, answers.results))

    async def bind(self, who: Principal, request: BindRequest) -> PlacementResponse:
        self._check_joined()
        return await self._answer(BindHandler(self._state, who, request.items, request.decision))

    async def release(self, who: Principal, request: ReleaseRequest, *, token: FencingToken | None = None) -> PlacementResponse:
        """`token` is the asking controller's own leadership; a stale one raises StaleToken."""
        if token is not None:
            self._check_token(token)
        answers = await self._answer(ReleaseHandler(self._state, who, request.items, token))
        if self._state.ledger.unbound:
            self._freed.set()
        return answers

    async def renew(self, who: Principal, request: RenewRequest) -> PlacementResponse:
        """Heartbeats and registrations. Answered after the flush that makes them durable."""
        if not self._commits.leading:
            raise not_leader_error()
        answers = await self._heartbeats.renew(request.items)
        self._count("renew", answers)
        return PlacementResponse(tuple(answers), self._objects.head(BINDING), self.incarnation)

    # Life

    async def start(self, token: FencingToken) -> None:
        """Takes the token up and rebuilds ledger and lease book from the records."""
        await self._commits.take_token(token)
        self._state.load()
        self._rejoins_at_s = self._ports.clock.monotonic() + self._state.leases.grace_s
        self._rounds = CommitRounds(self._state, self._commits)
        self._chores = BackgroundJobs(self._state, self._rounds, self._commits, self._who)
        self._places = RecoverySlotAdmission(self._state, self._rounds, self._who)
        self._gangs = Gangs(self._state, self._rounds, self._commits, self._who)
        self._followed_from = {kind.name: self._objects.head(kind) for kind in (BINDING, RESERVATION, HOLD)}
        _log.info(
            "authority_started",
            region=self.region,
            token=token.revision,
            claims=len(self._state.ledger.claims),
            leases=len(self._state.leases.by_node),
        )

    def stop(self) -> None:
        """Refuses from now on. Commits in flight end as they end; their callers still get their answers."""
        self._commits.step_down("stopped")
        self._heartbeats.fail_pending()

    @property
    def leading(self) -> bool:
        return self._commits.leading

    async def run(self) -> None:
        """Does what falls due, until leadership is lost. Start it after `start`."""
        jobs: list[tuple[str, Coroutine[Any, Any, None]]] = [
            ("authority leases", self._renew_leases()),
            ("authority fences", self._fence_leases()),
            ("authority background jobs", self._do_chores()),
            ("authority bind preconditions", self._end_waits()),
            *((f"authority follows {kind.name}", self._follow(kind)) for kind in (BINDING, RESERVATION, HOLD)),
        ]
        tasks = [asyncio.create_task(work, name=name) for name, work in jobs]
        try:
            await self._commits.leadership_lost.wait()
        finally:
            self.stop()
            await cancel_and_wait(*tasks)

    async def tick(self) -> None:
        """Everything that is due now, once."""
        await self._heartbeats.flush()
        await self._heartbeats.fence()
        await self._tidy()
        await self._chores.release_orphans()
        await self._chores.report_usage()
        await self._chores.prune_decisions()

    # What is kept, for reading

    @property
    def ledger(self) -> Ledger:
        return self._state.ledger

    def rebuilt_ledger(self) -> Ledger:
        """The ledger as the published records alone would have it; equal to `ledger` whenever nothing is in flight."""
        state = self._state
        return rebuild_ledger(state.list_all(Node), state.list_all(RecoverySlot), state.list_all(Reservation), state.list_all(Binding))

    def lease_epoch(self, node: str) -> int:
        return self._state.leases.epoch(node)

    # Inside

    async def _answer(self, job: RoundJob) -> PlacementResponse:
        if not self._commits.leading:
            raise not_leader_error()
        started_s = self._ports.clock.monotonic()
        if isinstance(job, ReserveJob) and self._gangs.has_uncommitted_gang(job.items):
            settled = await self._shielded(self._gangs.reserve(job))
        else:
            settled = await self._shielded(self._rounds.process(job))
        metrics.AUTHORITY_COMMIT.labels(job.verb).observe(self._ports.clock.monotonic() - started_s)
        self._count(job.verb, settled.answers)
        return PlacementResponse(tuple(settled.answers), settled.revision or self._objects.head(BINDING))

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """A caller that goes away must not leave a commit without its end in the ledger."""
        task = asyncio.create_task(work)
        self._apart[task] = None
        task.add_done_callback(self._end_apart)
        return await asyncio.shield(task)

    def _end_apart(self, done: asyncio.Task[Any]) -> None:
        """Whoever asked may be gone: a fault nobody waits for any more is no failure."""
        self._apart.pop(done, None)
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
        """Which life of the cell this is: one more than it was restored from backups."""
        term = self._objects.get(_TERM, "", INCARNATION_TERM)
        return term.spec.term if isinstance(term, Term) else 1

    @property
    def restore_in_progress(self) -> bool:
        """Whether the cell was restored and has not yet let the leases of its former life run out."""
        term = self._objects.get(_TERM, "", INCARNATION_TERM)
        return isinstance(term, Term) and term.spec.holder == restore_records.RESTORE_IN_PROGRESS

    def _check_joined(self) -> None:
        if self.restore_in_progress:
            left_s = max(0.0, self._rejoins_at_s - self._ports.clock.monotonic())
            raise Unavailable(
                f"{self.region} was restored from a backup and rejoins: nothing is bound for {left_s:.0f} s more, "
                "until every agent was heard anew or is certain to have stopped",
                facts={"reason": Reason.RESTORE_IN_PROGRESS.value},
            )

    async def _rejoin(self) -> None:
        """Ends the waiting once no lease of the former incarnation can still be held by anyone."""
        if not self.restore_in_progress or self._ports.clock.monotonic() < self._rejoins_at_s:
            return
        term = self._objects.get(_TERM, "", INCARNATION_TERM)
        assert isinstance(term, Term)
        joined = msgspec.structs.replace(
            term,
            metadata=records.without_revision(term.metadata),
            spec=msgspec.structs.replace(term.spec, holder=restore_records.RESTORE_COMPLETE),
        )
        probe = stored(_TERM, term.metadata, lambda found: found.spec.holder == restore_records.RESTORE_COMPLETE)
        await self._commits.commit({restore_records.incarnation_key(): term.revision}, [records.put_object(_TERM, joined)], (), probe)
        _log.info("restore_completed", region=self.region, incarnation=term.spec.term)

    def _check_token(self, token: FencingToken) -> None:
        term = self._objects.get(_TERM, "", token.election)
        if term is None or term.revision != token.revision:
            raise StaleToken(
                f"token {token.revision} of election {token.election} is not the current term: someone else leads",
                facts={"token": token.revision, "current": term.revision if term is not None else 0},
            )

    async def _renew_leases(self) -> None:
        """What comes within a moment is made durable together; while nobody renews, nothing is done."""
        while self._commits.leading:
            gathering_s = await self._heartbeats.wait_for_renewals()
            await self._ports.clock.sleep(gathering_s)
            await self._try("flush", self._heartbeats.flush())

    async def _fence_leases(self) -> None:
        while self._commits.leading:
            await self._ports.clock.sleep(limits.AUTHORITY_TICK_S)
            await self._try("fence", self._heartbeats.fence())
            self._gauge()

    async def _do_chores(self) -> None:
        clock = self._ports.clock
        due = {"orphans": clock.monotonic(), "prune": clock.monotonic(), "use": clock.monotonic()}
        while self._commits.leading:
            await clock.sleep(limits.AUTHORITY_TICK_S)
            await self._try("tidy", self._tidy())
            now_s = clock.monotonic()
            for name, every_s, work in (
                ("use", limits.USAGE_REPORT_EVERY_S, self._chores.report_usage),
                ("orphans", limits.ORPHAN_CHECK_EVERY_S, self._chores.release_orphans),
                ("prune", limits.DECISION_PRUNE_EVERY_S, self._chores.prune_decisions),
            ):
                if now_s - due[name] >= every_s:
                    due[name] = now_s
                    await self._try(name, work())

    async def _end_waits(self) -> None:
        """Moves waiting claims on as soon as something is given back, not only at the next tick."""
        while self._commits.leading:
            await self._freed.wait()
            self._freed.clear()
            await self._try("waits", self._move_on())

    async def _move_on(self) -> None:
        await self._chores.promote()
        await self._rejoin()
        await self._gangs.commit_and_bind()

    async def _tidy(self) -> None:
        await self._chores.expire()
        await self._chores.remove_ended()
        await self._chores.confirm_provisional()
        await self._move_on()
        await self._places.admit()
        await self._places.sync_consumers()

    async def _try(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """A chore that fails is tried again at its next turn; nothing depends on one turn."""
        try:
            await work
        except Fault as fault:
            _log.info("background_job_failed", chore=what, reason=fault.reason, message=fault.message)
        except Exception:
            _log.exception("background_job_failed", chore=what)

    async def _follow(self, kind: Kind) -> None:
        """Notices what others removed (collector, operators) and what is held for recovery."""
        after = self._followed_from.get(kind.name, 0)
        while self._commits.leading:
            try:
                async for changes in self._objects.stream(kind, after=after):
                    for change in changes:
                        after = change.revision
                        self._seen(kind, change)
            except Expired:
                after = self._objects.head(kind)
                self._rounds.reload_all()
            except Fault as fault:
                _log.info("stream_ended", kind=kind.name, reason=fault.reason)
                await self._ports.clock.sleep(limits.BACKOFF_FIRST_S)

    def _seen(self, kind: Kind, change: ObjectChange) -> None:
        item = change.new or change.old
        if item is None:
            return
        if kind is HOLD:
            assert isinstance(item, RecoverySlot)
            self._rounds.slots_changed(item.spec.node, gone="" if change.new is not None else item.metadata.name)
        elif change.new is None:  # only the authority writes claims, and it has booked its own already
            self._rounds.claim_removed(item.metadata.namespace, item.metadata.name)

    def _gauge(self) -> None:
        monotonic_s = self._ports.clock.monotonic()
        book, ledger = self._state.leases, self._state.ledger
        metrics.AUTHORITY_LEASES.set(book.count_live(monotonic_s))
        _claims_all.set(len(ledger.claims))
        _claims_unbound.set(len(ledger.unbound))
        _claims_lingering.set(len(ledger.quota_released))
