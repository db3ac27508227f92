"""Builds the status of a Recovery (progress per workload, stage clock, condition) and of RecoveryBudgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.fleet.disruption_shares import with_share_peak
from holdfast.fleet.recovery.need import CriticalWorkload
from holdfast.fleet.recovery.objective import objective_condition
from holdfast.fleet.recovery.proof import proof_of_budget
from holdfast.model.assignment import Assignment, Purpose, assignment_name
from holdfast.model.meta import Condition
from holdfast.model.reasons import Reason
from holdfast.model.recovery import (
    ObjectiveOutcome,
    Recovery,
    RecoveryPhase,
    RecoverySpec,
    RecoveryStatus,
    StageClock,
    WorkloadProgress,
    live_rows,
    objective_outcome,
    serves_elsewhere,
)
from holdfast.model.recovery_budget import RecoveryBudget, SlotShape
from holdfast.model.region import RecoverySlotReport, Region
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import Workload
from holdfast.model.writes import SetStatus, Update, Write

# Interval at which an open Recovery compares need and progress.
RECOVERY_CHECK_EVERY_S = 0.5

# Assignments suspended or resumed in one pass of a recovery. The rest follows in the next pass.
SUSPENSIONS_PER_PASS = 256


def workload_progress(critical: CriticalWorkload, target: str, view: View, *, reason: str) -> WorkloadProgress:
    standing = critical.counts_in(target)
    own = view.get(Assignment, assignment_name(critical.name, target, Purpose.RECOVERY), critical.tenant)
    message = ""
    if not target:
        reason, message = Reason.NO_TARGET.value, "no healthy region is allowed to run it"
    elif not reason and standing.serving < critical.objective.min_serving:
        reason = Reason.RECOVERING.value
        if own is not None and own.status.pending:
            reason, message = own.status.pending[0].reason, own.status.pending[0].message
    return WorkloadProgress(
        tenant=critical.tenant,
        workload=critical.name,
        target=target,
        priority=critical.priority,
        wanted=critical.objective.min_serving,
        recovery_replicas=own.spec.replicas if own is not None else 0,
        assigned=standing.assigned,
        bound=standing.bound,
        ready=standing.ready,
        serving=standing.serving,
        reason=reason,
        message=message,
    )


def with_served_time(
    row: WorkloadProgress, known: WorkloadProgress | None, spec: RecoverySpec, now: float
) -> WorkloadProgress:
    """The row with the time at which the workload first served, which stays."""
    if known is not None and known.served_at:
        return msgspec.structs.replace(row, served_at=known.served_at, served_after_seconds=known.served_after_seconds)
    if not row.target or not serves_elsewhere(row, spec):
        return row
    took_s = now - parse_time(spec.started_at) if spec.started_at else 0.0
    return msgspec.structs.replace(row, served_at=micro_text(now), served_after_seconds=round(took_s, 1))


def withdrawn_rows(
    old: Iterable[WorkloadProgress], rows: Sequence[WorkloadProgress], view: View, now: float
) -> Iterable[WorkloadProgress]:
    """Rows of workloads that are not critical any more. The record of an incident does not depend on later deletions.
    A new critical workload of the same name replaces its row, so there is one per name."""
    present = {(row.tenant, row.workload) for row in rows}
    for row in old:
        if (row.tenant, row.workload) in present:
            continue
        if row.withdrawn_at:
            yield row
            continue
        workload = view.get(Workload, row.workload, row.tenant)
        deleted = workload is None or workload.metadata.terminating
        yield msgspec.structs.replace(
            row,
            reason="",
            message="the workload was deleted" if deleted else "the workload has no recovery objective any more",
            withdrawn_at=micro_text(now),
        )


def stage_clock(old: StageClock, rows: Sequence[WorkloadProgress], now: float) -> StageClock:
    """A stage is reached when every workload has reached it. A reached stage stays."""
    at = micro_text(now)

    def reached(known: str, stage: str) -> str:
        return known or (at if all(getattr(row, stage) >= row.wanted for row in rows) else "")

    return StageClock(
        detected_at=old.detected_at or at,
        assigned_at=reached(old.assigned_at, "assigned"),
        bound_at=reached(old.bound_at, "bound"),
        ready_at=reached(old.ready_at, "ready"),
        serving_at=reached(old.serving_at, "serving"),
    )


_PHASE_REASONS = {
    RecoveryPhase.OPEN: Reason.RECOVERING,
    RecoveryPhase.RECOVERED: Reason.RECOVERED,
    RecoveryPhase.FAILING_BACK: Reason.FAILING_BACK,
    RecoveryPhase.CLOSED: Reason.RECOVERY_CLOSED,
}


def phase_condition(recovery: Recovery, status: RecoveryStatus, now: float) -> Condition:
    rows = live_rows(status)
    short = [row for row in rows if not serves_elsewhere(row, recovery.spec)]
    message = f"{len(rows) - len(short)} of {len(rows)} critical workload(s) serve elsewhere"
    reason = _PHASE_REASONS[status.phase]
    if status.phase is RecoveryPhase.OPEN:
        if objective_outcome(recovery.spec, status, now) is ObjectiveOutcome.MISSED:
            reason = Reason.OBJECTIVE_MISSED
        first = next((row for row in short if row.reason), None)
        if first is not None:
            message += f"; {first.tenant}/{first.workload}: {first.reason}"
    if gone := len(status.workloads) - len(rows):
        message += f"; {gone} withdrawn since"
    recovered = status.phase is not RecoveryPhase.OPEN and bool(status.recovered_at)
    return Condition(
        type="Recovered",
        status="True" if recovered else "False",
        reason=reason,
        message=message,
        observed_generation=recovery.metadata.generation,
    )


def status_write(recovery: Recovery, status: RecoveryStatus, now: float) -> SetStatus | None:
    """The write of a changed status, or None if it is unchanged."""
    conditions = (phase_condition(recovery, status, now), objective_condition(recovery, status, now))
    stored = {(c.type, c.status, c.reason, c.message) for c in recovery.status.conditions}
    same = stored >= {(c.type, c.status, c.reason, c.message) for c in conditions}
    if status == recovery.status and same:
        return None
    blocks = {
        field.encode_name: getattr(status, field.name)
        for field in msgspec.structs.fields(RecoveryStatus)
        if field.name not in ("conditions", "observed_generation")
        and getattr(status, field.name) != getattr(recovery.status, field.name)
    }
    return SetStatus(
        "Recovery",
        recovery.key,
        recovery.uid,
        blocks=blocks,
        conditions=conditions,
        observed_generation=recovery.metadata.generation,
    )


def suspension_writes(region: str, view: View, *, suspended: bool) -> Iterable[Write]:
    """Writes that suspend or resume the region's Assignments. A suspended one creates no new replicas."""
    found = 0
    for item in view.by(Assignment, "region", region):
        if item.spec.suspended == suspended or item.metadata.terminating or item.spec.purpose is not Purpose.NORMAL:
            continue
        if found == SUSPENSIONS_PER_PASS:
            return
        found += 1
        spec = msgspec.structs.replace(item.spec, suspended=suspended, epoch=item.spec.epoch + 1)
        yield Update(msgspec.structs.replace(item, spec=with_share_peak(spec, item)))


def _is_admitted_and_spread(shape: SlotShape, index: int, reported: Sequence[RecoverySlotReport]) -> bool:
    """Whether all slots of one shape are admitted, in at least `minZones` zones (or as many as there are slots)."""
    mine = [p for p in reported if p.shape_index == index and p.admitted]
    return sum(p.admitted for p in mine) >= shape.count and len({p.zone for p in mine}) >= min(
        shape.min_zones, shape.count
    )


def budget_writes(region: Region, view: View) -> list[Write]:
    """Status writes of the region's budgets, from its report of admitted and consumed slots."""
    report = region.status.report
    if report is None:
        return []
    writes: list[Write] = []
    for budget in view.list(RecoveryBudget):
        if budget.spec.region != region.metadata.name:
            continue
        mine = [p for p in report.recovery_slots if p.budget == budget.metadata.name]
        kept, drawn = sum(p.admitted for p in mine), sum(p.consumed for p in mine)
        wanted = sum(slot.count for slot in budget.spec.slot_shapes)
        zones = len({p.zone for p in mine if p.admitted})
        whole = all(_is_admitted_and_spread(shape, index, mine) for index, shape in enumerate(budget.spec.slot_shapes))
        condition = Condition(
            type="SlotsAdmitted",
            status="True" if whole else "False",
            reason=Reason.SLOTS_ADMITTED if whole else Reason.SLOTS_UNSCHEDULABLE,
            message=f"{kept} of {wanted} slots admitted in {zones} zone(s), {drawn} in use",
            observed_generation=budget.metadata.generation,
        )
        known = next((c for c in budget.status.conditions if c.type == "SlotsAdmitted"), None)
        same = known is not None and (known.status, known.message) == (condition.status, condition.message)
        current = budget.status.observed_generation == budget.metadata.generation
        proven = proof_of_budget(view.list(Recovery), budget.spec, drawn, budget.status.last_proven)
        counts = (budget.status.admitted, budget.status.consumed)
        if same and current and counts == (kept, drawn) and proven == budget.status.last_proven:
            continue
        blocks = {"admitted": kept, "consumed": drawn, "last_proven": proven}
        writes.append(
            SetStatus(
                "RecoveryBudget",
                budget.key,
                budget.uid,
                blocks=blocks,
                conditions=(condition,),
                observed_generation=budget.metadata.generation,
            )
        )
    return writes
