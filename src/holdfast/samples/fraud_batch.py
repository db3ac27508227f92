"""fraud-batch: computes for some seconds and ends with code 0; asked to stop, it ends at once with 143.

`FRAUD_SECONDS` (default 6) is how long; `FRAUD_FAIL=1` makes it end with code 1 instead.
"""

from __future__ import annotations

import os
import sys
import time

from holdfast.samples.web import log_line, task_identity

ROUNDS = 10
BUSY_FRACTION = 0.2


def score(seed: int) -> int:
    """Some arithmetic that takes a moment and always comes to the same."""
    value = seed
    for _ in range(2000):
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
    return value % 997


def main() -> int:
    total_s = float(os.environ.get("FRAUD_SECONDS") or 6)
    told = task_identity()
    log_line(f"fraud-batch {told['replica']} begins on {told['node']} with devices {os.environ.get('HOLDFAST_DEVICES', '')}")
    began, found, looked = time.monotonic(), 0, 0
    for index in range(ROUNDS):
        until = began + total_s * (index + 1) / ROUNDS
        while (left := until - time.monotonic()) > 0:
            found += score(looked) == 0
            looked += 1
            time.sleep(min(left, 0.002 / BUSY_FRACTION))
        log_line(f"fraud-batch {index + 1}/{ROUNDS}: {looked} looked at, {found} suspicious")
    if os.environ.get("FRAUD_FAIL"):
        log_line("fraud-batch fails, as asked")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
