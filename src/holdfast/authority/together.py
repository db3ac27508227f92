"""Reserve requests of one moment share a round: one look at the world, one transaction, one audit record.

What always holds: every request keeps its own decision and its own answers, in its own order; one that is refused, or
whose objects moved, spoils nothing for the others, as items are judged one by one (`rounds`). Requests of different
callers never share a record. Nothing waits for company: what is there when the loop comes round goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.authority.reserve import Placing, World
from holdfast.authority.rounds import Extra, Step
from holdfast.authority.state import State
from holdfast.gate.principal import Principal
from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.model.placement import Answer, Answers, PlaceItem, ReserveRequest


class _Item(NamedTuple):
    """One item, and whose it is."""

    job: Placing
    item: PlaceItem


class Together:
    """Several reserve requests as one job."""

    def __init__(self, state: State, jobs: Sequence[Placing]) -> None:
        self.verb, self.who = jobs[0].verb, jobs[0].who
        self.items = [_Item(job, item) for job in jobs for item in job.items]
        self._state = state
        self._jobs = jobs

    def begin(self) -> None:
        world = World(self._state)
        for job in self._jobs:
            job.begin(world)

    def identity(self, item: _Item) -> str:
        return item.job.identity(item.item)

    def plan(self, item: _Item) -> Step | Answer:
        out = item.job.plan(item.item)
        if isinstance(out, Step):
            out.beside = 1  # its decision, at most
        return out

    def extra(self, taken: Sequence[tuple[int, Step]], answers: Sequence[Answer | None]) -> Extra:
        """The decisions of all requests that something was accepted of."""
        by_index = dict(taken)
        compares: dict[str, int] = {}
        extra = Extra(compares, [])
        first = 0
        for job in self._jobs:
            last = first + len(job.items)
            own = [(index - first, by_index[index]) for index in range(first, last) if index in by_index]
            if own:
                more = job.extra(own, answers[first:last])
                compares.update(more.compares)
                extra.writes += more.writes
            first = last
        return extra


class _Asked(msgspec.Struct, frozen=True):
    request: ReserveRequest
    answered: asyncio.Future[Answers]


Settle = Callable[[Principal, Sequence[ReserveRequest]], Awaitable[Sequence[Answers]]]


class Gathering:
    """Takes requests one by one and has them settled together, as many as a batch holds."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._asked: dict[tuple[Principal, bool], list[_Asked]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def ask(self, who: Principal, request: ReserveRequest) -> Answers:
        loop = asyncio.get_running_loop()
        asked = _Asked(request, loop.create_future())
        key = (who, request.bind)
        waiting = self._asked.get(key)
        if waiting is None:
            waiting = self._asked[key] = []
            loop.call_soon(self._begin, key)
        waiting.append(asked)
        return await asked.answered

    def _begin(self, key: tuple[Principal, bool]) -> None:
        waiting = self._asked.pop(key)
        while waiting:
            size = count = 0
            while count < len(waiting) and (not count or size + len(waiting[count].request.items) <= limits.BATCH):
                size += len(waiting[count].request.items)
                count += 1
            some, waiting = waiting[:count], waiting[count:]
            task = asyncio.create_task(self._answer(key[0], some), name="reserve together")
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _answer(self, who: Principal, some: Sequence[_Asked]) -> None:
        try:
            answers = await self._settle(who, [asked.request for asked in some])
        except asyncio.CancelledError:
            for asked in some:
                asked.answered.cancel()
            raise
        except Exception as fault:
            if len(some) > 1 and not isinstance(fault, Fault):
                # A mistake that one request brings out must not cost the others their answers.
                for asked in some:
                    await self._answer(who, [asked])
                return
            for asked in some:
                if not asked.answered.done():
                    asked.answered.set_exception(fault)
            return
        for asked, answer in zip(some, answers, strict=True):
            if not asked.answered.done():
                asked.answered.set_result(answer)
