"""The condition `ObjectiveMet` of a Recovery: whether its workloads served in time, and which did not. Pure.

The condition stays on the closed Recovery, so that a missed deadline is seen after the incident.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.meta import Condition
from holdfast.model.reasons import Reason
from holdfast.model.recovery import (
    OBJECTIVE_MET,
    ObjectiveOutcome,
    Recovery,
    RecoverySpec,
    RecoveryStatus,
    WorkloadProgress,
    is_late,
    judged_rows,
    live_rows,
    objective_outcome,
)
from holdfast.model.times import micro_text, parse_time

# Workloads that the condition names. Further ones are counted.
WORKLOADS_NAMED_MAX = 5

_OUTCOMES = {
    ObjectiveOutcome.PENDING: ("Unknown", Reason.RECOVERING),
    ObjectiveOutcome.MET: ("True", Reason.RECOVERED),
    ObjectiveOutcome.MISSED: ("False", Reason.OBJECTIVE_MISSED),
    ObjectiveOutcome.REGION_RETURNED: ("Unknown", Reason.REGION_RETURNED),
}


def objective_condition(recovery: Recovery, status: RecoveryStatus, now: float) -> Condition:
    outcome = objective_outcome(recovery.spec, status, now)
    known, reason = _OUTCOMES[outcome]
    return Condition(
        type=OBJECTIVE_MET,
        status=known,
        reason=reason,
        message=_message(outcome, recovery.spec, status, now),
        observed_generation=recovery.metadata.generation,
    )


def _message(outcome: ObjectiveOutcome, spec: RecoverySpec, status: RecoveryStatus, now: float) -> str:
    started_s = parse_time(spec.started_at) if spec.started_at else now
    objective = f"the objective is {spec.deadline_seconds:g} s after the last report"
    match outcome:
        case ObjectiveOutcome.PENDING:
            due = f"{objective}, {micro_text(started_s + spec.deadline_seconds)}"
            back = f"; region {spec.region} is healthy since {status.stable_since}" if status.stable_since else ""
            return due + back
        case ObjectiveOutcome.REGION_RETURNED:
            short = _named([_late_text(row, started_s) for row in status.workloads if is_late(row, spec)])
            returned = f"region {spec.region} was healthy again at {status.stable_since}, before the deadline"
            return f"{returned}; not served elsewhere by then: {short}" if short else returned
    if not status.recovered_at:
        short = _named([lack_text(row) for row in live_rows(status) if row.serving < row.wanted])
        return f"{objective}; late: {short}"
    took_s = parse_time(status.recovered_at) - started_s
    served = f"{len(judged_rows(status))} critical workload(s) served after {took_s:.1f} s; {objective}"
    if outcome is ObjectiveOutcome.MET:
        return served  # a workload that was added since may serve later
    late = _named([_late_text(row, started_s) for row in status.workloads if is_late(row, spec)])
    return f"{served}; late: {late}" if late else served


def _late_text(row: WorkloadProgress, started_s: float) -> str:
    if not row.served_at:
        return lack_text(row)
    return f"{row.tenant}/{row.workload} (served after {parse_time(row.served_at) - started_s:.1f} s)"


def lack_text(row: WorkloadProgress) -> str:
    """The workload, and what it lacks in its target region."""
    where = f"serve in {row.target}" if row.target else "serve"
    said = ": ".join(text for text in (row.reason, row.message) if text)
    return f"{row.tenant}/{row.workload}: {row.serving} of {row.wanted} {where}" + (f" ({said})" if said else "")


def _named(texts: Sequence[str]) -> str:
    more = len(texts) - WORKLOADS_NAMED_MAX
    return "; ".join([*texts[:WORKLOADS_NAMED_MAX], *([f"{more} more"] if more > 0 else [])])
