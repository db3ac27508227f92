"""One disruption budget per workload over all regions: what is let go of its own accord is never more at once.

Judged from what is durable: the moment a serving replica's release is recorded for a reason that somebody chose (a
drain, work over its quota, someone stronger), everything of its workload that was let go so, in any region, and has not
served since is counted. What is lost by accident is nobody's choice and does not count; the cells count it too, and
so stay below this.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.assignment import Assignment
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.workload import Workload, WorkloadType
from holdfast.sim.checkers import Changed, Commit, Found

GLOBAL = "global"
_CHOSEN = frozenset({Reason.DRAINED, Reason.OVER_QUOTA, Reason.PREEMPTED})


class DisruptionChecker:
    """All cells', as the budget is one."""

    def __init__(self) -> None:
        self._away: dict[str, dict[tuple[str, str], str]] = {}
        """By the workload's uid: the replicas that were let go and do not serve yet, by region and key, with theirs."""
        self._most: dict[str, int] = {}
        """The largest budget that any record of the workload has ever named: a region may act on an older one."""

    def check(self, commit: Commit) -> Iterator[Found]:
        for change in commit.changed:
            match change.item:
                case Workload() if commit.cell == GLOBAL and change.new is not None:
                    self._learn(change.new.uid, change.new.spec.disruption.max_unavailable)
                case Assignment() if change.new is not None:
                    self._learn(change.new.spec.workload_uid, change.new.spec.disruption.max_unavailable)
                case Replica() if change.item.spec.type is WorkloadType.SERVICE:
                    yield from self._look(commit, change)

    def over(self, uid: str) -> bool:
        """Whether more of a workload is away at this moment than its budget allows."""
        return len(self._away.get(uid, ())) > self._most.get(uid, 0)

    def regions(self, uid: str) -> frozenset[str]:
        """Where something of a workload is away."""
        return frozenset(cell for cell, _ in self._away.get(uid, ()))

    def _learn(self, uid: str, budget: int) -> None:
        self._most[uid] = max(budget, self._most.get(uid, 0))

    def _look(self, commit: Commit, change: Changed) -> Iterator[Found]:
        replica: Replica = change.item
        away = self._away.setdefault(replica.spec.workload_uid, {})
        name = (commit.cell, change.key)
        gone = change.new is None or change.new.metadata.terminating or change.new.uid != away.get(name, change.new.uid)
        if gone or stage(change.new) is Stage.SERVING:
            away.pop(name, None)
        if gone or change.old is None or not _let_go(change.old, change.new):
            return
        away[name] = change.new.uid
        budget = self._most.get(replica.spec.workload_uid, 0)
        if not budget and change.new.status.release.reason == Reason.PREEMPTED:
            return  # who allows nobody to be away makes way for someone stronger all the same, one at a time
        if len(away) > budget:
            named = ", ".join(f"{key.rpartition('/')[2]} in {cell}" for cell, key in sorted(away))
            what = f"{len(away)} replicas of {replica.spec.workload} were let go at once, of {budget} that may: {named}"
            yield "budget", what, (*(key for _, key in sorted(away)), f"/workloads/{_of(replica)}")


def _let_go(old: Replica, new: Replica) -> bool:
    """Whether this very change lets a replica go that served, because somebody wanted it."""
    block = new.status.release
    if block is None or block == old.status.release or block.attempt != new.status.placement.attempt:
        return False
    reclaimed = block.reason == Reason.PREEMPTED and new.spec.reclaimable
    return stage(old) is Stage.SERVING and block.reason in _CHOSEN and not reclaimed


def _of(replica: Replica) -> str:
    return f"{replica.metadata.namespace}/{replica.spec.workload}"
