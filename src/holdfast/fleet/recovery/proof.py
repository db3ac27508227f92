"""When a promise was last proven: the newest Recovery that kept it. Pure.

A Recovery proves the objective of a workload if the workload served `minServing` in its target region when the
Recovery became Recovered in time. It proves a RecoveryBudget if it placed recovery replicas in the budget's region. A
proof is kept after its Recovery is deleted, and only replaced by a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.model.recovery import Recovery, RecoveryProof, WorkloadProgress
from holdfast.model.times import parse_time


def proof_of_workload(
    recoveries: Iterable[Recovery], tenant: str, workload: str, known: RecoveryProof | None
) -> RecoveryProof | None:
    """The newest proof of the workload's objective."""
    return _newest(
        recoveries, lambda row: (row.tenant, row.workload) == (tenant, workload) and row.serving >= row.wanted, known
    )


def proof_of_region(recoveries: Iterable[Recovery], region: str, known: RecoveryProof | None) -> RecoveryProof | None:
    """The newest proof of the recovery budgets of a region."""
    return _newest(recoveries, lambda row: row.target == region and row.recovery_replicas > 0, known)


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
