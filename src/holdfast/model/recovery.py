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


class WorkloadProgress(Part, frozen=True):
    tenant: str
    workload: str
    target: str = ""
    wanted: int = shown(4)
    assigned: int = shown(0)
    bound: int = shown(0)
    ready: int = shown(0)
    serving: int = shown(0)
    message: str = ""


class RecoverySpec(Part, frozen=True):
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
    recovered_at: str = ""


class Recovery(Object, frozen=True):
    spec: RecoverySpec
    status: RecoveryStatus = msgspec.field(default_factory=RecoveryStatus)


def validate_recovery(recovery: Recovery, old: Recovery | None) -> Causes:
    yield from check_dns_label("spec.region", recovery.spec.region)
