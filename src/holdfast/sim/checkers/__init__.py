"""Invariant checkers, run at every commit on durable state and on the tasks that machines really run.

A checker never reads caches or responses. It computes everything itself from stored objects, without code of the
component that it checks.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.binding import DesiredRunState
from holdfast.model.kinds import Kind
from holdfast.store.contract import Txn


class Violation(msgspec.Struct, frozen=True):
    """A violated invariant. One violation fails the run. `objects` are the involved keys; `writer` made the commit that
    shows the violation, if any. `wall_s` is its time by the records of a real history; 0 in simulations."""

    invariant: str
    at_s: float
    cell: str
    message: str
    objects: tuple[str, ...] = ()
    writer: str = ""
    wall_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.invariant} violated at {self.at_s:.3f} s in {self.cell}: {self.message}"


class ObservedChange(msgspec.Struct, frozen=True, gc=False):
    """One object before and after a commit; None if it did not exist or was deleted."""

    key: str
    kind: Kind
    old: Any
    new: Any

    @property
    def item(self) -> Any:
        return self.new if self.new is not None else self.old

    @property
    def is_stop_order(self) -> bool:
        """Whether this is a lost Binding, written again to stop its task. It takes nothing that it did not have."""
        if self.kind.name != "Binding" or self.old is not None or self.new is None:
            return False
        return bool(self.new.spec.desired is DesiredRunState.STOP)


class ObservedCommit(msgspec.Struct, frozen=True, gc=False):
    """A transaction when it takes effect. `state` has the cell's decoded objects after it, by key. `latency_s` is the
    time since the commit was sent; its writer could not check anything after that."""

    cell: str
    at_s: float
    wall_s: float
    txn: Txn
    changes: tuple[ObservedChange, ...]
    state: dict[str, Any]
    latency_s: float = 0.0


Finding = tuple[str, str, tuple[str, ...]]
"""Finding of a checker: the invariant, a message, and the involved keys."""
