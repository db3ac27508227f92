"""The promises as predicates, checked at every commit against what is durable and what really runs.

A checker never looks at caches, answers or intentions: only at the disk and at the machines.
"""

from __future__ import annotations

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """A broken promise, with what was seen. One is enough to fail a run."""

    promise: str
    at_s: float
    cell: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise} broken at {self.at_s:.3f} s in {self.cell}: {self.what}"
