"""No oscillation, and bounded load: what nobody asked to change does not keep changing.

During the faults: an assignment or a grant does not go to and fro between two states without a change of what is
wanted. After the world has come to rest: nothing is written any more but heartbeats, reports and renewals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from holdfast.model.workload import ExclusiveScope
from holdfast.sim.checkers import Commit, Found

FLIPS_MAX = 3
RESTING_WRITES_MAX = 3
_WATCHED = frozenset({"Assignment", "Grant"})


ASKED_WINDOW_S = 10.0
ASKED_MAX = 3000
"""Commits that may be asked of one cell's store within the window, answered or not: retries pause, so they are few."""


class UnrestChecker:
    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, int]] = {}
        self._before: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._flips: Counter[tuple[str, str]] = Counter()
        self._rests_since_s: float | None = None
        self._writes: Counter[tuple[str, str]] = Counter()

    def rest(self, at_s: float | None) -> None:
        """The world has come to rest, or (None) is in motion again."""
        self._rests_since_s = at_s
        self._writes.clear()

    def asked(self, cell: str, at_s: float) -> Iterator[Found]:
        since_s, count = self._asked.get(cell, (at_s, 0))
        if at_s - since_s > ASKED_WINDOW_S:
            since_s, count = at_s, 0
        self._asked[cell] = (since_s, count + 1)
        if count + 1 == ASKED_MAX:
            yield "load", f"{ASKED_MAX} commits were asked of {cell} within {at_s - since_s:.1f} s", ()

    def check(self, commit: Commit) -> Iterator[Found]:
        for change in commit.changed:
            if self._rests_since_s is not None:
                self._writes[(commit.cell, change.key)] += 1
            if change.kind.name in _WATCHED and commit.cell == "global":
                yield from self._flip(commit.cell, change.key, change.old, change.new)

    def _flip(self, cell: str, key: str, old: Any, new: Any) -> Iterator[Found]:
        """A, then B, then A again, while what it follows from is still the same."""
        name = (cell, key)
        if old is None or new is None or old.uid != new.uid:
            self._before.pop(name, None)
            self._flips.pop(name, None)
            return
        was, now = _wish(old), _wish(new)
        if was == now or _moves_with_contact(new):
            return
        earlier, ground = self._before.get(name, (None, None))
        self._before[name] = (was, _ground(new))
        if ground != _ground(new):
            self._flips.pop(name, None)
        elif earlier == now:
            self._flips[name] += 1
            if self._flips[name] == FLIPS_MAX + 1:
                yield "oscillation", f"{key} went to and fro {self._flips[name]} times: now {now}, before {was}", (key,)

    def restless(self, now_s: float) -> Iterator[Found]:
        """Called at the end of the quiet time."""
        if self._rests_since_s is None:
            return
        minutes = max(1.0, (now_s - self._rests_since_s) / 60.0)
        for (cell, key), count in sorted(self._writes.items()):
            kind = key.split("/")[1]
            bound = RESTING_WRITES_MAX + _ALLOWED_PER_MINUTE.get(kind, 0.0) * minutes
            if count > bound:
                what = f"{key} was written {count} times in {minutes:.0f} quiet minutes (at most {bound:.0f})"
                yield "load", f"{what} in {cell}", (key,)


# Signs of life, a waiting request's account of its tries, whose pauses grow to a minute, and what is said of work that
# goes on failing, or whose deadline comes near, when all else rests.
_ALLOWED_PER_MINUTE = {
    "leases": 300.0, "leasepages": 300.0, "regions": 300.0, "grants": 300.0, "grantcopies": 300.0, "terms": 1.0,
    "schedulingrequests": 10.0, "workloads": 0.4,
}  # fmt: skip


def _wish(item: Any) -> Any:
    spec = item.spec
    return dict(spec.limit) if hasattr(spec, "limit") else (spec.replicas, spec.ordinals, spec.revision)


def _ground(item: Any) -> Any:
    """What the wish follows from, as far as the object itself says."""
    return getattr(item.spec, "workload_generation", 0)


def _moves_with_contact(item: Any) -> bool:
    """Exclusive work of scope Global leaves a region that is cut off and may come back to it, as often as it is."""
    exclusive = getattr(item.spec, "exclusive", None)
    return exclusive is not None and exclusive.scope is ExclusiveScope.GLOBAL
