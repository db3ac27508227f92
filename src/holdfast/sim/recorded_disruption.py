"""Checks the disruption budget over the recorded histories of several cells.

Commits of one cell keep their order; commits of different cells are ordered by record times, and their clocks may
differ. So a violation across cells counts only if it lasts longer than the clock tolerance. A violation within one
cell counts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.sim.checkers import ObservedCommit, Violation
from holdfast.sim.checkers.disruption import DisruptionChecker

BUDGET_KINDS = frozenset({"Workload", "Assignment", "Replica"})
CLOCK_SKEW_MAX_S = 2.0
"""Tolerance for clock differences between cells, and between record time and commit."""


class PossibleViolation(msgspec.Struct, frozen=True):
    """A possible violation. `alone` means that it involves one region only."""

    workload: str
    violation: Violation
    from_s: float
    alone: bool


class RecordedDisruption:
    """`commits` are the commits of all cells, those of each cell in order."""

    def __init__(self, commits: Iterable[ObservedCommit]) -> None:
        self._commits = sorted(commits, key=lambda commit: commit.wall_s)
        self._checker = DisruptionChecker()
        self._open: dict[str, list[PossibleViolation]] = {}
        """Violations that have not ended, by workload uid."""

    def violations(self) -> list[Violation]:
        found = [candidate for commit in self._commits for candidate in self._ended_violations(commit)]
        open_candidates = [candidate for candidates in self._open.values() for candidate in candidates]
        return [
            candidate.violation
            for candidate in sorted((*found, *open_candidates), key=lambda candidate: candidate.from_s)
        ]

    def _ended_violations(self, commit: ObservedCommit) -> Iterator[PossibleViolation]:
        """Violations that end with this commit and lasted long enough to count."""
        workloads = {change.item.spec.workload_uid: None for change in commit.changes if change.kind.name == "Replica"}
        violated = list(self._checker.check(commit))
        for uid in workloads:
            if not self._checker.is_over_budget(uid):
                for candidate in self._open.pop(uid, ()):
                    if candidate.alone or commit.wall_s - candidate.from_s > CLOCK_SKEW_MAX_S:
                        yield candidate
        for invariant, what, objects in violated:
            uid = next((uid for uid in workloads if self._checker.is_over_budget(uid)), "")
            alone = len(self._checker.affected_regions(uid)) == 1
            violation = Violation(invariant, commit.at_s, commit.cell, what, objects, wall_s=commit.wall_s)
            self._open.setdefault(uid, []).append(PossibleViolation(uid, violation, commit.wall_s, alone))
