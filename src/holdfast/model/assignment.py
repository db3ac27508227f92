"""Assignment: how many replicas of a workload one region runs.

It contains everything that the region needs while it is partitioned.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model import limits
from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.template import Template
from holdfast.model.validation import Causes, check_dns_label, check_range, forbidden
from holdfast.model.workload import (
    Batch,
    Disruption,
    Exclusivity,
    Gang,
    IndexFailure,
    Rebalance,
    Rollout,
    WorkloadType,
    is_indexed,
)


class Purpose(enum.StrEnum):
    NORMAL = "Normal"
    RECOVERY = "Recovery"


class Withdrawal(ApiStruct, frozen=True):
    """Exclusive ordinals of scope Global were withdrawn from the region in `epoch`.

    `elapsedSeconds` is the time since the withdrawal was committed. Once a whole tenure has elapsed, the region cannot
    run the ordinals any more."""

    epoch: int
    elapsed_seconds: float = visible_default(0.0)
    last_step_at: str = ""


class AssignmentSpec(ApiStruct, frozen=True):
    """`epoch` increases with every change. A region acts on the newest epoch it has received."""

    workload: str
    workload_uid: str
    region: str
    revision: str
    template: Template
    workload_generation: int = 0
    purpose: Purpose = visible_default(Purpose.NORMAL)
    type: WorkloadType = visible_default(WorkloadType.SERVICE)
    replicas: int = visible_default(0)
    ordinals: tuple[int, ...] = ()
    placement: PlacementRules = msgspec.field(default_factory=PlacementRules)
    priority_class: str = ""
    priority: int = visible_default(0)
    reclaimable: bool = False
    may_preempt: bool = False
    disruption: Disruption = msgspec.field(default_factory=Disruption)
    disruption_share: int | None = None
    """This region's share of `disruption.maxUnavailable`, which counts over all regions. Absent: all of it."""
    disruption_share_peak: int = 0
    """Highest earlier `disruptionShare` that the region may still act on, until it has acknowledged this epoch."""
    rollout: Rollout = msgspec.field(default_factory=Rollout)
    exclusive: Exclusivity | None = None
    batch: Batch | None = None
    gang: Gang | None = None
    dedicated: bool = False
    min_ready_seconds: float = 0.0
    epoch: int = visible_default(1)
    suspended: bool = False
    reason: str = ""
    withdrawal: Withdrawal | None = None
    rebalance: Rebalance | None = None
    done_indexes: str = ""
    """Indexes among `ordinals` that have succeeded, such as `0-3,7`. The region never runs them again."""


class PendingReason(ApiStruct, frozen=True):
    """Number of pending or failing replicas with one reason."""

    reason: str
    count: int = visible_default(0)
    message: str = ""


class AssignmentStatus(ApiStruct, frozen=True):
    """The region's report, derived from its replicas. `updated` and `updatedServing` count replicas of `revision`, the
    desired revision at the time of the count."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    observed_epoch: int = visible_default(0)
    replicas: int = visible_default(0)
    ordinals: tuple[int, ...] = ()
    """Exclusive workloads: the ordinals that `replicas` counts. Another region may run an ordinal only if it is not
    listed here."""
    queued: int = visible_default(0)
    bound: int = visible_default(0)
    started: int = visible_default(0)
    ready: int = visible_default(0)
    serving: int = visible_default(0)
    revision: str = ""
    updated: int = visible_default(0)
    updated_serving: int = visible_default(0)
    unknown: int = 0
    evictions_blocked: int = 0
    """Serving replicas whose drain or preemption is blocked because this region's disruption share is used up."""
    pending_evictions: int = 0
    """Serving replicas that must be evicted and are not released yet, blocked or not. The region requests a
    disruption share for them."""
    awaiting_quota: int = 0
    """Queued replicas that wait for quota and were not evicted for another reason. They use no disruption budget."""
    succeeded: int = 0
    failed: int = 0
    pending: tuple[PendingReason, ...] = ()
    succeeded_indexes: str = ""
    """Indexes of a job array that have succeeded in this region, such as `0-3,7`."""
    failed_indexes: str = ""
    """Indexes that failed more often than `backoffLimitPerIndex` allows."""
    index_failures: tuple[IndexFailure, ...] = ()
    """The last failure of indexes that have not succeeded since."""
    failing: tuple[PendingReason, ...] = ()
    """Replicas that have a node and are not ready: they exited, could not start, wait for artifacts, or their probes
    fail."""


class Assignment(Object, frozen=True):
    spec: AssignmentSpec
    status: AssignmentStatus = msgspec.field(default_factory=AssignmentStatus)


def names_ordinals(spec: AssignmentSpec) -> bool:
    """Whether `ordinals` names what the region runs: ordinals of exclusive work, or indexes of a job array."""
    return spec.exclusive is not None or is_indexed(spec.batch)


def counts_desired_revision(assignment: Assignment) -> bool:
    """Whether `updated` and `updatedServing` count replicas of the desired revision.

    A region of the former release reports no `revision`: the value is empty, or from before a downgrade. Its report
    counts the desired revision if it describes the current epoch.
    """
    spec, status = assignment.spec, assignment.status
    return status.revision == spec.revision or status.observed_epoch >= spec.epoch


def assignment_name(workload: str, region: str, purpose: Purpose = Purpose.NORMAL) -> str:
    return f"{workload}.{region}.{purpose.value.lower()}"


def validate_assignment(assignment: Assignment, old: Assignment | None) -> Causes:
    spec = assignment.spec
    yield from check_dns_label("spec.region", spec.region)
    yield from check_range("spec.replicas", spec.replicas, 0, limits.MAX_REPLICAS)
    expected = assignment_name(spec.workload, spec.region, spec.purpose)
    if assignment.metadata.name != expected:
        yield forbidden("metadata.name", f"an assignment of this workload, region and purpose is named {expected}")
    if old is not None and spec != old.spec and spec.epoch <= old.spec.epoch:
        yield forbidden("spec.epoch", f"must increase with every change; the stored epoch is {old.spec.epoch}")
