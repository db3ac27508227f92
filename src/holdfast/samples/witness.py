"""witness: work that must never run twice at a time, and that keeps the evidence itself.

Each process writes `<replica>.<pid>.<start>` into `WITNESS_DIR`, holding when it began and when it last ran, on a clock
that all processes of the machine share and that nobody can step. Overlapping intervals of one replica are a breach.
`WITNESS_FORK=1` does the same from a grandchild in a session of its own; `WITNESS_STUBBORN=1` ignores SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time

RECORD_EVERY_S = 0.02


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def record_run(folder: str, replica: str) -> None:
    began = boottime_s()
    epoch = os.environ.get("HOLDFAST_EPOCH", "0")
    path = os.path.join(folder, f"{replica}.{os.getpid()}.{began:.6f}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    while True:
        os.pwrite(fd, f"{began:.6f} {boottime_s():.6f} {epoch}".encode().ljust(64), 0)
        time.sleep(RECORD_EVERY_S)


def main() -> int:
    folder = os.environ["WITNESS_DIR"]
    replica = os.environ.get("HOLDFAST_REPLICA", "work")
    os.makedirs(folder, exist_ok=True)
    if os.environ.get("WITNESS_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("WITNESS_FORK") and os.fork() == 0:
        os.setsid()
        record_run(folder, f"{replica}-child")
    record_run(folder, replica)
    return 0


if __name__ == "__main__":
    sys.exit(main())
