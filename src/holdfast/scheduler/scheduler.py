"""The scheduler of a region: plans requests in batches and proposes placements to the authority.

- It proposes; only the authority commits. Its state may be stale, and several schedulers may race.
- A proposal counts as placed in its own snapshot until the claim is observed or the authority rejects it.
- A member is never proposed twice at once. If a response is lost, the scheduler reads the claim back first.
- Every pending request is retried, even if every event is lost (`request_queue`).
- One pass plans at most `limits.PLACEMENT_BATCH_MAX` replicas, or one gang, and then yields to other tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.controllers.informer import Informers
from holdfast.foundation import metrics
from holdfast.foundation.backoff import jittered_s
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import limits
from holdfast.model.active_policy import ActivePolicy, active_policy
from holdfast.model.binding import claim_name
from holdfast.model.decision import Decision, QueueState
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key
from holdfast.model.override import PLACEMENT_KINDS, has_begun_by, has_emergency_quota, is_in_force, is_in_scope
from holdfast.model.placement_api import ReserveRequest
from holdfast.model.quantity import Amounts
from holdfast.model.quota import GrantClass
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.scheduling_request import RefusalCount, RequestMember, SchedulingRequest
from holdfast.model.template import template_hash
from holdfast.model.times import micro_text, parse_time
from holdfast.scheduler.budgets import DecisionRecordBudget, EvictionBudget
from holdfast.scheduler.event_handlers import SchedulerEventHandlers
from holdfast.scheduler.proposals import InFlightProposals, SentProposals
from holdfast.scheduler.request_queue import NEVER, PendingRequest, RequestQueue
from holdfast.scheduler.shadow_plans import ShadowPlans
from holdfast.scheduler.sibling_status import CachedSiblingStatus
from holdfast.scheduler.status_reporter import StatusReporter
from holdfast.scheduling.equivalence import equivalence_key
from holdfast.scheduling.plan import ReplicaRequirements, RequestPlan, plan, requirements_of
from holdfast.scheduling.plan.decision_record import BatchContext, SnapshotBasis, build_decision, place_items
from holdfast.scheduling.queue_order import (
    deadline_reason_changes_in_s,
    dominant_shares,
    fair_slices,
    order_requests,
    raised_priorities,
)
from holdfast.scheduling.quota_headroom import headroom_of
from holdfast.scheduling.refusal_summary import retry_events
from holdfast.scheduling.snapshot import ClaimKey, SnapshotBuilder

# Batches planned from one sort of the queue. After them, it is sorted again, so that new requests get their position.
BATCHES_PER_SORT = 8
# Interval at which an unplaced request with unchanged reasons records another Decision.
UNPLACED_DECISION_REPEAT_S = 600.0
# Shortest sleep of the scheduler. A shorter one could end before the request is due, and the scheduler would spin.
SCHEDULER_SLEEP_MIN_S = 0.001

_SEED_BITS = 31

PlanObserver = Callable[[Sequence[tuple[SchedulingRequest, Decision]], float], None]
"""Called with the decisions of a planned batch and the time at which planning began. Must not raise or wait."""


class _BatchPart(msgspec.Struct, frozen=True):
    """Some members of one request, planned in this batch."""

    pending: PendingRequest
    members: tuple[RequestMember, ...]


class Scheduler:
    """The informers may be started before or after it."""

    def __init__(self, client: Client, informers: Informers, ports: Ports, region: str) -> None:
        self._region = region
        self._informers = informers
        self._ports = ports
        self._builder = SnapshotBuilder(region)
        self._queue = RequestQueue(ports.random)
        self._seed = ports.random.getrandbits(_SEED_BITS)
        self._batch = 0
        self._shares: dict[str, int] = {}
        self._evictions = EvictionBudget()
        self._records = DecisionRecordBudget()
        informers.of(Replica)
        self._sibling_status = CachedSiblingStatus(informers.cache)
        self._shadow = ShadowPlans(informers, ports)
        self._work_available = asyncio.Event()
        self._slots = asyncio.Semaphore(limits.BATCHES_IN_FLIGHT_MAX)
        self._sending: dict[asyncio.Task[None], None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._reporter = StatusReporter(client, ports, self._queue, self._pending)
        self._proposals = InFlightProposals(client, ports, self._builder, self._queue, refused=self._refused)
        self._watch = SchedulerEventHandlers(
            informers, ports, self._builder, self._queue, confirmed=self._confirmed, changed=self._work_available.set
        )
        self._log = structlog.get_logger().bind(controller="scheduler", cell=client.cell)
        self._placed = metrics.SCHEDULER_PLANNED.labels("Proposed")
        self._nominated = metrics.SCHEDULER_PLANNED.labels("Nominated")
        self._unplaced = metrics.SCHEDULER_PLANNED.labels("Unplaced")
        self._pending_gauge = metrics.SCHEDULER_REQUESTS.labels("Waiting")
        self._due_gauge = metrics.SCHEDULER_REQUESTS.labels("Due")
        self.observer: PlanObserver | None = None

    async def start(self) -> None:
        """Starts in the background; plans as soon as the caches are synced."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._run(), name="scheduler"),
                asyncio.create_task(self._reporter.run(), name="scheduler status"),
                asyncio.create_task(self._resync(), name="scheduler resync"),
            ]

    async def stop(self) -> None:
        """Stops planning. Proposals in flight are abandoned; the next scheduler finds their committed results."""
        tasks, self._tasks = self._tasks, []
        await cancel_and_wait(*tasks)
        await cancel_and_wait(*self._sending)

    # The loop

    async def _run(self) -> None:
        await self._informers.synced()
        while True:
            try:
                idle = await self._round()
            except Exception:
                # A failed round must not end scheduling; the pause prevents a busy loop.
                self._log.exception("round_failed")
                await self._ports.clock.sleep(limits.QUEUE_BACKOFF_FIRST_S)
                continue
            if idle:
                await self._wait()

    async def _wait(self) -> None:
        """Waits for a change, for the next due request, or for the expiry of an assumption."""
        wait_s = min(self._queue.next_due(), self._proposals.next_expiry()) - self._ports.clock.monotonic()
        if wait_s <= 0:
            await self._ports.clock.sleep(0)
            return
        # A wait below the clock's resolution could end too early, repeatedly. `wait_for` is not used, because it
        # swallows a cancellation that coincides with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wait_s == NEVER else max(wait_s, SCHEDULER_SLEEP_MIN_S)):
                await self._work_available.wait()

    async def _round(self) -> bool:
        """Orders the due requests and plans some batches of them. Returns whether there was nothing to do."""
        self._work_available.clear()
        now = self._ports.clock.monotonic()
        self._proposals.expire(now)
        due = self._queue.due(now)
        remaining = self._pending_members(due, now)
        self._pending_gauge.set(len(self._queue) - len(due))
        self._due_gauge.set(len(due))
        if not remaining:
            return True
        policy = self._policy()
        planned = 0
        ordered = self._order([pending for pending in due if pending.key in remaining], policy)
        for parts in self._batches(ordered, remaining, policy, now):
            await self._slots.acquire()
            self._plan_and_send(parts, policy)
            planned += 1
            if planned >= BATCHES_PER_SORT:
                break
            await self._ports.clock.sleep(0)
        await self._ports.clock.sleep(0)
        return not planned

    def _pending_members(self, due: Sequence[PendingRequest], now: float) -> dict[Key, list[RequestMember]]:
        """Pending members of the due requests. Requests without any become idle, and their status is updated."""
        remaining = {}
        for pending in due:
            members = self._unplaced_members(pending)
            if members:
                remaining[pending.key] = members
                continue
            self._queue.set_idle(pending, now)
            if pending.request.status.pending:
                self._reporter.mark_stale(pending.key)
        return remaining

    def _order(self, due: Sequence[PendingRequest], policy: ActivePolicy) -> list[PendingRequest]:
        by_key = {pending.key: pending for pending in due}
        total = self._builder.total_capacity()
        shares = self._shares = dominant_shares(self._builder.tenant_use(), total)
        raised = raised_priorities(self._builder.overrides(), self._ports.clock.now(), self._region)
        ordered = order_requests((w.request for w in due), policy.rules.queue, shares, raised)
        for position, request in enumerate(ordered, 1):
            pending = by_key[request.key]
            pending.position = position
            spec = request.spec
            pending.priority = max(
                spec.priority, raised.get((request.metadata.namespace, spec.workload), spec.priority)
            )
        return [by_key[request.key] for request in ordered]

    def _batches(
        self,
        ordered: Sequence[PendingRequest],
        remaining: dict[Key, list[RequestMember]],
        policy: ActivePolicy,
        now: float,
    ) -> Iterator[list[_BatchPart]]:
        """Cuts the queue into batches. A gang is never split. If a part fails, the rest of its request waits."""
        by_key = {pending.key: pending for pending in ordered}
        counts = {key: len(members) for key, members in remaining.items()}
        requests = [pending.request for pending in ordered]
        slices = fair_slices(requests, counts, policy.rules.queue, self._shares, self._builder.total_capacity())
        parts: list[_BatchPart] = []
        free = limits.PLACEMENT_BATCH_MAX
        for queue_slice in slices:
            pending, members = by_key[queue_slice.request.key], remaining[queue_slice.request.key]
            todo, remaining[queue_slice.request.key] = members[: queue_slice.members], members[queue_slice.members :]
            gang = queue_slice.request.spec.gang is not None
            while todo and pending.due_at <= now:
                taken = todo if gang else todo[:free]
                todo = todo[len(taken) :]
                parts.append(_BatchPart(pending, tuple(taken)))
                free -= len(taken)
                if free <= 0:
                    yield parts
                    parts, free = [], limits.PLACEMENT_BATCH_MAX
        if parts:
            yield parts

    def _plan_and_send(self, parts: list[_BatchPart], policy: ActivePolicy) -> None:
        """Plans one batch, assumes its proposals and sends them. There is no await in between."""
        try:
            sent = self._plan(parts, policy)
        except Exception:
            self._log.exception("planning_failed", requests=[str(part.pending.key) for part in parts])
            now = self._ports.clock.monotonic()
            for part in parts:
                self._queue.record_failure(part.pending, part.pending.refusals, now, retry_on=part.pending.retry_on)
            self._slots.release()
            return
        if not sent:
            self._slots.release()
            return
        task = asyncio.create_task(self._proposals.send(sent), name="scheduler proposals")
        self._sending[task] = None
        task.add_done_callback(self._on_sent)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._sending.pop(task, None)
        self._slots.release()
        self._work_available.set()

    def _plan(self, parts: list[_BatchPart], policy: ActivePolicy) -> list[SentProposals]:
        # The recorded time, with its rounding, so that a replay evaluates overrides at the same time.
        now = parse_time(micro_text(self._ports.clock.now()))
        headrooms = {tenant: self._headroom(tenant) for tenant in {part.pending.key.namespace: None for part in parts}}
        requirements_list = [self._requirements(part, policy, headrooms[part.pending.key.namespace]) for part in parts]
        basis = self._basis()
        snapshot = self._builder.freeze(max(basis.revisions.values()))
        with metrics.SCHEDULER_PLAN.time():
            planned = plan(
                snapshot, requirements_list, policy.rules, now, self._seed, sibling_status=self._sibling_status
            )
        context = BatchContext(planned, policy, now, basis, self._overrides_in_force(now))
        comparisons = self._shadow.compare(planned, requirements_list, now, self._sibling_status)
        sent = []
        ordinal = 0
        contested = bool(basis.assumed)
        for part, outcome, shadow in zip(parts, planned.request_plans, comparisons, strict=True):
            if contested and part.pending.planned_but_refused and not outcome.proposals:
                # The authority refused its last plan, so there was capacity. Proposals in flight may be refused too:
                # retry soon instead of reporting Unschedulable and backing off.
                self._queue.retry_soon(part.pending, self._ports.clock.monotonic())
                continue
            wake_up_at = self._apply_plan(part.pending, outcome, now, contested=contested)
            contested = contested or bool(outcome.proposals)
            if not outcome.proposals and not self._should_record(part.pending, outcome):
                continue
            decision = build_decision(
                context,
                outcome,
                part.pending.request,
                ordinal=ordinal,
                queue=self._queue_state(part.pending),
                unique=self._ports.ids.uid(),
                wake_up_at=wake_up_at,
                shadow=shadow,
            )
            items = place_items(outcome, part.pending.request, policy.revision)
            # The next plan may assume these proposals; its replay needs this decision.
            stored = bool(items) or self._should_store_refused(part.pending, outcome)
            request = ReserveRequest(items, decision=decision, record_refused=stored)
            sent.append(self._assume(part.pending, outcome, request, basis.batch))
            ordinal += bool(items)
            self._evictions.add(outcome.requirements.namespace, outcome.evictions)
        if self.observer is not None:
            made = ((one.pending.request, one.request.decision) for one in sent)
            self.observer([(request, decision) for request, decision in made if decision is not None], now)
        return sent

    def _requirements(self, part: _BatchPart, policy: ActivePolicy, headroom: Amounts | None) -> ReplicaRequirements:
        request = part.pending.request
        remaining = 0
        if request.spec.may_preempt and policy.rules.preemption.enabled:
            allowed = policy.rules.preemption.per_tenant_per_minute
            remaining = self._evictions.remaining(request.metadata.namespace, allowed, self._ports.clock.monotonic())
        return requirements_of(
            request,
            part.members,
            bound_members=self._bound_members(part.pending),
            evictions_left=remaining,
            quota_headroom=headroom,
            excluded_victims=self._queue.excluded_victims(part.pending, self._ports.clock.monotonic()),
        )

    def _headroom(self, tenant: str) -> Amounts | None:
        """The tenant's quota headroom, including proposals in flight."""
        copies = self._informers.cache.list(GrantCopy, tenant)
        now, overrides = self._ports.clock.now(), self._builder.overrides()
        emergency = has_emergency_quota(overrides, region=self._region, tenant=tenant, now=now)
        return headroom_of(copies, self._builder.ordinary_use(tenant), now, emergency=emergency)

    def _basis(self) -> SnapshotBasis:
        """The inputs of the snapshot that is frozen next."""
        self._batch += 1
        assumed, adopted = self._proposals.assumed_batches()
        return SnapshotBasis(
            batch=f"{self._seed:08x}-{self._batch}",
            revisions=self._watch.revisions(),
            newer_objects=self._watch.newer_objects(),
            assumed=assumed,
            adopted=adopted,
        )

    def _equivalence(self, pending: PendingRequest) -> bytes:
        """The request's equivalence class. While maintenance is announced, requests of one class differ: those that
        can finish or move before its start may be placed."""
        now = self._ports.clock.now()
        announced = any(
            o.spec.maintenance is not None and is_in_force(o, now) and not has_begun_by(o, now)
            for o in self._builder.overrides()
        )
        return b"" if announced else equivalence_key(pending.request)

    def _overrides_in_force(self, now: float) -> tuple[str, ...]:
        """Active overrides that affect placement in this region; others are not recorded in Decisions."""
        return tuple(
            o.metadata.name
            for o in self._builder.overrides()
            if o.spec.kind in PLACEMENT_KINDS
            and is_in_force(o, now)
            and is_in_scope(o, region=self._region, tenant=None, workload=None)
        )

    def _should_record(self, pending: PendingRequest, outcome: RequestPlan) -> bool:
        """Whether a failed attempt is recorded as a Decision: the reasons are new or the last record is old, within the
        rate limit."""
        now = self._ports.clock.monotonic()
        reasons = tuple(refusal.reason for refusal in outcome.refusals)
        if reasons == pending.recorded_reasons and now - pending.recorded_at < UNPLACED_DECISION_REPEAT_S:
            return False
        if not self._records.spend(now):
            return False
        pending.recorded_reasons, pending.recorded_at = reasons, now
        return True

    def _should_store_refused(self, pending: PendingRequest, outcome: RequestPlan) -> bool:
        """Whether the Decision is stored even if the authority rejects all of it: the first time, then rate limited."""
        if not outcome.proposals:
            return True  # already checked by `_should_record`
        now = self._ports.clock.monotonic()
        return now - pending.refused_at >= UNPLACED_DECISION_REPEAT_S and self._records.spend(now)

    def _queue_state(self, pending: PendingRequest) -> QueueState:
        request = pending.request
        copy = self._informers.cache.list(GrantCopy, request.metadata.namespace)
        normal = next((c for c in copy if c.spec.grant_class is GrantClass.NORMAL), None)
        return QueueState(
            position=pending.position,
            waiting=len(self._queue),
            priority=pending.priority,
            deadline=request.spec.deadline,
            share=self._shares.get(request.metadata.namespace, 0),
            attempts=pending.attempts,
            limit=normal.spec.limit if normal is not None else {},
            used=normal.status.used if normal is not None else {},
        )

    def _apply_plan(
        self, pending: PendingRequest, outcome: RequestPlan, now: float, *, contested: bool
    ) -> float | None:
        """Records the outcome in the queue; returns the retry time of unplaced members. `contested`: other proposals
        were planned before it."""
        nominated = sum(bool(proposal.victims) for proposal in outcome.proposals)
        self._placed.inc(len(outcome.proposals) - nominated)
        if nominated:
            self._nominated.inc(nominated)
        if not outcome.unplaced:
            return None
        pending.planned_but_refused = False
        self._unplaced.inc(len(outcome.unplaced))
        pause_s = self._record_failure(
            pending, outcome.refusals, equivalence=self._equivalence(pending), outcompeted=contested
        )
        return now + pause_s

    def _assume(
        self, pending: PendingRequest, outcome: RequestPlan, request: ReserveRequest, batch: str
    ) -> SentProposals:
        claims = []
        if outcome.proposals:
            self._proposals.count_decision(batch)
        for proposal in outcome.proposals:
            key = ClaimKey(outcome.requirements.namespace, claim_name(proposal.member.name, proposal.member.attempt))
            claim = outcome.requirements.claim(proposal.node, proposal.member, proposal.devices, proposal.victims)
            self._proposals.assume(key, claim, batch)
            claims.append(key)
        return SentProposals(pending, outcome, request, tuple(claims))

    # Bookkeeping

    def _refused(self, pending: PendingRequest, refusals: tuple[RefusalCount, ...]) -> None:
        """The authority rejected some of the proposals, or did not respond."""
        pending.refused_at = self._ports.clock.monotonic()
        self._record_failure(pending, refusals, equivalence=b"")
        pending.planned_but_refused = True
        self._work_available.set()

    def _record_failure(
        self,
        pending: PendingRequest,
        refusals: tuple[RefusalCount, ...],
        *,
        equivalence: bytes,
        outcompeted: bool = False,
    ) -> float:
        clock = self._ports.clock
        # Retry when the deadline reason changes, so that it is reported in time.
        within_s = deadline_reason_changes_in_s(pending.request, clock.now())
        retry_on = retry_events(refusal.reason for refusal in refusals)
        pause_s = self._queue.record_failure(
            pending,
            refusals,
            clock.monotonic(),
            retry_on=retry_on,
            equivalence=equivalence,
            within_s=within_s,
            outcompeted=outcompeted,
        )
        pending.next_retry_at = micro_text(clock.now() + pause_s)
        self._reporter.mark_stale(pending.key)
        return pause_s

    def _confirmed(self, key: ClaimKey) -> None:
        self._proposals.confirm(key)

    def _unplaced_members(self, pending: PendingRequest) -> list[RequestMember]:
        return [member for member in pending.members() if not self._builder.has_claim(member.uid)]

    def _bound_members(self, pending: PendingRequest) -> int:
        """Number of gang members that have a claim, in this request or not: a lost member is replaced alone."""
        if pending.request.spec.gang is None:
            return 0
        spec = pending.request.spec
        return self._builder.retained_claims(
            pending.request.metadata.namespace, spec.workload, template_hash(spec.template)
        )

    def _pending(self, pending: PendingRequest) -> int:
        return len(self._unplaced_members(pending))

    def _policy(self) -> ActivePolicy:
        revisions = self._informers.cache.list(PolicyRevision)
        return active_policy(revisions, self._builder.overrides(), self._region, self._ports.clock.now())

    async def _resync(self) -> None:
        """Checks every request periodically, in case events were lost."""
        await self._informers.synced()
        while True:
            await self._ports.clock.sleep(jittered_s(self._informers.resync_s, self._ports.random))
            now = self._ports.clock.monotonic()
            self._queue.resync(now)
            self._proposals.expire(now)
            self._work_available.set()
