"""witness: an exclusive task that records when it runs, to detect two instances at the same time.

Each process writes its start time and its last running time to `<replica>.<pid>.<start>` in `WITNESS_DIR`, on the boot
clock, which is shared by all processes and cannot be stepped. Overlapping intervals of one replica violate S7.
`WITNESS_FORK=1` does the same in a grandchild with its own session; `WITNESS_STUBBORN=1` ignores SIGTERM.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time

BEAT_S = 0.02


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def beat_for_ever(folder: str, replica: str) -> None:
    began = boottime()
    epoch = os.environ.get("HOLDFAST_EPOCH", "0")
    path = os.path.join(folder, f"{replica}.{os.getpid()}.{began:.6f}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    while True:
        os.pwrite(fd, f"{began:.6f} {boottime():.6f} {epoch}".encode().ljust(64), 0)
        time.sleep(BEAT_S)


def intervals(folder: str) -> dict[str, list[tuple[float, float]]]:
    """Running intervals by replica, in order."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="ascii") as f:
            words = f.read().split()
        if len(words) >= 2:
            found.setdefault(name.rsplit(".", 3)[0], []).append((float(words[0]), float(words[1])))
    return {replica: sorted(runs) for replica, runs in found.items()}


def overlaps(folder: str) -> list[str]:
    """Pairs of runs of one replica that overlap, as text."""
    return [
        f"{replica}: {earlier} and {later}"
        for replica, runs in intervals(folder).items()
        for earlier, later in itertools.pairwise(runs)
        if later[0] < earlier[1]
    ]


def main() -> int:
    folder = os.environ["WITNESS_DIR"]
    replica = os.environ.get("HOLDFAST_REPLICA", "work")
    os.makedirs(folder, exist_ok=True)
    if os.environ.get("WITNESS_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("WITNESS_FORK") and os.fork() == 0:
        os.setsid()
        beat_for_ever(folder, f"{replica}-child")
    beat_for_ever(folder, replica)
    return 0


if __name__ == "__main__":
    sys.exit(main())
