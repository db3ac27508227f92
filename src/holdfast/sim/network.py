"""Simulated network: calls and streams between processes, with partitions per direction, latency and loss.

A call runs in the called process and dies with it. Its response may be lost; then the caller gets an ambiguous result.
A paused process accepts a call and executes it late.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from holdfast.client.contract import Client
from holdfast.model.errors import Ambiguous, Expired, Fault, Overloaded, Unavailable
from holdfast.sim.fault_injection import FaultInjector, FaultKind
from holdfast.sim.loop import Process, VirtualLoop

T = TypeVar("T")

LATENCY_S = (0.0005, 0.02)
CALL_TIMEOUT_S = (1.0, 10.0)
REFUSED_S = (0.01, 0.5)
BREAK_NOTICED_S = (0.5, 10.0)
"""Delay until a broken connection is detected."""
DELAY_S = (0.5, 20.0)
STALL_S = (10.0, 120.0)
SLOW_REPLY_S = (0.2, 6.0)
REPORT_DELAY_S = (0.5, 40.0)
"""On its way, beyond the time for which the agent waits: newer reports overtake it."""
AGENT_CALLER = "node/"
OVERLOAD_REJECT_FRACTION = 0.8
"""Share of calls that an overloaded cell rejects."""


class CallTarget(Protocol):
    """A host that serves calls: its current process, and a client inside it for a caller."""

    name: str
    overloaded: bool

    def serving_process(self) -> Process | None: ...

    def client_for(self, caller: str) -> Client: ...


class Pipe(Generic[T]):
    """Buffer of one stream: delivered items that are not read yet, and the final fault."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._items: deque[T] = deque()
        self._fault: Fault | None = None
        self._reader: asyncio.Future[None] | None = None
        self.closed = False
        self.stalled = False
        self.due_s = 0.0
        """Arrival time of the last item in flight. Items keep their order."""

    def put(self, item: T) -> None:
        if self._fault is None and not self.closed:
            self._items.append(item)
            self._wake()

    def fail(self, fault: Fault) -> None:
        if self._fault is None:
            self._fault = fault
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> T:
        while not self._items:
            if self._fault is not None:
                raise self._fault
            self._reader = self._loop.create_future()
            await self._reader
        return self._items.popleft()


class Network:
    """Partitions, calls and streams between callers (`region/east`, `node/east/n1`, `operator`) and hosts
    (`global`)."""

    def __init__(self, loop: VirtualLoop, faults: FaultInjector, rng: random.Random) -> None:
        self.loop = loop
        self.faults = faults
        self._rng = rng
        self._cut: dict[tuple[str, str], int] = {}
        """Blocked directions with the number of active partitions."""
        self._open: dict[Process, dict[int, Callable[[Fault], None]]] = {}
        self._number = 0

    # Partitions

    def cut(self, source: str, target: str) -> None:
        """Blocks messages from `source` to `target` until the same number of `restore` calls."""
        self._cut[(source, target)] = self._cut.get((source, target), 0) + 1

    def restore(self, source: str, target: str) -> None:
        left = self._cut.get((source, target), 0) - 1
        if left > 0:
            self._cut[(source, target)] = left
        else:
            self._cut.pop((source, target), None)

    def heal(self) -> None:
        self._cut.clear()

    def reachable(self, source: str, target: str) -> bool:
        return (source, target) not in self._cut

    def reset(self, process: Process) -> None:
        """Fails the open calls and streams of a crashed process after a short delay."""
        for notice in self._open.pop(process, {}).values():
            fault = Unavailable(f"{process.name} closed the connection (simulated)")
            self.loop.call_from_environment(self._rng.uniform(*REFUSED_S), notice, fault)

    def _register(self, process: Process, notice: Callable[[Fault], None]) -> int:
        self._number += 1
        self._open.setdefault(process, {})[self._number] = notice
        return self._number

    def _unregister(self, process: Process, number: int) -> None:
        self._open.get(process, {}).pop(number, None)

    # Calls

    async def call(
        self,
        caller: str,
        host: CallTarget,
        work: Callable[[Client], Coroutine[Any, Any, T]],
        *,
        writes: bool,
        own_lane: bool = False,
    ) -> T:
        """Sends a call and returns its response, or fails as a network does. Lease renewals are exempt from
        overload."""
        answer: asyncio.Future[T] = self.loop.create_future()
        if not self.reachable(caller, host.name):
            await asyncio.sleep(self._rng.uniform(*CALL_TIMEOUT_S))
            raise Unavailable(f"{host.name} is unreachable from {caller} (simulated)")
        if host.overloaded and not own_lane and self._rng.random() < OVERLOAD_REJECT_FRACTION:
            await asyncio.sleep(self._latency_s())
            raise Overloaded(f"{host.name} is overloaded (simulated)", retry_after_s=self._rng.uniform(0.5, 3.0))
        lost = self.faults.draw(FaultKind.CALL_LOST, caller) is not None
        if not lost:
            way_s = self._latency_s()
            if writes and not own_lane and caller.startswith(AGENT_CALLER):
                held_up = self.faults.draw(FaultKind.REPORT_DELAYED, caller)
                way_s += held_up.uniform(*REPORT_DELAY_S) if held_up is not None else 0.0
            self.loop.call_from_environment(way_s, self._arrive, caller, host, work, answer, writes)
        timer = self.loop.call_later(CALL_TIMEOUT_S[1], self._give_up, answer, host.name, writes)
        try:
            return await answer
        finally:
            timer.cancel()

    def _arrive(
        self,
        caller: str,
        host: CallTarget,
        work: Callable[[Client], Coroutine[Any, Any, T]],
        answer: asyncio.Future[T],
        writes: bool,
    ) -> None:
        """Starts the call in the called process."""
        target = host.serving_process()
        if target is None:
            refused = Unavailable(f"{host.name} refused the connection (simulated)")
            self.loop.call_from_environment(self._rng.uniform(*REFUSED_S), _settle, answer, refused)
            return
        number = self._register(target, lambda _: self._give_up(answer, host.name, writes))

        async def carry_out() -> None:
            result: T | Fault
            try:
                result = await work(host.client_for(caller))
            except Fault as fault:
                result = fault
            self._unregister(target, number)
            if self.faults.draw(FaultKind.REPLY_LOST, caller) is None:
                slow = self.faults.draw(FaultKind.REPLY_SLOW, caller)
                late_s = slow.uniform(*SLOW_REPLY_S) if slow is not None else 0.0
                self.loop.call_from_environment(
                    self._latency_s() + late_s, self._reply, caller, host.name, answer, result
                )

        self.loop.spawn(target, carry_out(), name=f"call from {caller}")

    def _reply(self, caller: str, host: str, answer: asyncio.Future[T], result: T | Fault) -> None:
        if self.reachable(host, caller):
            _settle(answer, result)

    @staticmethod
    def _give_up(answer: asyncio.Future[Any], host: str, writes: bool) -> None:
        kind = Ambiguous if writes else Unavailable
        _settle(answer, kind(f"{host} did not respond (simulated)"))

    def _latency_s(self) -> float:
        return self._rng.uniform(*LATENCY_S)

    # Streams

    async def stream(
        self, caller: str, place: str, host: CallTarget, opened: Callable[[Client], AsyncIterator[Sequence[T]]]
    ) -> AsyncIterator[Sequence[T]]:
        """Yields the batches of a stream until its process crashes, the network is partitioned, or a fault ends it."""
        await asyncio.sleep(self._latency_s())
        target = host.serving_process()
        if target is None or not self.reachable(caller, host.name):
            await asyncio.sleep(self._rng.uniform(*REFUSED_S))
            raise Unavailable(f"{host.name} is unreachable from {caller} (simulated)")
        if self.faults.draw(FaultKind.WATCH_EXPIRED, place) is not None:
            raise Expired("the revision is compacted (simulated): list again")
        pipe: Pipe[Sequence[T]] = Pipe(self.loop)
        number = self._register(target, pipe.fail)

        async def send() -> None:
            try:
                async for batch in opened(host.client_for(caller)):
                    self._deliver(caller, place, host.name, pipe, batch)
            except Fault as fault:
                self.loop.call_from_environment(self._latency_s(), pipe.fail, fault)

        sending = self.loop.spawn(target, send(), name=f"watch for {caller}")
        try:
            while True:
                yield await pipe.take()
        finally:
            pipe.closed = True
            self._unregister(target, number)
            if target.alive:
                sending.cancel()

    def _deliver(self, caller: str, place: str, host: str, pipe: Pipe[Sequence[T]], batch: Sequence[T]) -> None:
        if pipe.stalled:
            return
        strikes = self.faults.draw
        if not self.reachable(host, caller):
            pipe.stalled = True
            self.loop.call_from_environment(self._rng.uniform(*BREAK_NOTICED_S), pipe.fail, _broken(host))
            return
        if (own := strikes(FaultKind.WATCH_STALL, place)) is not None:
            pipe.stalled = True
            self.loop.call_from_environment(own.uniform(*STALL_S), pipe.fail, _broken(host))
            return
        if strikes(FaultKind.WATCH_DROP, place) is not None:
            pipe.fail(_broken(host))
            return
        now_s = self.loop.time()
        late = strikes(FaultKind.WATCH_DELAY, place)
        arrives_s = now_s + self._latency_s() + (late.uniform(*DELAY_S) if late is not None else 0.0)
        pipe.due_s = max(pipe.due_s, arrives_s)
        for _ in range(2 if strikes(FaultKind.WATCH_DUPLICATE, place) is not None else 1):
            self.loop.call_from_environment(pipe.due_s - now_s, pipe.put, batch)


def _broken(host: str) -> Unavailable:
    return Unavailable(f"the watch of {host} broke (simulated)")


def _settle(answer: asyncio.Future[T], result: T | Fault) -> None:
    if answer.done():
        return
    if isinstance(result, Fault):
        answer.set_exception(result)
    else:
        answer.set_result(result)
