"""When a promise was last proven: the newest Recovery that kept it. Pure.

A Recovery proves the objective of a workload if the workload served `minServing` in its target region when the
Recovery became Recovered in time. It proves a RecoveryBudget if, while it holds its recovery replicas, slots of this
budget are in use, by a tenant that the budget admits. A proof is kept after its Recovery is deleted, and only replaced
by a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.model.recovery import Recovery, RecoveryProof, WorkloadProgress, is_open
from holdfast.model.recovery_budget import RecoveryBudgetSpec
from holdfast.model.times import parse_time


def proof_of_workload(
    recoveries: Iterable[Recovery], tenant: str, workload: str, known: RecoveryProof | None
) -> RecoveryProof | None:
    """The newest proof of the workload's objective."""
    return _newest(
        recoveries, lambda row: (row.tenant, row.workload) == (tenant, workload) and row.serving >= row.wanted, known
    )


def proof_of_budget(
    recoveries: Iterable[Recovery], budget: RecoveryBudgetSpec, used_slots: int, known: RecoveryProof | None
) -> RecoveryProof | None:
    """The newest proof of a recovery budget. `used_slots`: its slots in use now, by the report of its region. A closed
    Recovery holds no slots any more, so the use is not by it."""
    if not used_slots:
        return known

    def proves(row: WorkloadProgress) -> bool:
        admitted = not budget.tenants or row.tenant in budget.tenants
        return row.target == budget.region and row.recovery_replicas > 0 and admitted

    return _newest((r for r in recoveries if is_open(r)), proves, known)


def _newest(
    recoveries: Iterable[Recovery], proves: Callable[[WorkloadProgress], bool], known: RecoveryProof | None
) -> RecoveryProof | None:
    newest = known
    for recovery in recoveries:
        at = recovery.status.recovered_at
        if not at or (newest is not None and newest.at >= at):
            continue
        took_s = parse_time(at) - parse_time(recovery.spec.started_at)
        if took_s <= recovery.spec.deadline_seconds and any(proves(row) for row in recovery.status.workloads):
            newest = RecoveryProof(at, recovery.metadata.name, recovery.spec.region, round(took_s, 1))
    return newest
