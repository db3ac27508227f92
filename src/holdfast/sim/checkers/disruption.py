"""Disruption budget: voluntary evictions of a workload over all regions never exceed its budget.

When a voluntary release (drain, over quota, preemption) of a serving replica is committed, all voluntarily evicted
replicas of the workload that do not serve again are counted. Involuntary losses are not counted here. The cells do
count them, and so stay below this bound. A replica that was evicted because of its tenant's quota is counted until it
is queued: from then on it waits for quota. After the drain deadline of an emergency quota no budget applies to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model import limits
from holdfast.model.assignment import Assignment
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.override import Override, OverrideKind
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload, WorkloadType
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

GLOBAL = "global"
_CHOSEN = frozenset({Reason.DRAINED, Reason.EVICTED_BY_TAINT, Reason.OVER_QUOTA, Reason.PREEMPTED, Reason.REBALANCED})


class DisruptionChecker:
    """Checker of all cells together, because the budget is global."""

    def __init__(self) -> None:
        self._disrupted: dict[str, dict[tuple[str, str], str]] = {}
        """Evicted replicas that do not serve yet, by workload uid, then by region and key, with the replica's uid."""
        self._budgets: dict[str, int] = {}
        """Largest budget of the workload so far. A region may act on an older Assignment."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            match change.item:
                case Workload() if commit.cell == GLOBAL and change.new is not None:
                    self._record_budget(change.new.uid, change.new.spec.disruption.max_unavailable)
                case Assignment() if change.new is not None:
                    self._record_budget(change.new.spec.workload_uid, change.new.spec.disruption.max_unavailable)
                case Replica() if change.item.spec.type is WorkloadType.SERVICE:
                    yield from self._observe(commit, change)

    def is_over_budget(self, uid: str) -> bool:
        """Whether more replicas are unavailable now than the budget allows."""
        return len(self._disrupted.get(uid, ())) > self._budgets.get(uid, 0)

    def affected_regions(self, uid: str) -> frozenset[str]:
        """Regions with unavailable replicas of the workload."""
        return frozenset(cell for cell, _ in self._disrupted.get(uid, ()))

    def _record_budget(self, uid: str, budget: int) -> None:
        self._budgets[uid] = max(budget, self._budgets.get(uid, 0))

    def _observe(self, commit: ObservedCommit, change: ObservedChange) -> Iterator[Finding]:
        replica: Replica = change.item
        disrupted = self._disrupted.setdefault(replica.spec.workload_uid, {})
        name = (commit.cell, change.key)
        unavailable = (
            change.new is None
            or change.new.metadata.terminating
            or change.new.uid != disrupted.get(name, change.new.uid)
        )
        if unavailable or stage(change.new) is Stage.SERVING or _awaits_quota(change.new):
            disrupted.pop(name, None)
        if unavailable or change.old is None or not _is_voluntary_release(change.old, change.new):
            return
        if change.new.status.release.reason == Reason.OVER_QUOTA and _is_drain_overdue(change.new, commit):
            return
        disrupted[name] = change.new.uid
        budget = self._budgets.get(replica.spec.workload_uid, 0)
        if not budget and change.new.status.release.reason == Reason.PREEMPTED:
            return  # with maxUnavailable 0, preemption may still evict one replica at a time
        if len(disrupted) > budget:
            named = ", ".join(f"{key.rpartition('/')[2]} in {cell}" for cell, key in sorted(disrupted))
            what = (
                f"{len(disrupted)} replicas of {replica.spec.workload} are evicted at once (budget {budget}): {named}"
            )
            yield "budget", what, (*(key for _, key in sorted(disrupted)), f"/workloads/{_of(replica)}")


def _is_voluntary_release(old: Replica, new: Replica) -> bool:
    """Whether this change is a voluntary release of a serving replica."""
    block = new.status.release
    if block is None or block == old.status.release or block.attempt != new.status.placement.attempt:
        return False
    reclaimed = block.reason == Reason.PREEMPTED and new.spec.reclaimable
    return stage(old) is Stage.SERVING and block.reason in _CHOSEN and not reclaimed


def _awaits_quota(replica: Replica) -> bool:
    block = replica.status.release
    return block is not None and block.reason == Reason.OVER_QUOTA and stage(replica) is Stage.QUEUED


def _is_drain_overdue(replica: Replica, commit: ObservedCommit) -> bool:
    """Whether the drain time of an ended emergency quota had passed at the release. All times are the cell's."""
    block = replica.status.release
    assert block is not None
    ends_s = [
        parse_time(o.status.expires_at) + (o.spec.drain_seconds or limits.OVER_QUOTA_DRAIN_S)
        for o in commit.state.values()
        if isinstance(o, Override)
        and o.spec.kind is OverrideKind.EMERGENCY_QUOTA
        and o.spec.scope.tenant == replica.metadata.namespace
        and o.status.expires_at
    ]
    return bool(ends_s) and parse_time(block.at) >= min(ends_s)


def _of(replica: Replica) -> str:
    return f"{replica.metadata.namespace}/{replica.spec.workload}"
