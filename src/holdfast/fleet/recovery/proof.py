"""When a promise was last proven: the newest Recovery that kept it. Pure.

A Recovery that met its objective proves it for each workload that served `minServing` in its target region within the
deadline, unless the workload was withdrawn since. It proves a RecoveryBudget if, while it holds its recovery replicas,
slots of this budget are in use, by a tenant that the budget admits. A proof is kept after its Recovery is deleted, and
only replaced by a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.model.recovery import (
    ObjectiveOutcome,
    Recovery,
    RecoveryProof,
    RecoverySpec,
    WorkloadProgress,
    is_late,
    is_open,
    live_rows,
    objective_outcome,
)
from holdfast.model.recovery_budget import RecoveryBudgetSpec
from holdfast.model.times import parse_time


def proof_of_workload(
    recoveries: Iterable[Recovery], tenant: str, workload: str, known: RecoveryProof | None
) -> RecoveryProof | None:
    """The newest proof of the workload's objective."""

    def proves(row: WorkloadProgress, spec: RecoverySpec) -> bool:
        return (row.tenant, row.workload) == (tenant, workload) and not is_late(row, spec)

    return _newest(recoveries, proves, known, served=lambda row: row.served_at)


def proof_of_budget(
    recoveries: Iterable[Recovery], budget: RecoveryBudgetSpec, used_slots: int, known: RecoveryProof | None
) -> RecoveryProof | None:
    """The newest proof of a recovery budget. `used_slots`: its slots in use now, by the report of its region. A closed
    Recovery holds no slots any more, so the use is not by it."""
    if not used_slots:
        return known

    def proves(row: WorkloadProgress, spec: RecoverySpec) -> bool:
        admitted = not budget.tenants or row.tenant in budget.tenants
        return row.target == budget.region and row.recovery_replicas > 0 and admitted

    return _newest((r for r in recoveries if is_open(r)), proves, known, served=lambda row: "")


def _newest(
    recoveries: Iterable[Recovery],
    proves: Callable[[WorkloadProgress, RecoverySpec], bool],
    known: RecoveryProof | None,
    *,
    served: Callable[[WorkloadProgress], str],
) -> RecoveryProof | None:
    """`served`: when the promise of the row was kept; empty if that is when all workloads served."""
    newest = known
    for recovery in recoveries:
        at = recovery.status.recovered_at
        if not at or (newest is not None and newest.at >= at):
            continue
        met = objective_outcome(recovery.spec, recovery.status, parse_time(at)) is ObjectiveOutcome.MET
        row = next((row for row in live_rows(recovery.status) if proves(row, recovery.spec)), None)
        if met and row is not None:
            took_s = parse_time(served(row) or at) - parse_time(recovery.spec.started_at)
            newest = RecoveryProof(at, recovery.metadata.name, recovery.spec.region, round(took_s, 1))
    return newest
