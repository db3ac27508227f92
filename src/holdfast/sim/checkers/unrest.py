"""No oscillation, and bounded load: what nobody asked to change does not keep changing.

During the faults: an assignment or a grant does not go to and fro between two states without a change of what is
wanted. After the world has come to rest: nothing is written any more but heartbeats, reports and renewals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.model.assignment import Purpose
from holdfast.model.workload import ExclusiveScope
from holdfast.sim.checkers import Commit, Found

FLIPS_MAX = 3
RESTING_WRITES_MAX = 3
RESTING_REMOVALS_MAX = 2
SCALED_WRITES_MORE = 3
"""That the last load grows old, and with it the wishes of its window, is written down once each."""
_WATCHED = frozenset({"Assignment", "Grant"})


ASKED_WINDOW_S = 10.0
ASKED_MAX = 3000
"""Commits that may be asked of one cell's store within the window, answered or not: retries pause, so they are few."""


STEPS_MAX = 30_000
"""Steps of all processes together within the window: a world of this size takes some 6,000 at its busiest."""


class UnrestChecker:
    def __init__(self) -> None:
        self._stepped = (0.0, 0)
        self._asked: dict[str, tuple[float, int]] = {}
        self._before: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._flips: Counter[tuple[str, str]] = Counter()
        self._rests_since_s: float | None = None
        self._writes: Counter[tuple[str, str]] = Counter()
        self._removed: Counter[tuple[str, str]] = Counter()
        self._scaled: set[str] = set()
        """Workloads whose number follows a load."""
        self._contacts = 0
        """How often the global cell has changed its mind about a region's health."""
        self._needs: Counter[str] = Counter()
        """How often what a tenant needs has really changed: what its grants follow from."""
        self._loads: Counter[tuple[str, str]] = Counter()
        """How often people have pushed another load for a workload: what its number follows from where it is scaled."""

    def rest(self, at_s: float | None) -> None:
        """The world has come to rest, or (None) is in motion again."""
        self._rests_since_s = at_s
        self._writes.clear()
        self._removed.clear()

    def asked(self, cell: str, at_s: float) -> Sequence[Found]:
        since_s, count = self._asked.get(cell, (at_s, 0))
        if at_s - since_s > ASKED_WINDOW_S:
            since_s, count = at_s, 0
        self._asked[cell] = (since_s, count + 1)
        if count + 1 != ASKED_MAX:
            return ()
        return (("load", f"{ASKED_MAX} commits were asked of {cell} within {at_s - since_s:.1f} s", ()),)

    def worked(self, steps: int, at_s: float) -> Sequence[Found]:
        """Whoever tries again without a pause is busy, even where nothing reaches a store."""
        since_s, before = self._stepped
        if at_s - since_s < ASKED_WINDOW_S:
            return ()
        self._stepped = (at_s, steps)
        if (steps - before) / (at_s - since_s) * ASKED_WINDOW_S <= STEPS_MAX:
            return ()
        return (("load", f"{steps - before} steps were taken within {at_s - since_s:.1f} s", ()),)

    def check(self, commit: Commit) -> Iterator[Found]:
        for change in commit.changed:
            if change.kind.name == "Workload" and change.new is not None and change.new.spec.autoscale is not None:
                self._scaled.add(change.key)
                if _loads(change.old) != _loads(change.new):
                    self._loads[(change.new.metadata.namespace, change.new.metadata.name)] += 1
            if self._rests_since_s is not None:
                self._count(commit.cell, change.key, gone=change.new is None)
            if commit.cell != "global":
                continue
            if change.kind.name == "Region" and _health(change.old) != _health(change.new):
                self._contacts += 1
            if _changes_needs(change.kind.name, change.old, change.new):
                self._needs[change.item.metadata.namespace] += 1
            if change.kind.name in _WATCHED:
                yield from self._flip(commit.cell, change.key, change.old, change.new)

    def _count(self, cell: str, key: str, *, gone: bool) -> None:
        """What is cleared away in its time is written a few times on its way out; to come back again and again is
        another matter."""
        self._writes[(cell, key)] += 1
        if gone:
            self._writes.pop((cell, key))
            self._removed[(cell, key)] += 1

    def _flip(self, cell: str, key: str, old: Any, new: Any) -> Iterator[Found]:
        """A, then B, then A again, while what it follows from is still the same."""
        name = (cell, key)
        if old is None or new is None or old.uid != new.uid:
            self._before.pop(name, None)
            self._flips.pop(name, None)
            return
        was, now = _wish(old), _wish(new)
        if was == now:
            return
        earlier, ground = self._before.get(name, (None, None))
        stands_on = self._ground(new)
        self._before[name] = (was, stands_on)
        if ground != stands_on:
            self._flips.pop(name, None)
        elif earlier == now:
            self._flips[name] += 1
            if self._flips[name] == FLIPS_MAX + 1:
                yield "oscillation", f"{key} went to and fro {self._flips[name]} times: now {now}, before {was}", (key,)

    def _ground(self, item: Any) -> Any:
        """What a wish follows from: an assignment from its workload and the load of that, a grant from all that its
        tenant needs."""
        generation = getattr(item.spec, "workload_generation", None)
        if generation is None:
            return self._needs[item.metadata.namespace]
        asked = (generation, self._loads[(item.metadata.namespace, item.spec.workload)])
        return (*asked, self._contacts) if _moves_with_contact(item) else asked

    def restless(self, now_s: float) -> Iterator[Found]:
        """Called at the end of the quiet time."""
        if self._rests_since_s is None:
            return
        minutes = max(1.0, (now_s - self._rests_since_s) / 60.0)
        for (cell, key), count in sorted(self._writes.items()):
            kind = key.split("/")[1]
            few = RESTING_WRITES_MAX + (SCALED_WRITES_MORE if key in self._scaled else 0)
            bound = few + _ALLOWED_PER_MINUTE.get(kind, 0.0) * minutes
            if count > bound:
                what = f"{key} was written {count} times in {minutes:.0f} quiet minutes (at most {bound:.0f})"
                yield "load", f"{what} in {cell}", (key,)
        for (cell, key), count in sorted(self._removed.items()):
            if count > RESTING_REMOVALS_MAX:
                yield "load", f"{key} was removed {count} times in {minutes:.0f} quiet minutes in {cell}", (key,)


# Signs of life; a waiting request's account of its tries, whose pauses grow to a minute; and a recovery's account of
# how it is given back, which it is when its region has been well for a while.
_ALLOWED_PER_MINUTE = {
    "leases": 300.0, "leasepages": 300.0, "regions": 300.0, "grants": 300.0, "grantcopies": 300.0, "terms": 1.0,
    "schedulingrequests": 10.0, "recoveries": 2.0,
}  # fmt: skip


def _wish(item: Any) -> Any:
    spec = item.spec
    return dict(spec.limit) if hasattr(spec, "limit") else (spec.replicas, spec.ordinals, spec.revision)


def _changes_needs(kind: str, old: Any, new: Any) -> bool:
    """Whether a tenant needs more or less than before: other work, other numbers, work that is done, another quota."""
    if kind == "Quota":
        return old is None or new is None or old.spec != new.spec
    if kind == "Assignment":
        return old is None or new is None or _need(old) != _need(new)
    return False


def _need(assignment: Any) -> Any:
    spec, status = assignment.spec, assignment.status
    return spec.workload_generation, spec.replicas, spec.batch, spec.purpose, status.succeeded, status.failed


def _loads(workload: Any) -> Any:
    """What people say of a workload's load, whenever they said it: the same again is no change."""
    load = workload.status.load if workload is not None else None
    return {metric.name: metric.value for metric in load.metrics} if load is not None else {}


def _health(region: Any) -> Any:
    return region.status.health.state if region is not None else None


def _moves_with_contact(item: Any) -> bool:
    """Exclusive work of scope Global leaves a region that is cut off and may come back to it, as often as it is; what
    a recovery asks for follows the regions' health in the same way."""
    spec = item.spec
    tenured = spec.exclusive is not None and spec.exclusive.scope is ExclusiveScope.GLOBAL
    return tenured or spec.purpose is Purpose.RECOVERY
