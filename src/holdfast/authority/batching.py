"""Batches concurrent reserve requests into one commit round: one state read, one transaction, one audit record.

- Each request keeps its own Decision and its own responses, in order.
- Items are checked one by one, so a refused or conflicting item does not fail the others.
- Requests of different callers are never batched, because an audit record has one caller.
- A request never waits for a batch to fill.
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
from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.model.placement_api import PlacementResponse, PlacementResult, ReserveItem, ReserveRequest
from holdfast.model.principal import Principal

Q = TypeVar("Q")
A = TypeVar("A")


class _Item(NamedTuple):
    """One item and its request."""

    job: ReserveJob
    item: ReserveItem


class ReserveBatch:
    """Several reserve requests as one job."""

    def __init__(self, state: AuthorityState, jobs: Sequence[ReserveJob]) -> None:
        self.verb, self.caller = jobs[0].verb, jobs[0].caller
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
            out.extra_write_count = 1  # its Decision
        return out

    def extra_writes(
        self, taken: Sequence[tuple[int, CommitStep]], responses: Sequence[PlacementResult | None]
    ) -> ExtraWrites:
        """The Decisions of all requests with accepted items."""
        by_index = dict(taken)
        compares: dict[str, int] = {}
        extra = ExtraWrites(compares, [])
        first = 0
        for job in self._jobs:
            last = first + len(job.items)
            accepted = [(index - first, by_index[index]) for index in range(first, last) if index in by_index]
            if accepted:
                of_job = job.extra_writes(accepted, responses[first:last])
                compares.update(of_job.compares)
                extra.writes += of_job.writes
            first = last
        return extra


class WaitingCall(msgspec.Struct, Generic[Q, A], frozen=True):
    """A request whose caller waits for the future `response`."""

    request: Q
    response: asyncio.Future[A]


def fail(calls: Iterable[WaitingCall[Any, Any]], fault: Exception) -> None:
    for call in calls:
        if not call.response.done():
            call.response.set_exception(fault)


async def complete_together(
    calls: Sequence[WaitingCall[Q, A]], process: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]
) -> None:
    """Processes the calls in one batch and completes each. A Fault fails all of them. Any other exception is a bug that
    one call may trigger; the batch is split, so that it fails only that call."""

    async def send(some: Sequence[WaitingCall[Q, A]]) -> None:
        try:
            responses = await process([call.request for call in some])
        except Fault as fault:
            fail(some, fault)
            return
        for call, response in zip(some, responses, strict=True):
            if not call.response.done():
                call.response.set_result(response)

    try:
        await send_divided(calls, send, lambda call, bug: fail((call,), bug), (Exception,))
    except asyncio.CancelledError:
        fail(calls, not_leader_error())
        raise


Settle = Callable[[Principal, Sequence[ReserveRequest]], Awaitable[Sequence[PlacementResponse]]]


class CommitBatcher:
    """Takes requests one by one and has them settled together, as many as a batch holds."""

    def __init__(self, process: Settle) -> None:
        self._process = process
        self._waiting: dict[tuple[Principal, bool], list[WaitingCall[ReserveRequest, PlacementResponse]]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def submit(self, caller: Principal, request: ReserveRequest) -> PlacementResponse:
        loop = asyncio.get_running_loop()
        call: WaitingCall[ReserveRequest, PlacementResponse] = WaitingCall(request, loop.create_future())
        key = (caller, request.bind)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
            loop.call_soon(self._start, key)
        waiting.append(call)
        return await call.response

    def _start(self, key: tuple[Principal, bool]) -> None:
        waiting = self._waiting.pop(key)
        for some in batches(waiting, limits.PLACEMENT_BATCH_MAX, lambda call: len(call.request.items)):
            task = asyncio.create_task(
                complete_together(some, lambda requests: self._process(key[0], requests)), name="reserve batch"
            )
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
