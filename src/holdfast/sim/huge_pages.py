"""A world's memory in huge pages: fewer page faults, and fewer walks through page tables, which are a good part of what
a world costs.

For a process that ends with its world: nothing it frees is given back before that, so no cell may use this. What the
interpreter allocates from now on comes from the C library's heap, grown once by a stretch that the kernel may back with
huge pages. Where there are none, or it is another C library, everything stays as it was.
"""

from __future__ import annotations

import ctypes
import mmap

HEAP_BYTES = 512 << 20
"""Of address space: memory is taken only where something is written."""
HUGE_PAGE_BYTES = 2 << 20
POOL_BYTES = 16 << 10
"""How the interpreter divides what it is given: what begins there is used whole."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
NEVER_BYTES = 2**31 - 1
MAPPED_BYTES = 32 << 20
"""What is smaller than this comes from the heap. The largest threshold that is taken."""


class _ArenaAllocator(ctypes.Structure):
    """PyObjectArenaAllocator: where the interpreter gets memory for small objects from."""

    _fields_ = (("ctx", ctypes.c_void_p), ("alloc", ctypes.c_void_p), ("free", ctypes.c_void_p))


def use_huge_pages() -> bool:
    """Whether this process has a heap that huge pages may back."""
    libc = ctypes.CDLL(None)
    if not all(hasattr(libc, name) for name in ("mallopt", "sbrk", "aligned_alloc")) or not _grown(libc):
        return False
    # Called as alloc(ctx, bytes) and free(ctx, address, bytes): the context is the alignment, and nothing is freed.
    allocator = _ArenaAllocator(POOL_BYTES, _address(libc.aligned_alloc), _address(libc.labs))
    ctypes.pythonapi.PyObject_SetArenaAllocator(ctypes.byref(allocator))
    return True


def _grown(libc: ctypes.CDLL) -> bool:
    """Grows the heap by one stretch and asks for huge pages there."""
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    before = libc.sbrk(0)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER_BYTES)
    libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    libc.mallopt(M_TOP_PAD, HEAP_BYTES)
    libc.free(libc.malloc(HUGE_PAGE_BYTES))
    first, end = -(-before // HUGE_PAGE_BYTES), libc.sbrk(0) // HUGE_PAGE_BYTES
    if end <= first:
        return False
    advised: int = libc.madvise(first * HUGE_PAGE_BYTES, (end - first) * HUGE_PAGE_BYTES, mmap.MADV_HUGEPAGE)
    return advised == 0


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
