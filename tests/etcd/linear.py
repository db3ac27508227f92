"""Checks whether a history of concurrent calls is linearizable, by searching for a valid order (Wing and Gong).

A model says which states may follow a call, given its response. A call without a response may have taken effect at any
time after it was sent, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NEVER = float("inf")
UNKNOWN = None
"""Result of a call without a response."""


@dataclass(frozen=True)
class Call:
    """Only the model reads `operation` and `result`. A call without a response has `answered` NEVER."""

    operation: Any
    result: Any
    sent: float
    answered: float


Model = Callable[[Any, Call], Iterable[Any]]
"""State and call in, the states out that the answer allows; none where it cannot be explained here."""


def linearizable(calls: Sequence[Call], first: Hashable, model: Model) -> bool:
    """Whether some order, consistent with the times of the calls, explains every response."""
    ordered = sorted(calls, key=lambda call: call.sent)
    answered = sum(1 << n for n, call in enumerate(ordered) if call.answered != NEVER)
    dead: set[tuple[int, Any]] = set()
    pending: list[tuple[int, Any]] = [(0, first)]
    while pending:
        done, state = pending.pop()
        if done & answered == answered:
            return True
        if (done, state) in dead:
            continue
        dead.add((done, state))
        left = [n for n in range(len(ordered)) if not done >> n & 1]
        # The next call must have been sent before the first response of the others.
        horizon = min(ordered[n].answered for n in left)
        for n in left:
            if ordered[n].sent > horizon:
                break
            pending += [(done | 1 << n, after) for after in model(state, ordered[n])]
    return False


@dataclass(frozen=True)
class Read:
    pass


@dataclass(frozen=True)
class Write:
    """Sets `value` if the register holds `expected`."""

    value: str
    expected: str


def register(state: str, call: Call) -> Iterable[str]:
    """One key with reads and conditional writes. The response to a write says whether it happened."""
    if isinstance(call.operation, Read):
        return (state,) if call.result == state else ()
    write: Write = call.operation
    after = write.value if state == write.expected else state
    if call.result is UNKNOWN:
        return (after,)
    return (after,) if call.result == (state == write.expected) else ()


@dataclass(frozen=True)
class Place:
    """A claim of one replica on one node; `bind` binds a reserved claim, or reserves and binds at once."""

    node: str
    reserve: bool = True
    bind: bool = True


def replica(state: tuple[str, str], call: Call) -> Iterable[tuple[str, str]]:
    """One replica at one attempt: (stage, node), from none to Reserved to Bound. The response is (result, node)."""
    stage, at = state
    operation: Place = call.operation
    outcomes: list[tuple[Any, tuple[str, str]]] = [(("Rejected", ""), state)]
    if operation.reserve and not stage:
        outcomes = [
            (("Accepted", operation.node), ("Bound" if operation.bind else "Reserved", operation.node)),
            *outcomes,
        ]
    elif operation.reserve:
        outcomes = [(("Already", at), state)]
    elif stage == "Reserved":
        outcomes = [(("Accepted", at), ("Bound", at))]
    elif stage == "Bound":
        outcomes = [(("Already", at), state)]
    if call.result is UNKNOWN:
        return [after for _, after in outcomes]
    return [after for result, after in outcomes if result == call.result]


@dataclass(frozen=True)
class Take:
    """A claim of one owner on a whole device."""

    owner: str


def device(state: str, call: Call) -> Iterable[str]:
    """One exclusive device: its owner, or none. The response is the result."""
    operation: Take = call.operation
    free = not state
    if call.result is UNKNOWN:
        return (operation.owner if free else state,)
    if call.result == "Accepted":
        return (operation.owner,) if free else ()
    if call.result == "Already":
        return (state,) if state == operation.owner else ()
    return (state,) if not free and state != operation.owner else ()
