"""Worker processes: each run has its own process, forked from a parent that has all modules loaded.

Forking costs less than cleaning up after a run, and no run can affect another. The parent runs no threads and no event
loop. A killed worker is reported as a run without a result.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

READ_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1
TERMINATION_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
_LIBC = ctypes.CDLL(None)


class WorkerExit(msgspec.Struct, Generic[T], frozen=True):
    """The end of one worker: its result, or why there is none."""

    number: int
    result: T | None
    why: str = ""


class WorkerPool(Generic[T]):
    """Calls `work` with a number in a child process. The result is returned through a pipe."""

    def __init__(self, work: Callable[[int], T]) -> None:
        self._work = work
        self._children: dict[int, tuple[int, int, bytearray]] = {}
        """By file descriptor of the pipe: pid, number, bytes read so far."""

    def __len__(self) -> int:
        return len(self._children)

    def begin(self, number: int) -> None:
        """Starts a worker. Signals are blocked until it is registered: an exception raised inside a fork hook would be
        lost, and with it the worker."""
        gc.freeze()
        reading, writing = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._run_child(number, writing, before)
            os.close(writing)
            self._children[reading] = (pid, number, bytearray())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def files(self) -> list[int]:
        """Pipes of the workers, for a caller that selects on other file descriptors too."""
        return list(self._children)

    def ended(self, timeout_s: float | None = None) -> list[WorkerExit[T]]:
        """The workers that ended. Waits up to `timeout_s` for one."""
        found: list[WorkerExit[T]] = []
        ready, _, _ = select.select(self.files(), (), (), timeout_s)
        for file in ready:
            pid, number, read = self._children[file]
            chunk = os.read(file, READ_BYTES)
            if chunk:
                read += chunk
                continue
            self._forget(file, pid)
            found.append(_end(number, bytes(read)))
        return found

    def stop(self) -> None:
        """Kills all workers. Their runs count as not started."""
        for file, (pid, _, _) in list(self._children.items()):
            os.kill(pid, signal.SIGKILL)
            self._forget(file, pid)

    def _forget(self, file: int, pid: int) -> None:
        del self._children[file]
        os.close(file)
        os.waitpid(pid, 0)

    def _run_child(self, number: int, writing: int, mask: set[int]) -> None:
        """Never returns. The parent handles keyboard interrupts; if the parent dies, the child is killed."""
        try:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            gc.disable()
            result: Any
            try:
                result = (True, self._work(number))
            except Exception:
                result = (False, traceback.format_exc())
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(result, pipe)
        finally:
            os._exit(0)


def _end(number: int, data: bytes) -> WorkerExit[Any]:
    if not data:
        return WorkerExit(number, None, f"run {number}: the process ended without a result; is memory short?")
    succeeded, result = pickle.loads(data)
    return WorkerExit(number, result) if succeeded else WorkerExit(number, None, f"run {number} failed: {result}")
