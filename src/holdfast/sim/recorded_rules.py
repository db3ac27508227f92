"""Rules of volumes, rebalancing, maintenance, job arrays and cron runs, checked on the recorded history of a cell.

The checkers are those of the simulation, with two differences: a recorded time is the wall clock of a cell, so the
tolerances are wider; and a history has any schedule, so only the runs of a tick are counted, not the ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from holdfast.sim.checkers import Finding, ObservedCommit
from holdfast.sim.checkers.array_indexes import ArrayIndexesChecker
from holdfast.sim.checkers.cron_runs import CronRunsChecker
from holdfast.sim.checkers.maintenance import MaintenanceChecker, drains_at_rest
from holdfast.sim.checkers.rebalancing import RebalancingChecker
from holdfast.sim.checkers.volumes import VolumesChecker

RECOVERY_GRACE_S = 30.0
"""Time for a recovery to become known to the controllers of a region on a loaded machine."""


class RecordedRules:
    """Checker of one cell. `arrays` is shared by all cells: an index may succeed once in all regions together."""

    def __init__(self, cell: str, arrays: ArrayIndexesChecker) -> None:
        self._arrays = arrays
        self._cron_runs = CronRunsChecker()
        self._maintenance = MaintenanceChecker(cell)
        self._rebalancing = RebalancingChecker(recovery_grace_s=RECOVERY_GRACE_S)
        self._volumes = VolumesChecker(people_delete=True)

    def check(self, commit: ObservedCommit, *, global_was_restored: bool) -> Iterator[Finding]:
        """`global_was_restored`: indexes that succeeded after the backup are forgotten, and run again."""
        # Times of several cells are compared, so they are counted on the wall clock.
        on_wall = msgspec.structs.replace(commit, at_s=commit.wall_s)
        arrays = self._arrays.check(on_wall)
        yield from () if global_was_restored else arrays
        yield from chain(
            self._cron_runs.check_runs(commit),
            self._maintenance.check(commit),
            self._rebalancing.check(commit),
            self._volumes.check(commit),
        )

    def observe(self, commit: ObservedCommit) -> None:
        """Learns a state that was made elsewhere, without checking it."""
        for _ in self.check(commit, global_was_restored=False):
            pass


def rules_at_rest(state: dict[str, Any]) -> Iterator[Finding]:
    """Nodes that are still drained by a maintenance that has ended."""
    yield from drains_at_rest(state)
