"""Job arrays: an index succeeds once, runs in one region, and never again after its success is recorded.

- Two replicas of one index never both succeed.
- An index that is not done is in the Assignment of at most one region.
- `succeededIndexes` of a Workload never loses an index, and no replica is created for a recorded one later on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.assignment import Assignment
from holdfast.model.replica import Replica
from holdfast.model.workload import Workload
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

REPORT_GRACE_S = 60.0
"""Time for a recorded success to reach the regions."""


class ArrayIndexesChecker:
    """Checker of all cells together."""

    def __init__(self) -> None:
        self._successes: dict[tuple[str, int], str] = {}
        """(uid of the Workload, index) → uid of the replica that succeeded."""
        self._recorded: dict[tuple[str, int], float] = {}
        """When the Workload's status first had the index."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            if isinstance(change.new, Replica) and change.new.spec.index is not None:
                yield from self._observe_replica(commit, change)
            elif isinstance(change.new, Workload):
                yield from self._observe_workload(commit, change)
            elif isinstance(change.new, Assignment) and commit.cell == "global":
                yield from _observe_assignment(commit, change)

    def _observe_replica(self, commit: ObservedCommit, change: ObservedChange) -> Iterator[Finding]:
        replica = change.new
        key = (replica.spec.workload_uid, replica.spec.index)
        recorded_s = self._recorded.get(key)
        if change.old is None and recorded_s is not None and commit.at_s - recorded_s > REPORT_GRACE_S:
            yield (
                "array",
                f"{change.key} runs index {key[1]} again, {commit.at_s - recorded_s:.0f} s after it was done",
                (change.key,),
            )
        execution = replica.status.execution
        if execution is None or execution.phase.value != "Succeeded":
            return
        former = self._successes.setdefault(key, replica.uid)
        if former != replica.uid:
            yield (
                "array",
                f"index {key[1]} of {replica.spec.workload} succeeded a second time, in {change.key}",
                (change.key,),
            )

    def _observe_workload(self, commit: ObservedCommit, change: ObservedChange) -> Iterator[Finding]:
        now = _numbers(change.new.status.summary.succeeded_indexes)
        before = _numbers(change.old.status.summary.succeeded_indexes) if change.old is not None else set()
        if change.old is not None and change.old.uid == change.new.uid and not before <= now:
            yield "array", f"{change.key} forgets that indexes {sorted(before - now)} succeeded", (change.key,)
        for index in now:
            self._recorded.setdefault((change.new.uid, index), commit.at_s)


def _observe_assignment(commit: ObservedCommit, change: ObservedChange) -> Iterator[Finding]:
    mine = change.new
    if not _is_array(mine):
        return
    for key, other in commit.state.items():
        if isinstance(other, Assignment) and key != change.key and other.spec.workload_uid == mine.spec.workload_uid:
            both = (set(mine.spec.ordinals) & set(other.spec.ordinals)) - _numbers(mine.spec.done_indexes)
            if both:
                yield "array", f"indexes {sorted(both)} are assigned in {change.key} and in {key}", (change.key, key)


def _is_array(item: Any) -> bool:
    return item.spec.batch is not None and item.spec.batch.completion_mode.value == "Indexed"


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(",") if text else ():
        ends = [int(end) for end in part.split("-")]
        found |= set(range(ends[0], ends[-1] + 1))
    return found
