"""The promises as predicates, checked at every commit against what is durable and what really runs.

A checker never looks at caches, answers or intentions: only at the disk and at the machines. What it needs to
compute it computes itself, from the records, and never with the arithmetic of the part it checks.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.kinds import Kind
from holdfast.store.contract import Txn


class Violation(msgspec.Struct, frozen=True):
    """A broken promise, with what was seen. One is enough to fail a run. `objects` are the keys it is about; `writer`
    made the commit that shows it, where it is one."""

    promise: str
    at_s: float
    cell: str
    what: str
    objects: tuple[str, ...] = ()
    writer: str = ""

    def __str__(self) -> str:
        return f"{self.promise} broken at {self.at_s:.3f} s in {self.cell}: {self.what}"


class Changed(msgspec.Struct, frozen=True, gc=False):
    """One object before and after a commit; None where it did not exist, or exists no more."""

    key: str
    kind: Kind
    old: Any
    new: Any

    @property
    def item(self) -> Any:
        return self.new if self.new is not None else self.old


class Commit(msgspec.Struct, frozen=True, gc=False):
    """A transaction at the instant it took effect. `state` is the cell's disk after it, decoded, by key; `way_s` is for
    how long it was on its way to the disk: nobody could judge it anew after that began."""

    cell: str
    at_s: float
    wall_s: float
    txn: Txn
    changed: tuple[Changed, ...]
    state: dict[str, Any]
    way_s: float = 0.0


Found = tuple[str, str, tuple[str, ...]]
"""A breach as a checker reports it: the promise, what was seen, and the keys it is about."""
