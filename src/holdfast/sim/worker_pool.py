"""Worlds in processes of their own: forked from one that has everything loaded, and thrown away with all they held.

Forking costs less than taking a world apart, and no world can leave anything behind for the next. The mother runs no
threads and no loop. A child that dies is told of like any other end; nothing here is ever lost without a word.
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
ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
_LIBC = ctypes.CDLL(None)


class WorkerExit(msgspec.Struct, Generic[T], frozen=True):
    """One child's end: its result, or why there is none."""

    number: int
    result: T | None
    why: str = ""


class WorkerPool(Generic[T]):
    """`bear` runs in the child, with a number; what it returns comes back through a pipe."""

    def __init__(self, bear: Callable[[int], T]) -> None:
        self._bear = bear
        self._children: dict[int, tuple[int, int, bytearray]] = {}
        """By the pipe's file: pid, number, and what has been read of the result."""

    def __len__(self) -> int:
        return len(self._children)

    def begin(self, number: int) -> None:
        """Whoever asks the mother to end meanwhile is heard when the child is known: what is raised inside the hooks of
        a fork is lost, and a child that nobody knows would be, too."""
        gc.freeze()
        reading, writing = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            pid = os.fork()
            if pid == 0:
                self._live(number, writing, before)
            os.close(writing)
            self._children[reading] = (pid, number, bytearray())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def files(self) -> list[int]:
        """What to wait for, for whoever waits for other things as well."""
        return list(self._children)

    def ended(self, timeout_s: float | None = None) -> list[WorkerExit[T]]:
        """Those that ended, waiting for one at most so long."""
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
        """Ends every child at once; what they were at counts as never begun."""
        for file, (pid, _, _) in list(self._children.items()):
            os.kill(pid, signal.SIGKILL)
            self._forget(file, pid)

    def _forget(self, file: int, pid: int) -> None:
        del self._children[file]
        os.close(file)
        os.waitpid(pid, 0)

    def _live(self, number: int, writing: int, mask: set[int]) -> None:
        """Never returns. A keyboard's interrupt is the mother's to deal with; when she dies, so does the child."""
        try:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            gc.disable()
            result: Any
            try:
                result = (True, self._bear(number))
            except Exception:
                result = (False, traceback.format_exc())
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(result, pipe)
        finally:
            os._exit(0)


def _end(number: int, data: bytes) -> WorkerExit[Any]:
    if not data:
        return WorkerExit(number, None, f"the process of world {number} ended without a word: is memory short?")
    well, result = pickle.loads(data)
    return (
        WorkerExit(number, result) if well else WorkerExit(number, None, f"world {number} could not be run: {result}")
    )
