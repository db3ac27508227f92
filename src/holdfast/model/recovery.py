"""Recovery: one incident on the clock: evidence, plan, and each workload's way back to serving."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.validation import Causes, check_dns_label


class RecoveryPhase(enum.StrEnum):
    OPEN = "Open"
    RECOVERED = "Recovered"
    FAILING_BACK = "FailingBack"
    CLOSED = "Closed"


class LeftTarget(Part, frozen=True):
    """A region that took the workload and did not bring it to serve: when another one was asked, and the evidence."""

    region: str
    at: str = ""
    reason: str = ""
    message: str = ""


class WorkloadProgress(Part, frozen=True):
    """One critical workload's way back: counts are of everything it has in the target region.

    `best` is the most that was reached there, in stages of replicas, and `progressAt` when; both are empty while it
    waits for its turn and once it serves.
    """

    tenant: str
    workload: str
    target: str = ""
    rank: int = 0
    wanted: int = shown(4)
    drawn: int = shown(0)
    assigned: int = shown(0)
    bound: int = shown(0)
    ready: int = shown(0)
    serving: int = shown(0)
    reason: str = ""
    message: str = ""
    best: int = 0
    progress_at: str = ""
    left: tuple[LeftTarget, ...] = ()


class StageClock(Part, frozen=True):
    """When every workload had reached a stage; empty while one has not."""

    detected_at: str = ""
    assigned_at: str = ""
    bound_at: str = ""
    ready_at: str = ""
    serving_at: str = ""


class Lane(Part, frozen=True):
    """The pace of starts in one target region: none begins before this moment."""

    region: str
    next_at: str = ""


class RecoverySpec(Part, frozen=True):
    """`startedAt` is the last moment the region was heard: the clock runs from there, detection included."""

    region: str
    zone: str = ""
    cause: str = ""
    started_at: str = ""
    deadline_seconds: float = shown(300.0)
    evidence: tuple[str, ...] = ()


class RecoveryStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    phase: RecoveryPhase = shown(RecoveryPhase.OPEN)
    workloads: tuple[WorkloadProgress, ...] = ()
    clock: StageClock = msgspec.field(default_factory=StageClock)
    lanes: tuple[Lane, ...] = ()
    stable_since: str = ""
    recovered_at: str = ""
    closed_at: str = ""
    leftovers: tuple[str, ...] = ()


class Recovery(Object, frozen=True):
    spec: RecoverySpec
    status: RecoveryStatus = msgspec.field(default_factory=RecoveryStatus)


def is_open(recovery: Recovery) -> bool:
    return recovery.status.phase is not RecoveryPhase.CLOSED and not recovery.metadata.terminating


def validate_recovery(recovery: Recovery, old: Recovery | None) -> Causes:
    yield from check_dns_label("spec.region", recovery.spec.region)
