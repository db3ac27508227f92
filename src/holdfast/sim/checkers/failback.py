"""Failback: the recovery replicas of a workload go only when its ordinary replicas run.

The evidence is the tasks on the machines, not the status in the global cell, which may be older than the incident.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.workload import Workload
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit
from holdfast.sim.machine import TaskRun

GLOBAL = "global"
REPORT_AGE_MAX_S = 60.0
"""Maximum age of a report that a failback may rely on: caches and reports lag, and tasks may have ended since."""
REASON_PREFIX = "failback of recovery"


class FailbackChecker:
    def __init__(self) -> None:
        self._runs: dict[tuple[str, str, str], list[TaskRun]] = {}
        """Task runs by region, tenant and workload."""
        self._shares: dict[str, list[tuple[float, int]]] = {}
        """Replica counts of each Assignment, by key, with the time from which each held."""

    def task_started(self, machine: str, work: TaskRun) -> None:
        region = machine.rpartition("-")[0]
        self._runs.setdefault((region, work.task.namespace, work.task.workload), []).append(work)

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        if commit.cell != GLOBAL:
            return
        for change in commit.changes:
            if change.kind.name == "Assignment" and change.new is not None:
                self._shares.setdefault(change.key, []).append((commit.at_s, change.new.spec.replicas))
                if _fails_back(change):
                    yield from self._premature(change, commit)

    def _premature(self, change: ObservedChange, commit: ObservedCommit) -> Iterator[Finding]:
        item: Assignment = change.new
        tenant, name = item.metadata.namespace, item.spec.workload
        workload: Workload | None = commit.state.get(f"/workloads/{tenant}/{name}")
        if workload is None or workload.metadata.terminating or workload.spec.recovery is None:
            return
        for key, other in commit.state.items():
            ordinary = isinstance(other, Assignment) and other.spec.purpose is Purpose.NORMAL
            if not ordinary or other.metadata.namespace != tenant or other.spec.workload != name:
                continue
            since_s = commit.at_s - REPORT_AGE_MAX_S
            expected = self._least_share(key, since_s)
            running = self._running_since(other.spec.region, tenant, name, since_s)
            if running < expected:
                what = (
                    f"{change.key} shrinks to zero, while {key} ran too few replicas in the last "
                    f"{REPORT_AGE_MAX_S:.0f} s (expected {expected}, found {running})"
                )
                yield "failback", what, (change.key, key)

    def _least_share(self, key: str, since_s: float) -> int:
        """The smallest replica count of the Assignment since then."""
        shares = self._shares.get(key, [])
        before = [count for at_s, count in shares if at_s <= since_s]
        return min([*before[-1:], *(count for at_s, count in shares if at_s > since_s)], default=0)

    def _running_since(self, region: str, tenant: str, workload: str, since_s: float) -> int:
        """The number of replicas that ran at some time since then."""
        runs = self._runs.get((region, tenant, workload), [])
        return len({run.task.replica_uid for run in runs if run.exit is None or run.ended_s > since_s})


def _fails_back(change: ObservedChange) -> bool:
    new: Assignment = change.new
    old: Assignment | None = change.old
    shrinks = old is not None and old.spec.replicas > 0 and new.spec.replicas == 0
    return shrinks and new.spec.purpose is Purpose.RECOVERY and new.spec.reason.startswith(REASON_PREFIX)
