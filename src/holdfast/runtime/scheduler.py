"""The scheduler of a region: plans requests in batches and proposes places to the authority.

What always holds:

- It proposes; only the authority commits. Everything it knows may be stale, and any number of schedulers may race.
- What it proposed counts as taken in its own snapshot until the record shows up or the answer says no.
- A member is never proposed twice at once; after a lost answer it reads by intent before anything else.
- Whatever has no place is tried again, even if every event was lost (`request_queue`).
- One pass of the loop plans at most `limits.BATCH` replicas (or one gang) and then lets others run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.flow.active_policy import ActivePolicy, active_policy
from holdfast.flow.explain import wake_on
from holdfast.flow.plan import AskPlan, ask_of, plan
from holdfast.flow.plan.record import Setting, reserve_request
from holdfast.flow.queue_order import dominant_shares, in_order, raised_ranks
from holdfast.flow.snapshot import ClaimKey, SnapshotBuilder
from holdfast.model import limits
from holdfast.model.binding import claim_name
from holdfast.model.placement import ReserveRequest
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.scheduling_request import Member, RefusalCount
from holdfast.model.times import micro_text
from holdfast.runtime import metrics
from holdfast.runtime.backoff import jittered_s
from holdfast.runtime.informer import Informers
from holdfast.runtime.ports import Ports
from holdfast.runtime.proposals import Proposals, Sent
from holdfast.runtime.request_queue import NEVER, RequestQueue, Waiting
from holdfast.runtime.scheduler_status import StatusReporter
from holdfast.runtime.scheduler_watch import SchedulerWatch
from holdfast.runtime.tasks import end

_SEED_BITS = 31


class _Part(msgspec.Struct, frozen=True):
    """Some members of one request, to be planned now."""

    waiting: Waiting
    members: tuple[Member, ...]


class Scheduler:
    """Start it after construction; the informers may be started before or after."""

    def __init__(self, client: Client, informers: Informers, ports: Ports, region: str) -> None:
        self._region = region
        self._informers = informers
        self._ports = ports
        self._builder = SnapshotBuilder(region)
        self._queue = RequestQueue(ports.random)
        self._seed = ports.random.getrandbits(_SEED_BITS)
        self._work = asyncio.Event()
        self._slots = asyncio.Semaphore(limits.BATCHES_IN_FLIGHT)
        self._sending: dict[asyncio.Task[None], None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._reporter = StatusReporter(client, ports, self._queue, self._pending)
        self._proposals = Proposals(client, ports, self._builder, self._queue, refused=self._refused)
        self._watch = SchedulerWatch(
            informers, ports, self._builder, self._queue, settled=self._settled, changed=self._work.set
        )
        self._log = structlog.get_logger().bind(controller="scheduler", cell=client.cell)
        self._placed = metrics.SCHEDULER_PLANNED.labels("Proposed")
        self._unplaced = metrics.SCHEDULER_PLANNED.labels("Unplaced")
        self._waiting_gauge = metrics.SCHEDULER_REQUESTS.labels("Waiting")
        self._due_gauge = metrics.SCHEDULER_REQUESTS.labels("Due")

    async def start(self) -> None:
        """Starts in the background; plans as soon as the caches are filled."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._run(), name="scheduler"),
                asyncio.create_task(self._reporter.run(), name="scheduler status"),
                asyncio.create_task(self._resync(), name="scheduler resync"),
            ]

    async def stop(self) -> None:
        """Stops planning. Proposals under way are abandoned: whoever comes next finds what became of them on record."""
        tasks, self._tasks = self._tasks, []
        await end(*tasks)
        await end(*self._sending)

    # The loop

    async def _run(self) -> None:
        await self._informers.synced()
        while True:
            try:
                idle = await self._round()
            except Exception:
                # A mistake in one round must not end scheduling; the pause keeps it from spinning.
                self._log.exception("round_failed")
                await self._ports.clock.sleep(limits.QUEUE_BACKOFF_FIRST_S)
                continue
            if idle:
                await self._rest()

    async def _rest(self) -> None:
        """Until something changed, or the next request is due."""
        wait_s = self._queue.next_due() - self._ports.clock.monotonic()
        if wait_s <= 0:
            await self._ports.clock.sleep(0)
            return
        try:
            await asyncio.wait_for(self._work.wait(), None if wait_s == NEVER else wait_s)
        except TimeoutError:
            return

    async def _round(self) -> bool:
        """Orders what is due and plans some batches of it; whether there was nothing to do."""
        self._work.clear()
        now = self._ports.clock.monotonic()
        self._proposals.expire(now)
        due = self._queue.due(now)
        self._waiting_gauge.set(len(self._queue) - len(due))
        self._due_gauge.set(len(due))
        if not due:
            return True
        policy = self._policy()
        planned = 0
        for parts in self._batches(self._ordered(due, policy), now):
            await self._slots.acquire()
            self._launch(parts, policy)
            planned += 1
            if planned >= limits.BATCHES_PER_ORDER:
                break
            await self._ports.clock.sleep(0)
        await self._ports.clock.sleep(0)
        return not planned

    def _ordered(self, due: Sequence[Waiting], policy: ActivePolicy) -> list[Waiting]:
        by_key = {waiting.key: waiting for waiting in due}
        total = self._builder.total_capacity()
        shares = dominant_shares(self._builder.tenant_use(), total)
        ranks = raised_ranks(self._builder.overrides(), self._ports.clock.now())
        ordered = in_order((w.request for w in due), policy.rules.queue, shares, ranks)
        for position, request in enumerate(ordered, 1):
            by_key[request.key].position = position
        return [by_key[request.key] for request in ordered]

    def _batches(self, ordered: Sequence[Waiting], now: float) -> Iterator[list[_Part]]:
        """Cuts the queue into batches. A gang is never cut; what a failed part has left waits for its own turn."""
        parts: list[_Part] = []
        room = limits.BATCH
        for waiting in ordered:
            left = self._without_place(waiting)
            if not left:
                waiting.due_at = NEVER
                if waiting.request.status.pending:
                    self._reporter.mark(waiting.key)
            gang = waiting.request.spec.gang is not None
            while left and waiting.due_at <= now:
                taken = left if gang else left[:room]
                left = left[len(taken) :]
                parts.append(_Part(waiting, tuple(taken)))
                room -= len(taken)
                if room <= 0:
                    yield parts
                    parts, room = [], limits.BATCH
        if parts:
            yield parts

    def _launch(self, parts: list[_Part], policy: ActivePolicy) -> None:
        """Plans one batch, assumes its outcome, and sends it. Nothing is awaited in here."""
        try:
            sent = self._plan(parts, policy)
        except Exception:
            self._log.exception("planning_failed", requests=[str(part.waiting.key) for part in parts])
            now = self._ports.clock.monotonic()
            for part in parts:
                self._queue.in_vain(part.waiting, part.waiting.refusals, now)
            self._slots.release()
            return
        if not sent:
            self._slots.release()
            return
        task = asyncio.create_task(self._proposals.send(sent), name="scheduler proposals")
        self._sending[task] = None
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.pop(task, None)
        self._slots.release()
        self._work.set()

    def _plan(self, parts: list[_Part], policy: ActivePolicy) -> list[Sent]:
        clock = self._ports.clock
        now = clock.now()
        asks = [ask_of(part.waiting.request, part.members, bound=self._bound(part.waiting)) for part in parts]
        with metrics.SCHEDULER_PLAN.time():
            made = plan(self._builder.freeze(self._watch.revision), asks, policy.rules, now, self._seed)
        setting = Setting(made, policy, now)
        sent = []
        for part, outcome in zip(parts, made.asks, strict=True):
            wake_up_at = self._settle_plan(part.waiting, outcome, now)
            if outcome.proposals:
                request = reserve_request(
                    setting, outcome, part.waiting.request, unique=self._ports.ids.uid(), wake_up_at=wake_up_at
                )
                sent.append(self._assume(part.waiting, outcome, request))
        return sent

    def _settle_plan(self, waiting: Waiting, outcome: AskPlan, now: float) -> float | None:
        """Books the outcome in the queue; answers when the unplaced are tried again."""
        self._placed.inc(len(outcome.proposals))
        if not outcome.unplaced:
            return None
        self._unplaced.inc(len(outcome.unplaced))
        pause_s = self._vain(waiting, outcome.refusals)
        return now + pause_s

    def _assume(self, waiting: Waiting, outcome: AskPlan, request: ReserveRequest) -> Sent:
        claims = []
        for proposal in outcome.proposals:
            key = ClaimKey(outcome.ask.namespace, claim_name(proposal.member.name, proposal.member.attempt))
            self._proposals.assume(key, outcome.ask.claim(proposal.node, proposal.member, proposal.devices))
            claims.append(key)
        return Sent(waiting, outcome, request, tuple(claims))

    # Bookkeeping

    def _refused(self, waiting: Waiting, refusals: tuple[RefusalCount, ...]) -> None:
        """The authority said no to some of the proposals, or did not answer."""
        self._vain(waiting, refusals)
        self._work.set()

    def _vain(self, waiting: Waiting, refusals: tuple[RefusalCount, ...]) -> float:
        clock = self._ports.clock
        pause_s = self._queue.in_vain(waiting, refusals, clock.monotonic())
        waiting.wake_on = wake_on(refusal.reason for refusal in refusals)
        waiting.next_try_at = micro_text(clock.now() + pause_s)
        self._reporter.mark(waiting.key)
        return pause_s

    def _settled(self, key: ClaimKey) -> None:
        self._proposals.settled(key)

    def _without_place(self, waiting: Waiting) -> list[Member]:
        return [member for member in waiting.members() if not self._builder.has_claim(member.uid)]

    def _bound(self, waiting: Waiting) -> int:
        if waiting.request.spec.gang is None:
            return 0
        return sum(self._builder.has_claim(member.uid) for member in waiting.request.spec.members)

    def _pending(self, waiting: Waiting) -> int:
        return len(self._without_place(waiting))

    def _policy(self) -> ActivePolicy:
        revisions = self._informers.cache.list(PolicyRevision)
        return active_policy(revisions, self._builder.overrides(), self._region, self._ports.clock.now())

    async def _resync(self) -> None:
        """Looks at every request from time to time, whatever was or was not heard."""
        await self._informers.synced()
        while True:
            await self._ports.clock.sleep(jittered_s(limits.RESYNC_S, self._ports.random))
            now = self._ports.clock.monotonic()
            self._queue.resync(now)
            self._proposals.expire(now)
            self._work.set()
