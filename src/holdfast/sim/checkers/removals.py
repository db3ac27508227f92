"""No work is stopped by a cell's amnesia: every removal of a live replica was ordered.

An order is a state of the Assignment that the global cell committed, or that a person restored, and that does not want
the replica. A store that is lost, emptied or swapped gives no order, and neither does a Binding that vanished with it.
A person who confirms deletions in a region takes the responsibility for it from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.replica import Phase, Replica
from holdfast.model.workload import WorkloadType
from holdfast.sim.checkers import Finding, ObservedCommit
from holdfast.sim.checkers.ownership import roles_of
from holdfast.sim.machine import TaskRun

GLOBAL = "global"
LAG_MAX_S = 400.0
"""How long a region may act on an order after the global cell has replaced it: it was cut off, paused or held down."""
_ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})
_REMOVERS = frozenset({"replicate", "collect"})


class _Order(msgspec.Struct, frozen=True):
    """One state of an Assignment in the global cell; None if it was deleted."""

    at_s: float
    spec: Any


class RemovalChecker:
    """Checker of all cells together. With `clock_tolerance_s`, the global cell's commits may be observed first, by
    other clocks: an order counts if it was given at most that much later."""

    def __init__(self, clock_tolerance_s: float = 0.0) -> None:
        self._clock_tolerance_s = clock_tolerance_s
        self._orders: dict[str, list[_Order]] = {}
        """By uid of the Assignment, oldest first."""
        self._released: set[str] = set()
        """uids of Bindings that were removed by a commit of their cell."""
        self._stopping: set[tuple[str, int]] = set()
        """Runs that their agents have begun to stop."""
        self._bindings: dict[str, set[str]] = {}
        """uids of all Bindings so far, by region."""
        self._confirmed_until_s: dict[str, float] = {}
        """Until when a person's confirmation explains removals, by region."""

    def deletion_confirmed(self, region: str, until_s: float) -> None:
        """A person confirms that the region removes work which the global cell does not contain."""
        self._confirmed_until_s[region] = until_s

    def region_restored(self, region: str) -> None:
        """A person restores the region, which fences every node: its agents stop all tasks (decision 0012)."""
        self._released |= self._bindings.get(region, set())

    def store_replaced(self, commit: ObservedCommit) -> None:
        """Observes a store that was replaced as a whole. Objects that it lacks were not deleted."""
        for change in commit.changes:
            if commit.cell == GLOBAL and isinstance(change.new, Assignment):
                self._orders.setdefault(change.new.uid, []).append(_Order(commit.at_s, change.new.spec))

    def check(self, commit: ObservedCommit, writer: str) -> Iterator[Finding]:
        """`writer` is the principal of the commit."""
        for change in commit.changes:
            match change.item:
                case Assignment() if commit.cell == GLOBAL:
                    spec = change.new.spec if change.new is not None else None
                    self._orders.setdefault(change.item.uid, []).append(_Order(commit.at_s, spec))
                case Binding():
                    self._bindings.setdefault(commit.cell, set()).add(change.item.uid)
                    if change.new is None:
                        self._released.add(change.item.uid)
                case Replica() if _is_removal(change.old, change.new):
                    if commit.at_s > self._confirmed_until_s.get(commit.cell, -1.0):
                        yield from self._check_removal(commit, writer, change.old, change.key)

    def task_stopped(self, region: str, node: str, work: TaskRun, state: dict[str, Any]) -> Iterator[Finding]:
        """An agent stops a task. Without a Binding it may only if the region has removed it, or for its lease."""
        uid, run = work.task.binding_uid, (work.task.binding_uid, work.task.run)
        if run in self._stopping:
            return  # it was being stopped before
        self._stopping.add(run)
        by_itself = work.exit is not None or work.probe_failed
        if by_itself or work.task.exclusive or uid in self._released:
            return
        if not any(key.startswith("/bindings/") and item.uid == uid for key, item in state.items()):
            yield "amnesia", f"{node} stopped {work.task.id}, whose Binding vanished with the region's records", ()

    def _check_removal(self, commit: ObservedCommit, writer: str, replica: Replica, key: str) -> Iterator[Finding]:
        if not roles_of(writer) & _REMOVERS:
            return
        live = _live_before(commit, replica)
        owner = next((ref.uid for ref in replica.metadata.owner_references), "")
        if any(not _wants(order.spec, replica, live) for order in self._recent(owner, commit.at_s)):
            return
        what = f"{replica.metadata.name} was removed, and no state of its Assignment ordered it"
        yield "amnesia", what, (key, f"/assignments/{replica.metadata.namespace}/{replica.spec.assignment}")

    def _recent(self, uid: str, at_s: float) -> list[_Order]:
        """The states of the Assignment that were in force within the lag."""
        orders = [o for o in self._orders.get(uid, []) if o.at_s <= at_s + self._clock_tolerance_s]
        first = max((n for n, order in enumerate(orders) if order.at_s <= at_s - LAG_MAX_S), default=0)
        return orders[first:]


def _is_removal(old: Any, new: Any) -> bool:
    """Whether the change begins the removal of a live, placed replica of a service."""
    if old is None or old.metadata.deletion_timestamp or old.spec.type is not WorkloadType.SERVICE:
        return False
    ended = old.status.execution is not None and old.status.execution.phase in _ENDED
    placed = bool(old.status.placement.binding)
    return placed and not ended and (new is None or bool(new.metadata.deletion_timestamp))


def _live_before(commit: ObservedCommit, of: Replica) -> int:
    """Replicas of the Assignment before the commit that were not being deleted."""
    prefix = f"/replicas/{of.metadata.namespace}/"
    live: int = sum(
        key.startswith(prefix) and item.spec.assignment == of.spec.assignment and not item.metadata.deletion_timestamp
        for key, item in commit.state.items()
    )
    return live + sum(
        isinstance(change.old, Replica)
        and change.old.spec.assignment == of.spec.assignment
        and change.old.metadata.namespace == of.metadata.namespace
        and not change.old.metadata.deletion_timestamp
        and (change.new is None or bool(change.new.metadata.deletion_timestamp))
        for change in commit.changes
    )


def _wants(spec: Any, replica: Replica, live: int) -> bool:
    if spec is None or spec.revision != replica.spec.revision or spec.replicas < live:
        return False
    return spec.exclusive is None or replica.spec.ordinal in spec.ordinals
