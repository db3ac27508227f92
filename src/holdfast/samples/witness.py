"""witness: an exclusive task that records when it runs, to detect two instances at the same time.

Each process writes its start time and its last running time to `<replica>.<pid>.<start>` in `WITNESS_DIR`, on the boot
clock, which is shared by all processes and cannot be stepped. Overlapping intervals of one replica violate S7.
`WITNESS_FORK=1` does the same in a grandchild with its own session; `WITNESS_STUBBORN=1` ignores SIGTERM.
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
