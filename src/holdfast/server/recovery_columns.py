"""Columns of recoveries in `kubectl get`."""

from __future__ import annotations

from holdfast.model.meta import find_condition
from holdfast.model.reasons import Reason
from holdfast.model.recovery import OBJECTIVE_MET, ObjectiveOutcome, Recovery
from holdfast.model.times import parse_time
from holdfast.server.table_column import NONE, TableColumn, column_field

_OBJECTIVES: dict[str, str] = {
    Reason.RECOVERING: ObjectiveOutcome.PENDING,
    Reason.RECOVERED: ObjectiveOutcome.MET,
    Reason.OBJECTIVE_MISSED: ObjectiveOutcome.MISSED,
    Reason.REGION_RETURNED: ObjectiveOutcome.REGION_RETURNED,
}


def _recovered_count(recovery: Recovery) -> str:
    done = sum(1 for w in recovery.status.workloads if w.serving >= w.wanted)
    return f"{done}/{len(recovery.status.workloads)}"


def _objective_outcome(recovery: Recovery) -> str:
    """The outcome that the condition `ObjectiveMet` records."""
    found = find_condition(recovery.status.conditions, OBJECTIVE_MET)
    return _OBJECTIVES.get(found.reason, NONE) if found is not None else NONE


def _seconds(recovery: Recovery) -> str:
    if not recovery.status.recovered_at or not recovery.spec.started_at:
        return NONE
    return f"{parse_time(recovery.status.recovered_at) - parse_time(recovery.spec.started_at):.1f}"


RECOVERY_COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "Recovery": (
        TableColumn("Region", column_field("spec.region")),
        TableColumn("Phase", column_field("status.phase")),
        TableColumn("Recovered", _recovered_count, description="workloads that serve minServing/all"),
        TableColumn("Objective", _objective_outcome, description="Met, Missed, RegionReturned, or Pending"),
        TableColumn("Seconds", _seconds, description="from the last report until all workloads served"),
        TableColumn("Deadline", lambda r: f"{r.spec.deadline_seconds:g}", description="the shortest of its workloads"),
        TableColumn("Cause", column_field("spec.cause"), wide=True),
    )
}
