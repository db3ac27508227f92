"""An asyncio event loop on virtual time, for many simulated processes in one thread.

Ready callbacks run in order within one simulated process, as asyncio promises; between processes a seeded draw decides
who goes next. Time passes only when nobody is ready. A crashed process simply stops being scheduled: its `finally`
blocks do not run, for a power cut runs none either, and what it had already sent may still arrive.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import sys
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

import msgspec

CLOSE_ATTEMPTS = 20
IDLE_LIMIT = 100_000_000
"""Steps of one run; a run that needs more is going in circles."""


class Process(msgspec.Struct, gc=False):
    """One life of one simulated process. After a crash the next life is another Process of the same name."""

    name: str
    life: int
    alive: bool = True
    paused: bool = False

    def __hash__(self) -> int:
        return zlib.crc32(self.name.encode()) + self.life

    def __eq__(self, other: object) -> bool:
        return self is other


WORLD = Process("world", 0)
current_process: ContextVar[Process] = ContextVar("current_process", default=WORLD)


class NothingLeft(RuntimeError):
    """Every process waits for something that will never happen."""


class VirtualLoop(asyncio.BaseEventLoop):
    """`steps` counts callbacks; `trace` is a running digest of who ran when, to compare two runs of one seed."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._chance = chance
        self._queues: dict[Process, deque[asyncio.Handle]] = {}
        self._waiting: list[Process] = []
        self._held: dict[Process, list[asyncio.Handle]] = {}
        self._buried: list[Any] = []
        self._tasks: dict[Process, weakref.WeakSet[asyncio.Task[Any]]] = {}
        self.steps = 0
        self.trace = 0
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    # Time

    def time(self) -> float:
        return self._now

    # Scheduling

    def _enqueue(self, handle: asyncio.Handle) -> None:
        owner = handle._context.get(current_process, WORLD)  # type: ignore[attr-defined]
        if not owner.alive:
            self._buried.append(handle)
            return
        if owner.paused:
            self._held.setdefault(owner, []).append(handle)
            return
        queue = self._queues.get(owner)
        if queue is None:
            queue = self._queues[owner] = deque()
            self._waiting.append(owner)
        queue.append(handle)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        raise RuntimeError("a simulated process has no threads")

    def _run_once(self) -> None:
        if not self._waiting:
            self._advance()
        if not self._waiting:
            return
        pick = self._chance.randrange(len(self._waiting)) if len(self._waiting) > 1 else 0
        owner = self._waiting[pick]
        queue = self._queues[owner]
        handle = queue.popleft()
        if not queue:
            del self._queues[owner]
            self._waiting[pick] = self._waiting[-1]
            self._waiting.pop()
        if not handle._cancelled:
            self.steps += 1
            self.trace = (self.trace * 1_000_003 + hash(owner) + int(self._now * 1e6)) & (2**64 - 1)
            handle._run()
        if self.steps > IDLE_LIMIT:
            raise NothingLeft(f"more than {IDLE_LIMIT} steps; the run goes in circles")

    def _advance(self) -> None:
        """Nobody is ready: move the clock to the next timer and make everything due then ready."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if not timers:
            if self._stopping:  # type: ignore[attr-defined]
                return
            raise NothingLeft("no process is ready and no timer is set: the world has stopped")
        self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            handle = heapq.heappop(timers)
            handle._scheduled = False  # type: ignore[attr-defined]
            if not handle._cancelled:
                self._enqueue(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    # Processes

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        owner = (context or copy_context()).get(current_process, WORLD)
        self._tasks.setdefault(owner, weakref.WeakSet()).add(task)
        return task

    def spawn(self, process: Process, main: Coroutine[Any, Any, Any], *, name: str = "") -> asyncio.Task[Any]:
        """Starts a task that belongs to a process, and so does everything it starts."""
        context = copy_context()
        context.run(current_process.set, process)
        return self.create_task(main, name=name or process.name, context=context)

    def kill(self, process: Process) -> None:
        """The process is gone between two steps. Its tasks are kept, so that nothing of them ever runs again."""
        process.alive = False
        self._buried.extend(self._queues.pop(process, ()))
        self._buried.extend(self._held.pop(process, ()))
        if process in self._waiting:
            self._waiting.remove(process)
        self._buried.extend(self._tasks.pop(process, ()))

    def pause(self, process: Process) -> None:
        """SIGSTOP: nothing of it runs, its timers pass, the world goes on."""
        process.paused = True
        self._held.setdefault(process, []).extend(self._queues.pop(process, ()))
        if process in self._waiting:
            self._waiting.remove(process)

    def resume(self, process: Process) -> None:
        process.paused = False
        for handle in self._held.pop(process, ()):
            self._enqueue(handle)

    # What BaseEventLoop asks of a real loop

    def _process_events(self, event_list: Any) -> None:
        raise RuntimeError("a simulated loop has no files")

    def _write_to_self(self) -> None:
        return None

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        raise RuntimeError(f"{func!r}: a simulated process has no threads")

    def end(self) -> None:
        """Closes the loop without running what is left."""
        self._queues.clear()
        self._waiting.clear()
        self._held.clear()
        self._scheduled.clear()  # type: ignore[attr-defined]
        for task in asyncio.all_tasks(self):
            self._buried.append(task)
        for item in self._buried:
            if isinstance(item, asyncio.Task):
                item._log_destroy_pending = False  # type: ignore[attr-defined]
        if not self.is_closed():
            self.close()
        self._bury()

    def _bury(self) -> None:
        """Closes what was still waiting. Whatever it wants to clean up first is refused: its world is over."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for item in [i for i in self._buried if isinstance(i, asyncio.Task)]:
                for _ in range(CLOSE_ATTEMPTS):
                    try:
                        item.get_coro().close()
                        break
                    except BaseException:
                        continue
            self._buried.clear()
            self._tasks.clear()
            gc.collect()
        finally:
            sys.unraisablehook = hook
