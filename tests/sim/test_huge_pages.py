"""A world's memory in huge pages: the interpreter goes on as before, and the kernel is asked for them."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.sim.huge_pages import HEAP_BYTES
from holdfast.sim.nursery import Nursery

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
OBJECTS = 300_000


def _kept_and_thrown_away(number: int) -> tuple[int, int]:
    """In a child: how much of what was kept is as it was, and in how much of its memory huge pages are asked for."""
    kept = [[i, str(i)] for i in range(OBJECTS)]
    for _ in range(3):
        [str(i) * 20 for i in range(OBJECTS // 4)]
    rows = re.findall(
        r"^Size:\s+(\d+) kB(?:\n(?!VmFlags).*)*\nVmFlags:.* hg\b", Path("/proc/self/smaps").read_text(), re.M
    )
    return sum(int(text) == n for n, text in kept), sum(map(int, rows))


def _in_a_child() -> tuple[int, int]:
    nursery = Nursery(_kept_and_thrown_away)
    nursery.begin(1)
    ends = nursery.ended(60.0)
    while not ends and len(nursery):
        ends = nursery.ended(60.0)
    assert ends[0].result is not None, ends[0].why
    return ends[0].result


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel what it was asked for")
def test_huge_pages_are_asked_for_where_a_child_allocates() -> None:
    """In an interpreter of its own, as `make sim` is: where much is loaded already a heap may be unable to grow."""
    told = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True, timeout=60.0).stdout
    kept, asked_kb = map(int, told.split())
    assert kept == OBJECTS
    if not hasattr(ctypes.CDLL(None), "mallopt") or not ENABLED.exists() or "[never]" in ENABLED.read_text():
        pytest.skip("no huge pages here, or another C library: everything is as it was")
    assert asked_kb << 10 > HEAP_BYTES // 2


if __name__ == "__main__":
    print(*_in_a_child())
