"""The one disruption budget of a workload, judged over the recorded histories of several cells.

Each cell's commits keep their own order; those of different cells are ordered by the times in their records, which are
of clocks that need not agree. So a breach that takes several cells to see counts only when it lasts for longer than
their clocks may differ by; one within a cell counts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.sim.checkers import Commit, Violation
from holdfast.sim.checkers.disruption import DisruptionChecker

DISRUPTING = frozenset({"Workload", "Assignment", "Replica"})
CLOCKS_DIFFER_S = 2.0
"""By so much the clocks of two cells may differ, and the time in a record from when it came into force."""


class Breach(msgspec.Struct, frozen=True):
    """Something that may turn out to be one. `alone` is a breach of one region by itself."""

    workload: str
    violation: Violation
    from_s: float
    alone: bool


class Budgets:
    """`commits` are those of all cells; of one cell, in its order."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._commits = sorted(commits, key=lambda commit: commit.wall_s)
        self._checker = DisruptionChecker()
        self._open: dict[str, list[Breach]] = {}
        """By the workload's uid: breaches that last."""

    def violations(self) -> list[Violation]:
        found = [breach for commit in self._commits for breach in self._see(commit)]
        lasting = [breach for breaches in self._open.values() for breach in breaches]
        return [breach.violation for breach in sorted((*found, *lasting), key=lambda breach: breach.from_s)]

    def _see(self, commit: Commit) -> Iterator[Breach]:
        """The breaches that this commit shows to have been ones: by ending them after long enough."""
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
