"""What the shims of a node cost, read from /proc when the node's metrics are read.

A shim is too small to serve metrics itself. The agent knows its shims by their locks, also those it has adopted. Sums
over all shims: a label per task would be unbounded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.agent.drivers.records import TaskDir
from holdfast.foundation import metrics

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ShimUsage:
    """Sums of the shims of these directories. CPU time from before the first reading is not counted: it would look like
    a burst after every restart of the agent.
    """

    def __init__(self, tasks_dirs: tuple[Path, ...]) -> None:
        self._tasks_dirs = tasks_dirs
        self._cpu_s: dict[tuple[int, int], float] | None = None
        self._lock = threading.Lock()

    def update(self) -> None:
        """Sets the metrics. Calls of several servers at once are made one after the other."""
        with self._lock:
            seen = {(pid, ticks): (cpu_s, resident) for pid, ticks, cpu_s, resident in _processes(self._shim_pids())}
            metrics.SHIM_PROCESSES.set(len(seen))
            metrics.SHIM_RESIDENT.set(sum(resident for _, resident in seen.values()))
            if self._cpu_s is not None:
                before = self._cpu_s
                metrics.SHIM_CPU.inc(sum(max(0.0, cpu_s - before.get(key, 0.0)) for key, (cpu_s, _) in seen.items()))
            self._cpu_s = {key: cpu_s for key, (cpu_s, _) in seen.items()}

    def _shim_pids(self) -> Iterator[int]:
        for folder in self._tasks_dirs:
            for path in folder.glob("*"):
                try:
                    pid = TaskDir(path).shim_pid()
                except OSError:
                    continue  # the task's directory is being deleted
                if pid > 0:
                    yield pid


def _processes(pids: Iterable[int]) -> Iterator[tuple[int, int, float, int]]:
    """Process id, start time in ticks, CPU seconds and resident bytes of every process that still exists."""
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        yield pid, int(fields[19]), cpu_s, int(fields[21]) * _PAGE_BYTES
