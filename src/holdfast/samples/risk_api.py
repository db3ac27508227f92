"""risk-api: a service that scores payments. Every response names the replica."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.samples.web import Sample

_count = {"answered": 0}


def answer(path: str) -> dict[str, Any] | None:
    """`/` identifies the replica; `/score/AMOUNT` returns a score from 0 to 100 that depends only on the amount."""
    _count["answered"] += 1
    if path == "/":
        return dict(_count)
    if path.startswith("/score/") and path[7:].isdigit():
        amount = int(path[7:])
        return {"amount": amount, "score": (amount * 2654435761 % 2**32) * 100 // 2**32}
    return None


if __name__ == "__main__":
    sys.exit(Sample("risk-api", warm_up_s=0.5, answer=answer).run())
