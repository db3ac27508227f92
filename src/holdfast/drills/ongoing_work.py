"""Changes that go on by themselves during an incident and are no reaction to the failure. Pure.

- Batches: a replica succeeds, its claims are released, the next one is created and placed.
- Rebalancing: a replica is moved for a more even spread, at a time that depends on earlier changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.drills.change_recorder import RecordedChange
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase
from holdfast.model.workload import WorkloadType

_Work = tuple[str, str, str]
"""Cell, tenant and workload."""
_KINDS = frozenset({"Replica", "SchedulingRequest", "Reservation", "Binding", "Decision", "Endpoint"})
_SHARE_FIELDS = frozenset({"disruptionShare", "disruptionSharePeak", "epoch"})
_STATUS_GROUPS = frozenset({"status", "status.rollout", "status.summary"})


def without_ongoing_work(steps: Sequence[RecordedChange]) -> list[RecordedChange]:
    """The changes without the cleanup of replicas that succeeded, and without those of batches that proceed and of
    workloads that are rebalanced undisturbed."""
    batches = _undisturbed(steps, _is_finished, Reason.FINISHED)
    rebalanced = _undisturbed(steps, _is_rebalanced, Reason.REBALANCED)
    return [
        step
        for step in steps
        if not _is_cleanup(step)
        and not (step.kind in _KINDS and _work_of(step) in batches | rebalanced)
        and not _is_summary_of(step, rebalanced)
    ]


def _undisturbed(
    steps: Sequence[RecordedChange], is_ongoing: Callable[[RecordedChange], bool], expected: Reason
) -> set[_Work]:
    """The work of which a replica is `is_ongoing`, and none is affected by the incident."""
    replicas = [step for step in steps if step.kind == "Replica"]
    ongoing = {_work_of(step) for step in replicas if is_ongoing(step)}
    return ongoing - {_work_of(step) for step in replicas if _is_disturbed(step, expected)}


def _is_summary_of(step: RecordedChange, rebalanced: set[_Work]) -> bool:
    """Whether the global cell follows a move: it gives the region a disruption share, or its rollout status counts the
    serving replicas."""
    if step.cell != "global" or step.op != "changed":
        return False
    if step.kind == "Assignment":
        region = str(_field(step.after, "spec", "region") or "")
        _, tenant, workload = _work_of(step)
        return (region, tenant, workload) in rebalanced and _differing(step) <= _SHARE_FIELDS
    moved = {(tenant, workload) for _, tenant, workload in rebalanced}
    return step.kind == "Workload" and (step.namespace, step.name) in moved and set(step.groups) <= _STATUS_GROUPS


def _differing(step: RecordedChange) -> set[str]:
    """Names of the spec fields that differ."""
    old, new = _field(step.before, "spec") or {}, _field(step.after, "spec") or {}
    return {name for name in {*old, *new} if old.get(name) != new.get(name)}


def _is_cleanup(step: RecordedChange) -> bool:
    """Whether finished work is released. A lost contact with its node is no cleanup."""
    return step.kind == "Replica" and _is_finished(step) and "status.contact" not in step.groups


def _work_of(step: RecordedChange) -> _Work:
    workload = _field(step.after or step.before, "spec", "workload")
    return step.cell, step.namespace, str(workload or "")


def _is_finished(step: RecordedChange) -> bool:
    item = step.before or step.after
    is_batch = _field(item, "spec", "type") == WorkloadType.BATCH.value
    phases = {_field(version, "status", "execution", "phase") for version in (step.before, step.after)}
    return is_batch and Phase.SUCCEEDED.value in phases


def _is_rebalanced(step: RecordedChange) -> bool:
    reasons = {_field(version, "status", "release", "reason") for version in (step.before, step.after)}
    return Reason.REBALANCED.value in reasons or "status.rebalance" in step.groups


def _is_disturbed(step: RecordedChange, expected: Reason) -> bool:
    """Whether the incident may have affected the replica: its node is silent, it is repaired, or it is released for
    another reason than the expected one."""
    status: Any = _field(step.after, "status") or {}
    released = _field(status, "release", "reason")
    return bool(_field(status, "contact", "lost") or status.get("repair") or released not in (None, "", expected.value))


def _field(item: Any, *path: str) -> Any:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item
