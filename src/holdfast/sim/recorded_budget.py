"""Checks the disruption budget over the recorded histories of several cells.

Commits of one cell keep their order; commits of different cells are ordered by record times, and their clocks may
differ. So a violation across cells counts only if it lasts longer than the clock tolerance. A violation within one
cell counts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.sim.checkers import Commit, Violation
from holdfast.sim.checkers.disruption import DisruptionChecker

DISRUPTING = frozenset({"Workload", "Assignment", "Replica"})
CLOCKS_DIFFER_S = 2.0
"""Tolerance for clock differences between cells, and between record time and commit."""


class Breach(msgspec.Struct, frozen=True):
    """A possible violation. `alone` means that it involves one region only."""

    workload: str
    violation: Violation
    from_s: float
    alone: bool


class Budgets:
    """`commits` are the commits of all cells, those of each cell in order."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._commits = sorted(commits, key=lambda commit: commit.wall_s)
        self._checker = DisruptionChecker()
        self._open: dict[str, list[Breach]] = {}
        """Violations that have not ended, by workload uid."""

    def violations(self) -> list[Violation]:
        found = [breach for commit in self._commits for breach in self._see(commit)]
        lasting = [breach for breaches in self._open.values() for breach in breaches]
        return [breach.violation for breach in sorted((*found, *lasting), key=lambda breach: breach.from_s)]

    def _see(self, commit: Commit) -> Iterator[Breach]:
        """Violations that end with this commit and lasted long enough to count."""
        workloads = {change.item.spec.workload_uid: None for change in commit.changed if change.kind.name == "Replica"}
        broken = list(self._checker.check(commit))
        for uid in workloads:
            if not self._checker.over(uid):
                for breach in self._open.pop(uid, ()):
                    if breach.alone or commit.wall_s - breach.from_s > CLOCKS_DIFFER_S:
                        yield breach
        for promise, what, objects in broken:
            uid = next((uid for uid in workloads if self._checker.over(uid)), "")
            alone = len(self._checker.regions(uid)) == 1
            violation = Violation(promise, commit.at_s, commit.cell, what, objects)
            self._open.setdefault(uid, []).append(Breach(uid, violation, commit.wall_s, alone))
