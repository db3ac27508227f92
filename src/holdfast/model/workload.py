"""Workload: what a user wants running. The user owns `spec`; three controllers each own a block of `status`."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model import limits
from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.placement_rules import Placement, validate_placement
from holdfast.model.template import RestartPolicy, Template, canonical_template, validate_template
from holdfast.model.validation import Causes, check_dns_label, check_range, forbidden, invalid, required


class WorkloadType(enum.StrEnum):
    SERVICE = "Service"
    BATCH = "Batch"


class ExclusiveScope(enum.StrEnum):
    REGION = "Region"
    GLOBAL = "Global"


class Exclusivity(Part, frozen=True):
    """At most one running instance per ordinal, ever (S7)."""

    scope: ExclusiveScope = shown(ExclusiveScope.REGION)


class Disruption(Part, frozen=True):
    """How many replicas voluntary acts (drain, preemption, rollout) may take away at once."""

    max_unavailable: int = shown(1)


class Rollout(Part, frozen=True):
    max_surge: int = shown(1)
    max_unavailable: int = shown(0)
    progress_deadline_seconds: float = shown(600.0)
    paused: bool = False
    auto_rollback: bool = shown(True)
    wave_regions: int = shown(1)


class ScaleLimits(Part, frozen=True):
    """How far one direction may go in a minute, and how long the loads of the past still speak against it."""

    replicas_per_minute: int = shown(10)
    percent_per_minute: int = shown(100)
    stabilization_seconds: float = shown(0.0)


class Autoscale(Part, frozen=True):
    """Keeps the average load of a serving replica at its target. The load is what was last pushed under the name
    `metric` (`status.load`); `targetCpuPercent` is its target unless `target` says another."""

    max_replicas: int
    min_replicas: int = shown(1)
    target_cpu_percent: int = shown(70)
    metric: str = shown("cpuPercent")
    target: float | None = None
    scale_up: ScaleLimits = msgspec.field(default_factory=ScaleLimits)
    scale_down: ScaleLimits = msgspec.field(
        default_factory=lambda: ScaleLimits(replicas_per_minute=4, percent_per_minute=50, stabilization_seconds=300.0)
    )


class RecoveryPromise(Part, frozen=True):
    """Makes the workload critical: after a region's loss, `minServing` replicas serve in one healthy region in time."""

    min_serving: int = shown(4)
    deadline_seconds: float = shown(300.0)
    regions: tuple[str, ...] = ()


class Batch(Part, frozen=True):
    completions: int = shown(1)
    parallelism: int = shown(1)
    backoff_limit: int = shown(6)
    deadline_seconds: float | None = None
    ttl_after_finished_seconds: float | None = None


class Gang(Part, frozen=True):
    """All or none: at least `minAvailable` members are placed together or none is."""

    min_available: int


class WorkloadSpec(Part, frozen=True):
    type: WorkloadType = shown(WorkloadType.SERVICE)
    replicas: int = shown(1)
    template: Template = msgspec.field(default_factory=Template)
    priority_class_name: str = shown("standard")
    placement: Placement = msgspec.field(default_factory=Placement)
    disruption: Disruption = msgspec.field(default_factory=Disruption)
    rollout: Rollout = msgspec.field(default_factory=Rollout)
    autoscale: Autoscale | None = None
    recovery: RecoveryPromise | None = None
    exclusive: Exclusivity | None = None
    batch: Batch | None = None
    gang: Gang | None = None
    min_ready_seconds: float = 0.0


class RegionProgress(Part, frozen=True):
    """One region's share, as it reported it."""

    region: str
    assigned: int = shown(0)
    bound: int = shown(0)
    ready: int = shown(0)
    serving: int = shown(0)
    pending_reason: str = ""


class Summary(Part, frozen=True):
    """Derived from what regions report; never accumulated."""

    replicas: int = shown(0)
    assigned: int = shown(0)
    bound: int = shown(0)
    started: int = shown(0)
    ready: int = shown(0)
    serving: int = shown(0)
    succeeded: int = 0
    failed: int = 0
    regions: tuple[RegionProgress, ...] = ()
    selector: str = ""


class Wish(Part, frozen=True):
    """How many replicas the load asked for at a moment."""

    at: str
    replicas: int


class ScaleBlock(Part, frozen=True):
    """Autoscale's wish; where present it wins over `spec.replicas`."""

    replicas: int
    reason: str = ""
    message: str = ""
    scaled_at: str = ""
    wishes: tuple[Wish, ...] = ()


class Load(Part, frozen=True):
    """One measured value: the average over the serving replicas, as whoever measures it last said."""

    name: str
    value: float
    at: str = ""


class LoadBlock(Part, frozen=True):
    """Pushed by people and their tools, for autoscaling; too old a value counts for nothing."""

    metrics: tuple[Load, ...] = ()


class RolloutPhase(enum.StrEnum):
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    COMPLETE = "Complete"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"


class Revision(Part, frozen=True):
    """A template the workload had, kept so that it can come back."""

    revision: str
    template: Template
    generation: int = shown(0)
    at: str = ""
    outcome: str = ""


class RolloutBlock(Part, frozen=True):
    """rollout's: which revision is wanted, in which regions it may run by now, and the ones before it.

    `progressedAt` is when the rollout last moved; `serving` how many replicas of the revision served then. `silent` are
    regions that are out of touch: the deadline does not run for them, and begins anew when one is back.
    """

    revision: str = ""
    previous_revision: str = ""
    last_good_revision: str = ""
    phase: str = ""
    message: str = ""
    regions: tuple[str, ...] = ()
    serving: int = shown(0)
    progressed_at: str = ""
    silent: tuple[str, ...] = ()
    history: tuple[Revision, ...] = ()


class BackingBlock(Part, frozen=True):
    """backing's: whether kept places and allowances cover the promise, and what does not if they do not."""

    backed: bool = shown(False)
    reason: str = ""
    message: str = ""


class RegionWait(Part, frozen=True):
    """Replicas wait in a region that is full while another one has room; if they still do in a while they move on."""

    region: str
    reason: str
    since: str


class LeftRegion(Part, frozen=True):
    """`count` replicas that waited in a full region were given to another one; none comes back before `until`."""

    region: str
    to: str
    count: int
    reason: str
    message: str = ""
    at: str = ""
    until: str = ""
    times: int = shown(1)


class MovesBlock(Part, frozen=True):
    """assign's: who waits where for room that another region has, and which regions were left as full."""

    waits: tuple[RegionWait, ...] = ()
    left: tuple[LeftRegion, ...] = ()


class WorkloadStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    summary: Summary = msgspec.field(default_factory=Summary)
    scale: ScaleBlock | None = None
    load: LoadBlock | None = None
    rollout: RolloutBlock | None = None
    backing: BackingBlock | None = None
    moves: MovesBlock | None = None


class Workload(Object, frozen=True):
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


def wanted_replicas(workload: Workload) -> int:
    """How many replicas should exist now: none while it is being deleted."""
    if workload.metadata.terminating:
        return 0
    spec = workload.spec
    if spec.type is WorkloadType.BATCH and spec.batch is not None:
        left = max(0, spec.batch.completions - workload.status.summary.succeeded)
        return min(spec.batch.parallelism, left)
    if workload.status.scale is not None and spec.autoscale is not None:
        return workload.status.scale.replicas
    return spec.replicas


def default_workload(workload: Workload) -> Workload:
    spec = workload.spec
    template = canonical_template(spec.template)
    batch = spec.batch
    if spec.type is WorkloadType.BATCH:
        batch = batch or Batch(completions=spec.replicas, parallelism=spec.replicas)
        if template.restart_policy is RestartPolicy.ALWAYS:
            template = msgspec.structs.replace(template, restart_policy=RestartPolicy.ON_FAILURE)
    if template is spec.template and batch is spec.batch:
        return workload
    return msgspec.structs.replace(workload, spec=msgspec.structs.replace(spec, template=template, batch=batch))


def validate_workload(workload: Workload, old: Workload | None) -> Causes:
    spec = workload.spec
    if old is not None and old.spec == spec:
        return
    if len(workload.metadata.name) > 40:
        yield invalid(
            "metadata.name",
            workload.metadata.name,
            "a workload's name is at most 40 characters, as replica names are built from it",
        )
    if "." in workload.metadata.name:
        yield invalid(
            "metadata.name",
            workload.metadata.name,
            "a workload's name has no dots, as assignment names are built from it",
        )
    yield from check_range("spec.replicas", spec.replicas, 0, limits.MAX_REPLICAS)
    yield from validate_template("spec.template", spec.template)
    yield from validate_placement("spec.placement", spec.placement)
    if not spec.priority_class_name:
        yield required("spec.priorityClassName")
    yield from check_range("spec.disruption.maxUnavailable", spec.disruption.max_unavailable, 0, limits.MAX_REPLICAS)
    yield from check_range("spec.rollout.maxSurge", spec.rollout.max_surge, 0, limits.MAX_REPLICAS)
    yield from check_range("spec.rollout.maxUnavailable", spec.rollout.max_unavailable, 0, limits.MAX_REPLICAS)
    if spec.rollout.max_surge == 0 and spec.rollout.max_unavailable == 0:
        yield invalid(
            "spec.rollout",
            "maxSurge 0, maxUnavailable 0",
            "one of them must be above zero, or a rollout could never move",
        )
    yield from check_range("spec.rollout.progressDeadlineSeconds", spec.rollout.progress_deadline_seconds, 1, 86400)
    yield from check_range("spec.rollout.waveRegions", spec.rollout.wave_regions, 1, 100)
    yield from check_range("spec.minReadySeconds", spec.min_ready_seconds, 0, 3600)
    yield from _validate_options(spec)
    if old is not None and old.spec.type is not spec.type:
        yield forbidden("spec.type", "a workload cannot change between Service and Batch; create another one")
    if old is not None and (old.spec.exclusive is None) != (spec.exclusive is None):
        yield forbidden(
            "spec.exclusive",
            "exclusivity is part of a replica's identity and cannot change; create another workload",
        )


def _validate_autoscale(autoscale: Autoscale) -> Causes:
    yield from check_range("spec.autoscale.targetCpuPercent", autoscale.target_cpu_percent, 1, 100)
    if not autoscale.metric:
        yield required("spec.autoscale.metric", "the name the load is pushed under, for example cpuPercent")
    if autoscale.target is not None and autoscale.target <= 0:
        yield invalid("spec.autoscale.target", str(autoscale.target), "the load of one replica, above zero")
    for name, side in (("scaleUp", autoscale.scale_up), ("scaleDown", autoscale.scale_down)):
        where = f"spec.autoscale.{name}"
        yield from check_range(f"{where}.replicasPerMinute", side.replicas_per_minute, 0, limits.MAX_REPLICAS)
        yield from check_range(f"{where}.percentPerMinute", side.percent_per_minute, 0, 10_000)
        yield from check_range(f"{where}.stabilizationSeconds", side.stabilization_seconds, 0, 3600)


def _validate_options(spec: WorkloadSpec) -> Causes:
    if spec.autoscale is not None:
        yield from check_range("spec.autoscale.minReplicas", spec.autoscale.min_replicas, 0, limits.MAX_REPLICAS)
        yield from check_range(
            "spec.autoscale.maxReplicas",
            spec.autoscale.max_replicas,
            spec.autoscale.min_replicas,
            limits.MAX_REPLICAS,
        )
        yield from _validate_autoscale(spec.autoscale)
        if spec.type is WorkloadType.BATCH:
            yield forbidden("spec.autoscale", "batch work is sized by its completions and parallelism")
    if spec.recovery is not None:
        yield from check_range("spec.recovery.minServing", spec.recovery.min_serving, 1, limits.MAX_REPLICAS)
        yield from check_range("spec.recovery.deadlineSeconds", spec.recovery.deadline_seconds, 30, 86400)
        for index, region in enumerate(spec.recovery.regions):
            yield from check_dns_label(f"spec.recovery.regions[{index}]", region)
        if spec.type is WorkloadType.BATCH:
            yield forbidden("spec.recovery", "a recovery promise is about serving replicas; batch work has none")
    if spec.batch is not None:
        if spec.type is not WorkloadType.BATCH:
            yield forbidden("spec.batch", "only workloads of type Batch have it")
        yield from check_range("spec.batch.completions", spec.batch.completions, 1, limits.MAX_REPLICAS)
        yield from check_range("spec.batch.parallelism", spec.batch.parallelism, 1, limits.MAX_REPLICAS)
        yield from check_range("spec.batch.backoffLimit", spec.batch.backoff_limit, 0, 1000)
        for name, value in (
            ("deadlineSeconds", spec.batch.deadline_seconds),
            ("ttlAfterFinishedSeconds", spec.batch.ttl_after_finished_seconds),
        ):
            if value is not None:
                yield from check_range(f"spec.batch.{name}", value, 0, 366 * 86400)
    if spec.type is WorkloadType.BATCH and spec.template.restart_policy is RestartPolicy.ALWAYS:
        yield invalid("spec.template.restartPolicy", "Always", "batch work ends; use OnFailure or Never")
    if spec.gang is not None:
        yield from check_range("spec.gang.minAvailable", spec.gang.min_available, 1, max(1, spec.replicas))
