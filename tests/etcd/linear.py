"""Is a history of single-key operations linearizable? Searches for an order that explains every answer.

Operations whose answer never came may have taken effect at any time after they were sent, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Operation:
    """`write` sets `value` if the key is at `expected` (None: whatever it is); `read` answered `value`."""

    kind: str
    value: str
    expected: str | None
    sent: float
    answered: float
    """Infinity where no answer came."""
    succeeded: bool = True
    """For a conditional write: whether it was told to have happened."""


def linearizable(operations: list[Operation], first: str = "") -> bool:
    """Whether some order, in which no operation moves outside of its own time, explains every answer."""
    ordered = tuple(sorted(operations, key=lambda operation: operation.sent))
    forever = float("inf")

    @cache
    def explains(done: frozenset[int], value: str) -> bool:
        left = [index for index in range(len(ordered)) if index not in done]
        if all(ordered[index].answered == forever for index in left):
            return True
        # Whatever comes next must have been sent before the first of the others was answered.
        horizon = min(ordered[index].answered for index in left)
        for index in left:
            operation = ordered[index]
            if operation.sent > horizon:
                break
            after = _apply(operation, value)
            if after is not None and explains(done | {index}, after):
                return True
        return False

    return explains(frozenset(), first)


def _apply(operation: Operation, value: str) -> str | None:
    """The value after the operation; None when its answer cannot be explained here."""
    if operation.kind == "read":
        return value if operation.value == value else None
    matches = operation.expected is None or operation.expected == value
    if operation.answered == float("inf"):
        return operation.value if matches else value
    if operation.succeeded != matches:
        return None
    return operation.value if matches else value
