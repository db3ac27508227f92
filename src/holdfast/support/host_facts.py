"""Facts of this machine: kernel, load, memory, disk and clock."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from pathlib import Path
from typing import Any

from holdfast.model.times import seconds_text

_ADJTIMEX_BYTES = 512
"""More than the kernel writes into `struct timex`."""
_CLOCK_UNSYNCHRONIZED = 5
_MEMORY_LINES = 5


def host_facts(state: Path) -> dict[str, Any]:
    disk = os.statvfs(state if state.is_dir() else state.parent)
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": _first_lines(Path("/etc/os-release"), 2),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()),
        "memory": _first_lines(Path("/proc/meminfo"), _MEMORY_LINES),
        "disk": {
            "of": str(state),
            "bytes": disk.f_blocks * disk.f_frsize,
            "freeBytes": disk.f_bavail * disk.f_frsize,
            "inodes": disk.f_files,
            "freeInodes": disk.f_favail,
        },
        "clock": {
            "utc": seconds_text(time.time()),
            "sinceBootSeconds": round(time.clock_gettime(time.CLOCK_BOOTTIME), 1),
            "synchronized": _clock_synchronized(),
        },
    }


def _first_lines(path: Path, count: int) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[:count]
    except OSError as error:
        return [f"unreadable: {error.strerror}"]


def _clock_synchronized() -> bool | None:
    """By the kernel, which a time daemon tells. None if it cannot be asked."""
    try:
        # The buffer is zero, so its field `modes` asks for nothing to be changed.
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_ADJTIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _CLOCK_UNSYNCHRONIZED
