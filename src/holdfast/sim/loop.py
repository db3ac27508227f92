"""An asyncio event loop on virtual time, for many simulated processes in one thread.

- Within one process, ready callbacks run in order, as in asyncio. Between processes a seeded draw chooses.
- Time advances only when no callback is ready.
- A crashed process is no longer scheduled: its `finally` blocks do not run, and messages it has sent may still arrive.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import sys
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

import msgspec

CLOSE_ATTEMPTS = 20
STEPS_MAX = 1_000_000
"""Maximum steps of one run, far above a long run. Beyond it the run fails as a livelock."""
STEPS_PER_INSTANT_MAX = 100_000
"""Maximum steps while the clock stands still. A loop that never waits exceeds it, and the clock would never advance."""
RESOLUTION_S = 1e-6
_MASK = 2**64 - 1


class Call(msgspec.Struct):
    """A scheduled callback: a cheaper replacement of asyncio's Handle and TimerHandle."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    when_s: float = 0.0
    dropped: bool = False

    def cancel(self) -> None:
        self.dropped = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.when_s


def _nothing() -> None:
    """Callback of a cancelled call."""


class Process:
    """One incarnation of a simulated process. After a restart there is another Process with the same name."""

    __slots__ = (
        "alive",
        "context",
        "incarnation",
        "name",
        "number",
        "on_crash_step",
        "paused",
        "paused_calls",
        "queue",
        "steps_to_crash",
        "tasks",
    )

    def __init__(self, name: str, life: int) -> None:
        self.name = name
        self.incarnation = life
        self.alive = True
        self.paused = False
        self.number = zlib.crc32(name.encode()) + life
        self.steps_to_crash = 0
        """Steps until `on_crash_step` is called; 0 for never."""
        self.on_crash_step: Callable[[], None] | None = None
        self.queue: deque[Call] = deque()
        """Ready callbacks. While the process is paused they are collected in `paused_calls`."""
        self.paused_calls: list[Call] = []
        self.tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        """References to all tasks that the process has started."""
        self.context: Context | None = None
        """Template of its tasks' contexts."""

    def __repr__(self) -> str:
        return f"{self.name}.{self.incarnation}"


ENVIRONMENT = Process("world", 0)
current_process: ContextVar[Process] = ContextVar("current_process", default=ENVIRONMENT)


class SimulationStuck(RuntimeError):
    """No process can make progress, or the run exceeds its steps."""


class Livelock(SimulationStuck):
    """The run exceeds its steps. `process` took the last one."""

    def __init__(self, process: Process, what: str) -> None:
        super().__init__(f"livelock: {what}; the last one by {process!r}")
        self.process = process


class VirtualLoop(asyncio.BaseEventLoop):
    """`steps` counts callbacks. `digest` covers which process ran when, to compare runs of a seed."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.now_s = 0.0
        self._now_us = 0
        self._draw = rng.random
        self._environment = Process("world", 0)
        self.environment_context = copy_context()
        """Context of callbacks that belong to no process, such as messages in flight."""
        self.environment_context.run(current_process.set, ENVIRONMENT)
        self._waiting: list[Process] = []
        """Processes with ready callbacks, each once."""
        self._timers: list[tuple[float, int, Call | asyncio.Future[None]]] = []
        self._timer_number = 0
        self._discarded: list[Any] = []
        self.steps = 0
        self._instant_began = 0
        """Steps before the clock reached the present time."""
        self.digest = 0
        self.failures: list[dict[str, Any]] = []
        self.unclosed_generators: Counter[str] = Counter()
        """Asynchronous generators that were not closed, by name. Their end depends on the interpreter, not the seed."""
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    # Time

    def time(self) -> float:
        return self.now_s

    # Scheduling

    def _enqueue(self, call: Call) -> None:
        owner = call.context.get(current_process, ENVIRONMENT)
        if owner is ENVIRONMENT:
            owner = self._environment
        if not owner.alive:
            self._discarded.append(call)
        elif owner.paused:
            owner.paused_calls.append(call)
        else:
            if not owner.queue:
                self._waiting.append(owner)
            owner.queue.append(call)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        call = Call(callback, args, copy_context() if context is None else context)
        owner = call.context.get(current_process, ENVIRONMENT)
        if owner is ENVIRONMENT:
            owner = self._environment
        if owner.alive and not owner.paused:
            if not owner.queue:
                self._waiting.append(owner)
            owner.queue.append(call)
        else:
            self._enqueue(call)
        return call

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        raise RuntimeError("call_soon_threadsafe: a simulated process has no threads")

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        # A delay below the resolution must still advance the clock.
        when_s = self.now_s + (delay if delay <= 0 or delay > RESOLUTION_S else RESOLUTION_S)
        return self._set_timer(Call(callback, args, copy_context() if context is None else context, when_s))

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        return self._set_timer(Call(callback, args, copy_context() if context is None else context, when))

    def _set_timer(self, call: Call) -> Call:
        self._timer_number += 1
        heapq.heappush(self._timers, (call.when_s, self._timer_number, call))
        return call

    def sleep_future(self, seconds: float) -> asyncio.Future[None]:
        """A future that completes after `seconds`: a cheaper `asyncio.sleep`, without an intermediate step."""
        future: asyncio.Future[None] = asyncio.Future(loop=self)
        self._timer_number += 1
        when_s = self.now_s + (seconds if seconds > RESOLUTION_S else RESOLUTION_S)
        heapq.heappush(self._timers, (when_s, self._timer_number, future))
        return future

    def call_from_environment(self, delay: float, callback: Callable[..., object], *args: Any) -> Call:
        """Like `call_later`, but independent of any process: a crash or pause of the sender does not stop it."""
        return self._set_timer(Call(callback, args, self.environment_context, self.now_s + delay))

    def _run_once(self) -> None:
        """Runs until the loop is stopped."""
        waiting, draw = self._waiting, self._draw
        while not self._stopping:  # type: ignore[attr-defined]
            if not waiting:
                self._advance()
                continue
            count = len(waiting)
            pick = int(draw() * count) if count > 1 else 0
            owner = waiting[pick]
            queue = owner.queue
            call = queue.popleft()
            if not queue:
                waiting[pick] = waiting[-1]
                waiting.pop()
            if call.dropped:
                continue
            self._run(call, owner)
            if owner.steps_to_crash:
                self._count_down(owner)

    def _run(self, call: Call, owner: Process) -> None:
        self.steps += 1
        self.digest = (self.digest * 1_000_003 + owner.number + self._now_us) & _MASK
        try:
            call.context.run(call.callback, *call.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"exception in {call.callback!r}", "exception": error})
        if self.steps > STEPS_MAX:
            raise Livelock(owner, f"more than {STEPS_MAX} steps")
        if self.steps - self._instant_began > STEPS_PER_INSTANT_MAX:
            raise Livelock(owner, f"more than {STEPS_PER_INSTANT_MAX} steps at {self.now_s:.6f} s")

    def _count_down(self, owner: Process) -> None:
        owner.steps_to_crash -= 1
        if not owner.steps_to_crash and owner.on_crash_step is not None:
            owner.on_crash_step()

    def _advance(self) -> None:
        """Advances the clock to the next timer and makes all timers of that time ready."""
        timers, pop, now = self._timers, heapq.heappop, -1.0
        while timers:
            if timers[0][0] > now >= 0.0:
                return
            due_s, _, item = pop(timers)
            if item.dropped if isinstance(item, Call) else item.done():
                continue
            if now < 0.0:
                if due_s > self.now_s:
                    self.now_s = due_s
                    self._now_us = int(due_s * 1e6)
                    self._instant_began = self.steps
                now = self.now_s
            if not isinstance(item, Call):
                item.set_result(None)
            elif item.context is self.environment_context:
                # No process is ready, so the callback can run at once.
                self._run(item, self._environment)
            else:
                self._enqueue(item)
        if now < 0.0:
            raise SimulationStuck("deadlock: no process is ready and no timer is set")

    def mix_into_digest(self, number: int) -> None:
        """Adds an event, such as a commit, to the digest."""
        self.digest = (self.digest * 1_000_003 + number) & _MASK

    # Processes

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        owner = current_process.get() if context is None else context.get(current_process, ENVIRONMENT)
        (self._environment if owner is ENVIRONMENT else owner).tasks.append(weakref.ref(task))
        return task

    def spawn(self, process: Process, main: Coroutine[Any, Any, Any], *, name: str = "") -> asyncio.Task[Any]:
        """Starts a task of a process. Tasks that it starts belong to the same process."""
        return self.create_task(main, name=name or process.name, context=self.context_of(process))

    def context_of(self, process: Process) -> Context:
        if process.context is None:
            process.context = self.environment_context.copy()
            process.context.run(current_process.set, process)
        return process.context.copy()

    def kill(self, process: Process) -> None:
        """Crashes the process. References to its tasks are kept, so that no finalizer runs."""
        process.alive = False
        self._stop_running(process)
        self._discarded.extend(process.queue)
        self._discarded.extend(process.paused_calls)
        self._discarded.extend(task for began in process.tasks if (task := began()) is not None)
        process.queue.clear()
        process.paused_calls.clear()

    def pause(self, process: Process) -> None:
        """SIGSTOP: no callback of the process runs, but its timers expire."""
        process.paused = True
        self._stop_running(process)
        process.paused_calls.extend(process.queue)
        process.queue.clear()

    def resume(self, process: Process) -> None:
        process.paused = False
        calls, process.paused_calls = process.paused_calls, []
        for call in calls:
            self._enqueue(call)

    def _stop_running(self, process: Process) -> None:
        if process in self._waiting:
            self._waiting.remove(process)

    # Required by BaseEventLoop

    # Returns False without a Python frame, because every new future calls it.
    get_debug = bool

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Closes a dropped asynchronous generator, and records it as a failure of the run."""
        if not self.is_closed():
            self.unclosed_generators[agen.__qualname__] += 1
            self.call_soon(self.create_task, agen.aclose())

    def _process_events(self, event_list: Any) -> None:
        raise RuntimeError("a simulated loop has no files")

    def _write_to_self(self) -> None:
        return None

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        raise RuntimeError(f"{func!r}: a simulated process has no threads")

    def shut_down(self) -> None:
        """Closes the loop without running pending callbacks."""
        self._waiting.clear()
        self._timers.clear()
        self._discarded.extend(asyncio.all_tasks(self))
        for item in self._discarded:
            if isinstance(item, asyncio.Task):
                item._log_destroy_pending = False  # type: ignore[attr-defined]
        if not self.is_closed():
            self.close()
        self._close_discarded()

    def _close_discarded(self) -> None:
        """Closes all pending coroutines and suppresses their cleanup errors."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for item in [i for i in self._discarded if isinstance(i, asyncio.Task)]:
                for _ in range(CLOSE_ATTEMPTS):
                    try:
                        item.get_coro().close()
                        break
                    except BaseException:
                        continue
            self._discarded.clear()
            self._environment.tasks.clear()
            gc.collect()
        finally:
            sys.unraisablehook = hook
