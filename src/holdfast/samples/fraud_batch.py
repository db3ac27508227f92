"""fraud-batch: a batch task that computes for some seconds and exits with 0. On SIGTERM it exits at once.

`FRAUD_SECONDS` (default 6) is the duration; with `FRAUD_FAIL=1` it exits with 1.
"""

from __future__ import annotations

import os
import sys
import time

from holdfast.samples.web import log_line, task_identity

ROUNDS = 10
BUSY_FRACTION = 0.2


def score(seed: int) -> int:
    """A deterministic computation that takes a moment."""
    value = seed
    for _ in range(2000):
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
    return value % 997


def main() -> int:
    total_s = float(os.environ.get("FRAUD_SECONDS") or 6)
    identity = task_identity()
    devices = os.environ.get("HOLDFAST_DEVICES", "")
    log_line(f"fraud-batch {identity['replica']} starts on {identity['node']} with devices {devices}")
    began, found, checked = time.monotonic(), 0, 0
    for index in range(ROUNDS):
        until = began + total_s * (index + 1) / ROUNDS
        while (left := until - time.monotonic()) > 0:
            found += score(checked) == 0
            checked += 1
            time.sleep(min(left, 0.002 / BUSY_FRACTION))
        log_line(f"fraud-batch {index + 1}/{ROUNDS}: {checked} checked, {found} suspicious")
    if os.environ.get("FRAUD_FAIL"):
        log_line("fraud-batch fails, because FRAUD_FAIL is set")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
