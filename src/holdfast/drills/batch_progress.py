"""Changes of batches that proceed by themselves during an incident: a replica succeeds, its claims are released, the
next one is created and placed. They are no reaction to the failure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.drills.change_recorder import RecordedChange
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase
from holdfast.model.workload import WorkloadType

_Batch = tuple[str, str, str]
"""Cell, tenant and workload."""
_KINDS = frozenset({"Replica", "SchedulingRequest", "Reservation", "Binding", "Decision"})


def without_batch_progress(steps: Sequence[RecordedChange]) -> list[RecordedChange]:
    """The changes without the cleanup of replicas that succeeded, and without those of batches that proceed
    undisturbed."""
    succeeding: set[_Batch] = set()
    disturbed: set[_Batch] = set()
    for step in steps:
        if step.kind == "Replica":
            succeeding |= {_batch_of(step)} if _is_finished(step) else set()
            disturbed |= {_batch_of(step)} if _is_disturbed(step) else set()
    undisturbed = succeeding - disturbed
    return [
        step for step in steps if not _is_cleanup(step) and not (step.kind in _KINDS and _batch_of(step) in undisturbed)
    ]


def _is_cleanup(step: RecordedChange) -> bool:
    """Whether finished work is released. A lost contact with its node is no cleanup."""
    return step.kind == "Replica" and _is_finished(step) and "status.contact" not in step.groups


def _batch_of(step: RecordedChange) -> _Batch:
    workload = _field(step.after or step.before, "spec", "workload")
    return step.cell, step.namespace, str(workload or "")


def _is_finished(step: RecordedChange) -> bool:
    item = step.before or step.after
    is_batch = _field(item, "spec", "type") == WorkloadType.BATCH.value
    phases = {_field(version, "status", "execution", "phase") for version in (step.before, step.after)}
    return is_batch and Phase.SUCCEEDED.value in phases


def _is_disturbed(step: RecordedChange) -> bool:
    """Whether the incident may have affected the replica: its node is silent, it is repaired, or it is released
    before its end."""
    status: Any = _field(step.after, "status") or {}
    released = _field(status, "release", "reason")
    return bool(
        _field(status, "contact", "lost") or status.get("repair") or released not in (None, "", Reason.FINISHED.value)
    )


def _field(item: Any, *path: str) -> Any:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item
