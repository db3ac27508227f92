"""Recovery: one capacity-loss incident, with its evidence and the progress of each critical workload."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount
from holdfast.model.reasons import Reason
from holdfast.model.times import parse_time
from holdfast.model.validation import Causes, check_dns_label

OBJECTIVE_MET = "ObjectiveMet"
"""Condition type: whether all workloads of the Recovery served `minServing` elsewhere within the deadline."""


class RecoveryPhase(enum.StrEnum):
    OPEN = "Open"
    RECOVERED = "Recovered"
    FAILING_BACK = "FailingBack"
    CLOSED = "Closed"


class AbandonedTarget(ApiStruct, frozen=True):
    """A target region that was abandoned because the workload made no progress there, with the evidence."""

    region: str
    at: str = ""
    reason: str = ""
    message: str = ""


class RecoveryProof(ApiStruct, frozen=True):
    """The newest Recovery, of a drill or a real loss, that kept the promise: when, after the loss of which region, and
    how many seconds after the region's last report: for a workload its own time, for a budget that of all workloads."""

    at: str
    recovery: str
    region: str
    seconds: float = visible_default(0.0)


class WorkloadProgress(ApiStruct, frozen=True):
    """Progress of one critical workload. Counts cover all its replicas in the target region, ordinary and recovery.

    A workload that is deleted or gives up its objective while the Recovery is open keeps its row, with the last counts
    and `withdrawnAt`. It delays nothing any more.

    `bestProgress` is the highest value of bound + ready + serving so far, `lastProgressAt` the time it was reached.
    Both are unset while the workload waits for its turn and after it serves `minServing`. `recoveryReplicas` is the
    size of the recovery Assignment.
    """

    tenant: str
    workload: str
    target: str = ""
    priority: int = 0
    wanted: int = visible_default(4)
    recovery_replicas: int = visible_default(0)
    assigned: int = visible_default(0)
    bound: int = visible_default(0)
    ready: int = visible_default(0)
    serving: int = visible_default(0)
    reason: str = ""
    message: str = ""
    best_progress: int = 0
    last_progress_at: str = ""
    abandoned_targets: tuple[AbandonedTarget, ...] = ()
    served_at: str = ""
    served_after_seconds: float = 0.0
    withdrawn_at: str = ""


class StageClock(ApiStruct, frozen=True):
    """When all workloads had reached each stage; empty while one has not."""

    detected_at: str = ""
    assigned_at: str = ""
    bound_at: str = ""
    ready_at: str = ""
    serving_at: str = ""


class StartRateLimit(ApiStruct, frozen=True):
    """Rate limit of starts in one target region: the next start is at `nextAt` or later."""

    region: str
    next_at: str = ""


class BorrowedShare(ApiStruct, frozen=True):
    """What a tenant used in a target region beyond its ordinary grants, at its peak: recovery replicas, their
    resources, and the largest share of any resource of the region. `returnedAt` is empty while some are left."""

    tenant: str
    region: str
    peak_replicas: int = visible_default(0)
    peak: dict[str, Amount] = {}
    percent_of_region: float = 0.0
    since: str = ""
    returned_at: str = ""


class ObjectiveOutcome(enum.StrEnum):
    """What became of the recovery objectives of an incident. `RegionReturned`: the lost region was healthy again before
    the deadline, and some workload did not serve elsewhere by then. This neither keeps nor breaks the objective."""

    PENDING = "Pending"
    MET = "Met"
    MISSED = "Missed"
    REGION_RETURNED = "RegionReturned"


class RecoverySpec(ApiStruct, frozen=True):
    """`startedAt` is the last contact with the lost region. The deadline counts from then, so it includes detection."""

    region: str
    zone: str = ""
    cause: str = ""
    started_at: str = ""
    deadline_seconds: float = visible_default(300.0)
    evidence: tuple[str, ...] = ()


class RecoveryStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    phase: RecoveryPhase = visible_default(RecoveryPhase.OPEN)
    workloads: tuple[WorkloadProgress, ...] = ()
    clock: StageClock = msgspec.field(default_factory=StageClock)
    start_rate_limits: tuple[StartRateLimit, ...] = ()
    stable_since: str = ""
    recovered_at: str = ""
    closed_at: str = ""
    remaining: tuple[str, ...] = ()
    borrowed: tuple[BorrowedShare, ...] = ()
    """The fairness record: who had more than its share in the disaster, how much, and when it was given back."""


class Recovery(Object, frozen=True):
    spec: RecoverySpec
    status: RecoveryStatus = msgspec.field(default_factory=RecoveryStatus)


def objective_outcome(spec: RecoverySpec, status: RecoveryStatus, now: float) -> ObjectiveOutcome:
    """The outcome by the deadline of the incident. A missed objective stays missed, whatever happens later. A region
    that is healthy since before the deadline has returned once failback begins; until then the outcome is pending."""
    started_s = parse_time(spec.started_at) if spec.started_at else now
    deadline_s = started_s + spec.deadline_seconds
    if status.recovered_at and parse_time(status.recovered_at) <= deadline_s:
        return ObjectiveOutcome.MET
    if status.stable_since and parse_time(status.stable_since) <= deadline_s:
        returned = status.phase in (RecoveryPhase.FAILING_BACK, RecoveryPhase.CLOSED)
        return ObjectiveOutcome.REGION_RETURNED if returned else ObjectiveOutcome.PENDING
    if status.recovered_at:
        return ObjectiveOutcome.MISSED
    ended_s = parse_time(status.closed_at) if status.closed_at else now
    return ObjectiveOutcome.MISSED if ended_s > deadline_s else ObjectiveOutcome.PENDING


def serves_elsewhere(row: WorkloadProgress, spec: RecoverySpec) -> bool:
    """Whether the workload serves in a region that was not lost. A lost region that has returned may be its target too,
    but proves nothing about another region. After the loss of a zone or of other capacity, the region itself may serve.
    """
    region_lost = not spec.zone and spec.cause != Reason.CAPACITY_LOST
    return row.serving >= row.wanted and not (region_lost and row.target == spec.region)


def is_late(row: WorkloadProgress, spec: RecoverySpec) -> bool:
    """Whether the workload did not serve `minServing` elsewhere within the deadline of the incident."""
    if not row.served_at or not spec.started_at:
        return not row.served_at and not row.withdrawn_at
    return parse_time(row.served_at) - parse_time(spec.started_at) > spec.deadline_seconds


def live_rows(status: RecoveryStatus) -> list[WorkloadProgress]:
    """The workloads that still have an objective."""
    return [row for row in status.workloads if not row.withdrawn_at]


def judged_rows(status: RecoveryStatus) -> list[WorkloadProgress]:
    """The workloads that the outcome is about: all but those that were withdrawn before they served."""
    return [row for row in status.workloads if row.served_at or not row.withdrawn_at]


def is_open(recovery: Recovery) -> bool:
    return recovery.status.phase is not RecoveryPhase.CLOSED and not recovery.metadata.terminating


def validate_recovery(recovery: Recovery, old: Recovery | None) -> Causes:
    yield from check_dns_label("spec.region", recovery.spec.region)
