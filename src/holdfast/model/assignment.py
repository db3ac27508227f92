"""Assignment: how much of a workload one region must hold. Embeds all a region needs while it is cut off."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model import limits
from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.placement_rules import Placement
from holdfast.model.template import Template
from holdfast.model.validation import Causes, check_dns_label, check_range, forbidden
from holdfast.model.workload import Batch, Disruption, Exclusivity, Gang, Rollout, WorkloadType


class Purpose(enum.StrEnum):
    NORMAL = "Normal"
    RECOVERY = "Recovery"


class Withdrawal(Part, frozen=True):
    """Exclusive ordinals of scope Global were taken away in `epoch`. `waitedSeconds` counts from when that was seen on
    record: whatever tenure the region may have had for them ends in that time."""

    epoch: int
    waited_seconds: float = shown(0.0)
    seen_at: str = ""


class AssignmentSpec(Part, frozen=True):
    """`epoch` rises with every change; a region acts on the newest it has seen."""

    workload: str
    workload_uid: str
    region: str
    revision: str
    template: Template
    workload_generation: int = 0
    purpose: Purpose = shown(Purpose.NORMAL)
    type: WorkloadType = shown(WorkloadType.SERVICE)
    replicas: int = shown(0)
    ordinals: tuple[int, ...] = ()
    placement: Placement = msgspec.field(default_factory=Placement)
    priority_class: str = ""
    rank: int = shown(0)
    reclaimable: bool = False
    may_preempt: bool = False
    disruption: Disruption = msgspec.field(default_factory=Disruption)
    away_share: int | None = None
    """This region's part of `disruption.maxUnavailable`, which is one count over all regions; absent: all of it."""
    away_peak: int = 0
    """The most the region may still act on from an earlier `awayShare`, until it has acknowledged this epoch."""
    rollout: Rollout = msgspec.field(default_factory=Rollout)
    exclusive: Exclusivity | None = None
    batch: Batch | None = None
    gang: Gang | None = None
    dedicated: bool = False
    min_ready_seconds: float = 0.0
    epoch: int = shown(1)
    suspended: bool = False
    reason: str = ""
    withdrawal: Withdrawal | None = None


class PendingReason(Part, frozen=True):
    """How many replicas wait, and for what."""

    reason: str
    count: int = shown(0)
    message: str = ""


class AssignmentStatus(Part, frozen=True):
    """The region's word, derived from its replicas. `updated` and `updatedServing` count those of `revision`, the one
    that was wanted when they were counted."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    observed_epoch: int = shown(0)
    replicas: int = shown(0)
    ordinals: tuple[int, ...] = ()
    """Of exclusive work: which ones `replicas` counts. Another region may have an ordinal only when it is not here."""
    queued: int = shown(0)
    bound: int = shown(0)
    started: int = shown(0)
    ready: int = shown(0)
    serving: int = shown(0)
    revision: str = ""
    updated: int = shown(0)
    updated_serving: int = shown(0)
    unknown: int = 0
    held_back: int = 0
    """Replicas that are to leave, for a drain or for someone stronger, and stay because as many are away as this
    region may have."""
    to_leave: int = 0
    """Replicas that are to leave and were not let go yet, whether or not the budget lets them: what a part of it is
    wanted for."""
    succeeded: int = 0
    failed: int = 0
    pending: tuple[PendingReason, ...] = ()
    failing: tuple[PendingReason, ...] = ()
    """Replicas that have a place and do not get ready: they ended by themselves, could not start, or their probes
    fail."""


class Assignment(Object, frozen=True):
    spec: AssignmentSpec
    status: AssignmentStatus = msgspec.field(default_factory=AssignmentStatus)


def assignment_name(workload: str, region: str, purpose: Purpose = Purpose.NORMAL) -> str:
    return f"{workload}.{region}.{purpose.value.lower()}"


def validate_assignment(assignment: Assignment, old: Assignment | None) -> Causes:
    spec = assignment.spec
    yield from check_dns_label("spec.region", spec.region)
    yield from check_range("spec.replicas", spec.replicas, 0, limits.MAX_REPLICAS)
    expected = assignment_name(spec.workload, spec.region, spec.purpose)
    if assignment.metadata.name != expected:
        yield forbidden("metadata.name", f"this assignment is named {expected!r}")
    if old is not None and spec != old.spec and spec.epoch <= old.spec.epoch:
        yield forbidden("spec.epoch", f"must rise with every change; the stored one is {old.spec.epoch}")
