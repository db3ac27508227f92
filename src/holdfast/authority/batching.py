"""Reserve requests of one moment share a round: one look at the world, one transaction, one audit record.

What always holds: every request keeps its own decision and its own answers, in its own order; one that is refused, or
whose objects moved, spoils nothing for the others, as items are judged one by one (`rounds`). Requests of different
callers never share a record. Nothing waits for company: what is there when the loop comes round goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from holdfast.authority.commit_rounds import CommitStep, ExtraWrites
from holdfast.authority.commits import not_leader_error
from holdfast.authority.reserve import ReserveJob, RoundState
from holdfast.authority.state import AuthorityState
from holdfast.foundation.batches import batches, send_divided
from holdfast.gate.principal import Principal
from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.model.placement_api import PlacementResponse, PlacementResult, ReserveItem, ReserveRequest

Q = TypeVar("Q")
A = TypeVar("A")


class _Item(NamedTuple):
    """One item, and whose it is."""

    job: ReserveJob
    item: ReserveItem


class ReserveBatch:
    """Several reserve requests as one job."""

    def __init__(self, state: AuthorityState, jobs: Sequence[ReserveJob]) -> None:
        self.verb, self.who = jobs[0].verb, jobs[0].who
        self.items = [_Item(job, item) for job in jobs for item in job.items]
        self._state = state
        self._jobs = jobs

    def begin_round(self) -> None:
        world = RoundState(self._state)
        for job in self._jobs:
            job.begin_round(world)

    def identity(self, item: _Item) -> str:
        return item.job.identity(item.item)

    def plan(self, item: _Item) -> CommitStep | PlacementResult:
        out = item.job.plan(item.item)
        if isinstance(out, CommitStep):
            out.extra_write_count = 1  # its decision, at most
        return out

    def extra_writes(self, taken: Sequence[tuple[int, CommitStep]], answers: Sequence[PlacementResult | None]) -> ExtraWrites:
        """The decisions of all requests that something was accepted of."""
        by_index = dict(taken)
        compares: dict[str, int] = {}
        extra = ExtraWrites(compares, [])
        first = 0
        for job in self._jobs:
            last = first + len(job.items)
            own = [(index - first, by_index[index]) for index in range(first, last) if index in by_index]
            if own:
                more = job.extra_writes(own, answers[first:last])
                compares.update(more.compares)
                extra.writes += more.writes
            first = last
        return extra


class WaitingCall(msgspec.Struct, Generic[Q, A], frozen=True):
    """A request whose caller waits for `answer`."""

    request: Q
    answer: asyncio.Future[A]


def fail(calls: Iterable[WaitingCall[Any, Any]], fault: Exception) -> None:
    for each in calls:
        if not each.answer.done():
            each.answer.set_exception(fault)


async def answer_together(
    calls: Sequence[WaitingCall[Q, A]], settle: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]
) -> None:  # fmt: skip
    """Has the calls settled at once and answers each. A fault is the answer to all of them; any other exception is a
    bug that one call may bring out, and must not cost the others their answers."""

    async def send(some: Sequence[WaitingCall[Q, A]]) -> None:
        try:
            answers = await settle([each.request for each in some])
        except Fault as fault:
            fail(some, fault)
            return
        for each, answer in zip(some, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answer)

    try:
        await send_divided(calls, send, lambda each, bug: fail((each,), bug), (Exception,))
    except asyncio.CancelledError:
        fail(calls, not_leader_error())
        raise


Settle = Callable[[Principal, Sequence[ReserveRequest]], Awaitable[Sequence[PlacementResponse]]]


class CommitBatcher:
    """Takes requests one by one and has them settled together, as many as a batch holds."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._asked: dict[tuple[Principal, bool], list[WaitingCall[ReserveRequest, PlacementResponse]]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def submit(self, who: Principal, request: ReserveRequest) -> PlacementResponse:
        loop = asyncio.get_running_loop()
        asked: WaitingCall[ReserveRequest, PlacementResponse] = WaitingCall(request, loop.create_future())
        key = (who, request.bind)
        waiting = self._asked.get(key)
        if waiting is None:
            waiting = self._asked[key] = []
            loop.call_soon(self._begin, key)
        waiting.append(asked)
        return await asked.answer

    def _begin(self, key: tuple[Principal, bool]) -> None:
        waiting = self._asked.pop(key)
        for some in batches(waiting, limits.PLACEMENT_BATCH_MAX, lambda asked: len(asked.request.items)):
            task = asyncio.create_task(
                answer_together(some, lambda requests: self._settle(key[0], requests)), name="reserve batch"
            )
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
