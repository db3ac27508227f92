"""Stability checker: no oscillation and no writes without cause.

- During faults: an Assignment or Grant does not alternate between two values while the desired state is unchanged.
- After convergence: only heartbeats, reports and lease renewals are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.model.assignment import Purpose
from holdfast.model.workload import ExclusiveScope
from holdfast.sim.checkers import Finding, ObservedCommit

FLIPS_MAX = 3
QUIET_WRITES_MAX = 3
QUIET_REMOVALS_MAX = 2
AUTOSCALED_EXTRA_WRITES = 3
"""Extra writes of an autoscaled workload: the expiry of its last load and of the recommendations in its window."""
_WATCHED = frozenset({"Assignment", "Grant"})


SETTLE_S = 30.0
"""Status that follows from the last change, such as which region's replicas wait for quota, may still be written for
this long after the system has converged. The quiet phase lasts five minutes, so what goes on is still counted."""
LOAD_WINDOW_S = 10.0
COMMITS_PER_WINDOW_MAX = 3000
"""Maximum commit attempts on one cell's store in the window. Retries have a backoff, so normal runs stay far below."""


STEPS_PER_WINDOW_MAX = 30_000
"""Maximum steps of all processes in the window. A busy simulation takes about 6,000."""


class ChurnChecker:
    def __init__(self) -> None:
        self._stepped = (0.0, 0)
        self._requested: dict[str, tuple[float, int]] = {}
        self._before: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._flips: Counter[tuple[str, str]] = Counter()
        self._rests_since_s: float | None = None
        self._writes: Counter[tuple[str, str]] = Counter()
        self._removed: Counter[tuple[str, str]] = Counter()
        self._scaled: set[str] = set()
        """Autoscaled workloads."""
        self._contacts = 0
        """Number of region health changes."""
        self._needs: Counter[str] = Counter()
        """Number of demand changes by tenant, from which its grants follow."""
        self._loads: Counter[tuple[str, str]] = Counter()
        """Number of pushed load changes by workload, from which the count of an autoscaled workload follows."""

    def set_quiet_since(self, at_s: float | None) -> None:
        """Sets the time since when the system has converged, or ends the quiet phase (None)."""
        self._rests_since_s = None if at_s is None else at_s + SETTLE_S
        self._writes.clear()
        self._removed.clear()

    def commit_attempted(self, cell: str, at_s: float) -> Sequence[Finding]:
        since_s, count = self._requested.get(cell, (at_s, 0))
        if at_s - since_s > LOAD_WINDOW_S:
            since_s, count = at_s, 0
        self._requested[cell] = (since_s, count + 1)
        if count + 1 != COMMITS_PER_WINDOW_MAX:
            return ()
        return (
            ("load", f"{COMMITS_PER_WINDOW_MAX} commits were attempted in {cell} within {at_s - since_s:.1f} s", ()),
        )

    def steps_taken(self, steps: int, at_s: float) -> Sequence[Finding]:
        """Detects busy loops that do not reach a store, by the number of steps."""
        since_s, before = self._stepped
        if at_s - since_s < LOAD_WINDOW_S:
            return ()
        self._stepped = (at_s, steps)
        if (steps - before) / (at_s - since_s) * LOAD_WINDOW_S <= STEPS_PER_WINDOW_MAX:
            return ()
        return (("load", f"{steps - before} steps were taken within {at_s - since_s:.1f} s", ()),)

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            if change.kind.name == "Workload" and change.new is not None and change.new.spec.autoscale is not None:
                self._scaled.add(change.key)
                if _loads(change.old) != _loads(change.new):
                    self._loads[(change.new.metadata.namespace, change.new.metadata.name)] += 1
            if self._rests_since_s is not None and commit.at_s >= self._rests_since_s:
                self._count(commit.cell, change.key, removed=change.new is None)
            if commit.cell != "global":
                continue
            if change.kind.name == "Region" and _health(change.old) != _health(change.new):
                self._contacts += 1
            if _changes_demand(change.kind.name, change.old, change.new):
                self._needs[change.item.metadata.namespace] += 1
            if change.kind.name in _WATCHED:
                yield from self._flip(commit.cell, change.key, change.old, change.new)

    def _count(self, cell: str, key: str, *, removed: bool) -> None:
        """Counts writes and deletions. Writes of a deleted object are not counted; repeated deletions are."""
        self._writes[(cell, key)] += 1
        if removed:
            self._writes.pop((cell, key))
            self._removed[(cell, key)] += 1

    def _flip(self, cell: str, key: str, old: Any, new: Any) -> Iterator[Finding]:
        """Detects a return to the previous value while the inputs are unchanged."""
        name = (cell, key)
        if old is None or new is None or old.uid != new.uid:
            self._before.pop(name, None)
            self._flips.pop(name, None)
            return
        old_desired, now = _desired_state(old), _desired_state(new)
        if old_desired == now:
            return
        earlier, ground = self._before.get(name, (None, None))
        stands_on = self._input_version(new)
        self._before[name] = (old_desired, stands_on)
        if ground != stands_on:
            self._flips.pop(name, None)
        elif earlier == now:
            self._flips[name] += 1
            if self._flips[name] == FLIPS_MAX + 1:
                yield (
                    "oscillation",
                    f"{key} oscillated {self._flips[name]} times: now {now}, before {old_desired}",
                    (key,),
                )

    def _input_version(self, item: Any) -> Any:
        """Version of the inputs: for an Assignment the workload and its load, for a Grant the tenant's demand and the
        health of the regions, because a region without contact keeps what it may enforce."""
        generation = getattr(item.spec, "workload_generation", None)
        if generation is None:
            return self._needs[item.metadata.namespace], self._contacts
        requested = (generation, self._loads[(item.metadata.namespace, item.spec.workload)])
        return (*requested, self._contacts) if _moves_with_contact(item) else requested

    def quiet_phase_writes(self, now_s: float) -> Iterator[Finding]:
        """Violations of the quiet phase, at its end."""
        if self._rests_since_s is None:
            return
        minutes = max(1.0, (now_s - self._rests_since_s) / 60.0)
        for (cell, key), count in sorted(self._writes.items()):
            kind = key.split("/")[1]
            few = QUIET_WRITES_MAX + (AUTOSCALED_EXTRA_WRITES if key in self._scaled else 0)
            bound = few + _ALLOWED_PER_MINUTE.get(kind, 0.0) * minutes
            if count > bound:
                what = f"{key} was written {count} times in {minutes:.0f} quiet minutes (at most {bound:.0f})"
                yield "load", f"{what} in {cell}", (key,)
        for (cell, key), count in sorted(self._removed.items()):
            if count > QUIET_REMOVALS_MAX:
                yield "load", f"{key} was removed {count} times in {minutes:.0f} quiet minutes in {cell}", (key,)


# Writes per minute of one object that the quiet phase allows, by kind; other kinds get none. They are heartbeats,
# retries of pending requests with a backoff of up to a minute, and the progress of a failback.
_ALLOWED_PER_MINUTE = {
    "leases": 300.0,
    "leasepages": 300.0,
    "regions": 300.0,
    "grants": 300.0,
    "grantcopies": 300.0,
    "terms": 1.0,
    "schedulingrequests": 10.0,
    "recoveries": 2.0,
}


def _desired_state(item: Any) -> Any:
    spec = item.spec
    return dict(spec.limit) if hasattr(spec, "limit") else (spec.replicas, spec.ordinals, spec.revision)


def _changes_demand(kind: str, old: Any, new: Any) -> bool:
    """Whether the tenant's demand or quota changed."""
    if kind == "Quota":
        return old is None or new is None or old.spec != new.spec
    if kind == "Assignment":
        return old is None or new is None or _demand_fields(old) != _demand_fields(new)
    return False


def _demand_fields(assignment: Any) -> Any:
    spec, status = assignment.spec, assignment.status
    return spec.workload_generation, spec.replicas, spec.batch, spec.purpose, status.succeeded, status.failed


def _loads(workload: Any) -> Any:
    """The pushed load values, without their times."""
    load = workload.status.load if workload is not None else None
    return {metric.name: metric.value for metric in load.metrics} if load is not None else {}


def _health(region: Any) -> Any:
    return region.status.health.state if region is not None else None


def _moves_with_contact(item: Any) -> bool:
    """Whether the Assignment follows region health: exclusive work of scope Global and recovery Assignments do."""
    spec = item.spec
    tenured = spec.exclusive is not None and spec.exclusive.scope is ExclusiveScope.GLOBAL
    return tenured or spec.purpose is Purpose.RECOVERY
