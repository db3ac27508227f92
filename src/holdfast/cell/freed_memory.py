"""Freed memory of a server process: what the C library keeps for reuse, and what is returned to the kernel.

The planner frees and allocates the same arrays again and again, so freed memory is kept. A burst of large requests
leaves a heap of free pieces that is not needed again, so much free memory is returned, at most once per interval.
"""

from __future__ import annotations

import asyncio
import ctypes

import structlog

from holdfast.foundation.ports import Clock

# Interval at which free memory is measured.
MEMORY_CHECK_EVERY_S = 30.0
# Free memory above which it is returned to the kernel. As much as glibc keeps at the end of its heap.
FREE_MEMORY_MAX_BYTES = 128 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 128 << 20, 32 << 20
"""Freed memory that glibc keeps. By default it returns the planner's arrays to the kernel after each plan, and with
20,000 nodes planning takes three times as long."""

_log = structlog.get_logger()


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory. Does nothing with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2`. `fordblks` is the number of free bytes in glibc's heaps."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    )


def free_bytes() -> int:
    """Free memory that the C library holds; 0 if it does not say."""
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        return 0
    info.restype = _MallocInfo
    return int(info().fordblks)


class FreedMemory:
    """A component that returns free memory to the kernel when there is much of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def start(self) -> None:
        """Nothing to prepare."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def run(self) -> None:
        while True:
            await self._clock.sleep(MEMORY_CHECK_EVERY_S)
            free = free_bytes()
            if free > FREE_MEMORY_MAX_BYTES:
                await asyncio.to_thread(ctypes.CDLL(None).malloc_trim, 0)  # ctypes releases the interpreter lock
                _log.info("memory_returned", free_bytes=free)
