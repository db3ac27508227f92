"""Workload: what a user wants to run. The user writes `spec`; each block of `status` has one controller as writer."""

from __future__ import annotations

import enum
from functools import partial

import msgspec

from holdfast.model import limits, rule_conflicts
from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.placement_rules import PlacementRules, validate_placement
from holdfast.model.recovery import RecoveryProof
from holdfast.model.template import (
    RestartPolicy,
    Template,
    canonical_template,
    is_unresolved,
    template_hash,
    validate_template,
)
from holdfast.model.template_volume import validate_claim_use
from holdfast.model.validation import Causes, ValidParts, check_dns_label, check_range, forbidden, invalid, required
from holdfast.model.workload_blocks import ConfigBlock, ImageBlock

# Indexes of one job array. More are refused: an Assignment lists its indexes, and its status the failed ones.
ARRAY_INDEXES_MAX = 10_000


class WorkloadType(enum.StrEnum):
    SERVICE = "Service"
    BATCH = "Batch"


class ExclusiveScope(enum.StrEnum):
    REGION = "Region"
    GLOBAL = "Global"


class Exclusivity(ApiStruct, frozen=True):
    """At most one running instance per ordinal, in the region or globally (S7)."""

    scope: ExclusiveScope = visible_default(ExclusiveScope.REGION)


class Disruption(ApiStruct, frozen=True):
    """Limit on voluntary disruption, counted across all regions: drains, API evictions, preemption of firm work,
    over-quota draining. Rollouts are limited by `spec.rollout.maxUnavailable` instead."""

    max_unavailable: int = visible_default(1)


class Rollout(ApiStruct, frozen=True):
    max_surge: int = visible_default(1)
    max_unavailable: int = visible_default(0)
    progress_deadline_seconds: float = visible_default(600.0)
    paused: bool = False
    auto_rollback: bool = visible_default(True)
    wave_regions: int = visible_default(1)


class ScaleLimits(ApiStruct, frozen=True):
    """Rate limit of one scaling direction per minute (the larger of the two values), and its stabilization window."""

    replicas_per_minute: int = visible_default(10)
    percent_per_minute: int = visible_default(100)
    stabilization_seconds: float = visible_default(0.0)


class Autoscale(ApiStruct, frozen=True):
    """Keeps the average load of a serving replica at its target. The load is the last value pushed as `metric`
    (`status.load`). The target is `target`, or `targetCpuPercent` if that is not set."""

    max_replicas: int
    min_replicas: int = visible_default(1)
    target_cpu_percent: int = visible_default(70)
    metric: str = visible_default("cpuPercent")
    target: float | None = None
    scale_up: ScaleLimits = msgspec.field(default_factory=ScaleLimits)
    scale_down: ScaleLimits = msgspec.field(
        default_factory=lambda: ScaleLimits(replicas_per_minute=4, percent_per_minute=50, stabilization_seconds=300.0)
    )


class RecoveryObjective(ApiStruct, frozen=True):
    """Makes the workload critical: after the loss of a region, `minServing` replicas serve in one healthy region in
    time."""

    min_serving: int = visible_default(4)
    deadline_seconds: float = visible_default(300.0)
    regions: tuple[str, ...] = ()


class ReassignAfterLoss(ApiStruct, frozen=True):
    """For a service without `recovery`: replicas in a lost region are assigned elsewhere `afterSeconds` after the loss
    (0: never). With `failback` the region gets them back; otherwise they stay."""

    after_seconds: float
    failback: bool = visible_default(False)


class Rebalance(ApiStruct, frozen=True):
    """When running replicas of a service move to a zone or node with fewer of them: after the uneven spread has lasted
    `afterSeconds` (0: never)."""

    after_seconds: float = visible_default(limits.REBALANCE_AFTER_S)


class CompletionMode(enum.StrEnum):
    NON_INDEXED = "NonIndexed"
    INDEXED = "Indexed"


class Batch(ApiStruct, frozen=True):
    completions: int = visible_default(1)
    parallelism: int = visible_default(1)
    backoff_limit: int = visible_default(6)
    deadline_seconds: float | None = None
    ttl_after_finished_seconds: float | None = None
    completion_mode: CompletionMode = CompletionMode.NON_INDEXED
    """Indexed: a job array. Each index from 0 to completions - 1 must succeed once."""
    backoff_limit_per_index: int | None = None
    active_deadline_seconds: float | None = None


def is_indexed(batch: Batch | None) -> bool:
    """Whether the batch is a job array."""
    return batch is not None and batch.completion_mode is CompletionMode.INDEXED


class Gang(ApiStruct, frozen=True):
    """At least `minAvailable` replicas are placed together, or none."""

    min_available: int


class WorkloadSpec(ApiStruct, frozen=True):
    type: WorkloadType = visible_default(WorkloadType.SERVICE)
    replicas: int = visible_default(1)
    template: Template = msgspec.field(default_factory=Template)
    priority_class_name: str = visible_default("standard")
    placement: PlacementRules = msgspec.field(default_factory=PlacementRules)
    disruption: Disruption = msgspec.field(default_factory=Disruption)
    rollout: Rollout = msgspec.field(default_factory=Rollout)
    autoscale: Autoscale | None = None
    recovery: RecoveryObjective | None = None
    reassign: ReassignAfterLoss | None = None
    exclusive: Exclusivity | None = None
    batch: Batch | None = None
    gang: Gang | None = None
    min_ready_seconds: float = 0.0
    rebalance: Rebalance | None = None


class RegionProgress(ApiStruct, frozen=True):
    """Replicas in one region, as reported by it."""

    region: str
    assigned: int = visible_default(0)
    bound: int = visible_default(0)
    ready: int = visible_default(0)
    serving: int = visible_default(0)
    pending_reason: str = ""
    failing_reason: str = ""


class IndexFailure(ApiStruct, frozen=True):
    """The last failure of one index of a job array."""

    index: int
    failures: int = visible_default(1)
    replica: str = ""
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


class Summary(ApiStruct, frozen=True):
    """Replica counts over all regions, derived from the regions' reports."""

    replicas: int = visible_default(0)
    assigned: int = visible_default(0)
    bound: int = visible_default(0)
    started: int = visible_default(0)
    ready: int = visible_default(0)
    serving: int = visible_default(0)
    succeeded: int = 0
    failed: int = 0
    regions: tuple[RegionProgress, ...] = ()
    selector: str = ""
    succeeded_indexes: str = ""
    failed_indexes: str = ""
    index_failures: tuple[IndexFailure, ...] = ()


class ScaleRecommendation(ApiStruct, frozen=True):
    """Number of replicas that the load called for at one time."""

    at: str
    replicas: int


class ScaleBlock(ApiStruct, frozen=True):
    """Number of replicas set by autoscale. It takes precedence over `spec.replicas`."""

    replicas: int
    reason: str = ""
    message: str = ""
    scaled_at: str = ""
    recommendations: tuple[ScaleRecommendation, ...] = ()


class LoadMetric(ApiStruct, frozen=True):
    """One pushed value: the average over the serving replicas."""

    name: str
    value: float
    at: str = ""


class LoadBlock(ApiStruct, frozen=True):
    """Load pushed by users for autoscaling. A value that is too old is ignored."""

    metrics: tuple[LoadMetric, ...] = ()


class RolloutPhase(enum.StrEnum):
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    COMPLETE = "Complete"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"


class Revision(ApiStruct, frozen=True):
    """An earlier template of the workload, kept for rollback."""

    revision: str
    template: Template
    generation: int = visible_default(0)
    at: str = ""
    outcome: str = ""


class RolloutBlock(ApiStruct, frozen=True):
    """Progress of a rollout: the new revision, the regions that may run it so far, and earlier revisions.

    `progressedAt` is the time of the last progress, `serving` the number of serving replicas of the revision then.
    `unreachableRegions` are out of contact: the deadline does not count for them, and restarts when one is back.
    """

    revision: str = ""
    previous_revision: str = ""
    last_good_revision: str = ""
    phase: str = ""
    message: str = ""
    regions: tuple[str, ...] = ()
    serving: int = visible_default(0)
    progressed_at: str = ""
    unreachable_regions: tuple[str, ...] = ()
    history: tuple[Revision, ...] = ()


class BackingBlock(ApiStruct, frozen=True):
    """Whether recovery slots and allowances cover the recovery objective; if not, the message names the bottleneck.
    `since` is when `backed` last changed. `lastProven` is unset until a Recovery has met the objective."""

    backed: bool = visible_default(False)
    reason: str = ""
    message: str = ""
    last_proven: RecoveryProof | None = None
    since: str = ""


class RegionWait(ApiStruct, frozen=True):
    """Replicas pending in a full region. After a while they spill over to region `to`, which has room and which the
    placement rules allow. It is empty while there is no such region."""

    region: str
    reason: str
    since: str
    to: str = ""


class AvoidedRegion(ApiStruct, frozen=True):
    """`replicas` pending replicas spilled over from a full region. The region is avoided until `avoidUntil`."""

    region: str
    to: str
    replicas: int
    reason: str
    message: str = ""
    at: str = ""
    avoid_until: str = ""
    count: int = visible_default(1)


class SpilloverStatus(ApiStruct, frozen=True):
    """Spillover: replicas pending in full regions, and the regions that are avoided. Written by assign."""

    pending: tuple[RegionWait, ...] = ()
    avoided_regions: tuple[AvoidedRegion, ...] = ()


class WorkloadStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    summary: Summary = msgspec.field(default_factory=Summary)
    scale: ScaleBlock | None = None
    load: LoadBlock | None = None
    rollout: RolloutBlock | None = None
    backing: BackingBlock | None = None
    spillover: SpilloverStatus | None = None
    image: ImageBlock | None = None
    config: ConfigBlock | None = None


class Workload(Object, frozen=True):
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


def wanted_replicas(workload: Workload) -> int:
    """Desired number of replicas: 0 while the workload is being deleted."""
    if workload.metadata.terminating:
        return 0
    spec = workload.spec
    if spec.type is WorkloadType.BATCH and spec.batch is not None:
        left = max(0, spec.batch.completions - workload.status.summary.succeeded)
        return min(spec.batch.parallelism, left)
    if workload.status.scale is not None and spec.autoscale is not None:
        return workload.status.scale.replicas
    return spec.replicas


def resolved_template(workload: Workload) -> Template | None:
    """The template with the digest of its image, None until it is resolved. Earlier revisions keep their digest."""
    template = wanted_template(workload)
    if not is_unresolved(template):
        return template
    revision, block = template_hash(template), workload.status.image
    history = workload.status.rollout.history if workload.status.rollout is not None else ()
    earlier = next((r.template.image_digest for r in history if r.revision == revision), "")
    resolves_this = block is not None and block.revision == template_hash(workload.spec.template)
    digest = earlier or (block.digest if block is not None and resolves_this else "")
    return msgspec.structs.replace(template, image_digest=digest) if digest else None


def wanted_template(workload: Workload) -> Template:
    """The template to run: with the versions of the content whose change is a new revision."""
    template, config = workload.spec.template, workload.status.config
    if config is None or not config.versions:
        return template
    return msgspec.structs.replace(template, content_versions=config.versions)


def default_workload(workload: Workload) -> Workload:
    spec = workload.spec
    template = canonical_template(spec.template)
    if template.content_versions:  # the platform's own field, from a template of the rollout history
        template = msgspec.structs.replace(template, content_versions={})
    batch = spec.batch
    if spec.type is WorkloadType.BATCH:
        batch = batch or Batch(completions=spec.replicas, parallelism=spec.replicas)
        if template.restart_policy is RestartPolicy.ALWAYS:
            template = msgspec.structs.replace(template, restart_policy=RestartPolicy.ON_FAILURE)
    if template is spec.template and batch is spec.batch:
        return workload
    return msgspec.structs.replace(workload, spec=msgspec.structs.replace(spec, template=template, batch=batch))


_valid_templates = ValidParts()
_valid_placement = ValidParts()


def validate_workload(workload: Workload, old: Workload | None) -> Causes:
    spec = workload.spec
    if old is not None and old.spec == spec:
        return
    if len(workload.metadata.name) > 40:
        yield invalid(
            "metadata.name", workload.metadata.name, "must be at most 40 characters, because replica names contain it"
        )
    if "." in workload.metadata.name:
        yield invalid(
            "metadata.name", workload.metadata.name, "must not contain dots, because assignment names are built from it"
        )
    yield from check_range("spec.replicas", spec.replicas, 0, limits.MAX_REPLICAS)
    yield from _valid_templates.causes(spec.template, partial(validate_template, "spec.template"))
    yield from _valid_placement.causes(spec.placement, partial(validate_placement, "spec.placement"))
    yield from rule_conflicts.validate_conflicts(spec.placement, spec.template.labels)
    if not spec.priority_class_name:
        yield required("spec.priorityClassName")
    yield from check_range("spec.disruption.maxUnavailable", spec.disruption.max_unavailable, 0, limits.MAX_REPLICAS)
    yield from check_range("spec.rollout.maxSurge", spec.rollout.max_surge, 0, limits.MAX_REPLICAS)
    yield from check_range("spec.rollout.maxUnavailable", spec.rollout.max_unavailable, 0, limits.MAX_REPLICAS)
    if spec.rollout.max_surge == 0 and spec.rollout.max_unavailable == 0:
        yield invalid(
            "spec.rollout",
            "maxSurge 0, maxUnavailable 0",
            "one of them must be above zero, or a rollout could not progress",
        )
    yield from check_range("spec.rollout.progressDeadlineSeconds", spec.rollout.progress_deadline_seconds, 1, 86400)
    yield from check_range("spec.rollout.waveRegions", spec.rollout.wave_regions, 1, 100)
    yield from check_range("spec.minReadySeconds", spec.min_ready_seconds, 0, 3600)
    yield from _validate_options(spec)
    yield from validate_claim_use(spec.template.volumes, _moves_freely(spec))
    if old is not None and old.spec.type is not spec.type:
        yield forbidden("spec.type", "immutable; create another workload")
    if old is not None and is_indexed(old.spec.batch) != is_indexed(spec.batch):
        yield forbidden("spec.batch.completionMode", "immutable; create another workload")
    if old is not None and (old.spec.exclusive is None) != (spec.exclusive is None):
        yield forbidden("spec.exclusive", "cannot be added or removed; create another workload")


def _moves_freely(spec: WorkloadSpec) -> str:
    """Why replicas cannot have volumes of their own: their ordinals change hands; empty if they can."""
    rows = (
        ("type Batch", spec.type is WorkloadType.BATCH),
        ("spec.exclusive", spec.exclusive),
        ("spec.gang", spec.gang),
    )
    return next((name for name, given in (*rows, ("spec.reassign", spec.reassign)) if given), "")


def _validate_autoscale(autoscale: Autoscale) -> Causes:
    yield from check_range("spec.autoscale.targetCpuPercent", autoscale.target_cpu_percent, 1, 100)
    if not autoscale.metric:
        yield required("spec.autoscale.metric", "the name of the pushed metric, for example cpuPercent")
    if autoscale.target is not None and autoscale.target <= 0:
        yield invalid("spec.autoscale.target", str(autoscale.target), "must be above zero")
    for name, side in (("scaleUp", autoscale.scale_up), ("scaleDown", autoscale.scale_down)):
        where = f"spec.autoscale.{name}"
        yield from check_range(f"{where}.replicasPerMinute", side.replicas_per_minute, 0, limits.MAX_REPLICAS)
        yield from check_range(f"{where}.percentPerMinute", side.percent_per_minute, 0, 10_000)
        yield from check_range(f"{where}.stabilizationSeconds", side.stabilization_seconds, 0, 3600)


def _validate_indexes(spec: WorkloadSpec) -> Causes:
    batch = spec.batch
    if batch is None or not is_indexed(batch):
        if batch is not None and batch.backoff_limit_per_index is not None:
            yield forbidden("spec.batch.backoffLimitPerIndex", "only allowed with completionMode Indexed")
        return
    yield from check_range("spec.batch.completions", batch.completions, 1, ARRAY_INDEXES_MAX)
    if batch.backoff_limit_per_index is not None:
        yield from check_range("spec.batch.backoffLimitPerIndex", batch.backoff_limit_per_index, 0, 1000)
    for name, given in (("exclusive", spec.exclusive), ("gang", spec.gang)):
        if given is not None:
            yield forbidden("spec.batch.completionMode", f"Indexed is not allowed with spec.{name}")


def _validate_options(spec: WorkloadSpec) -> Causes:
    if spec.autoscale is not None:
        yield from check_range("spec.autoscale.minReplicas", spec.autoscale.min_replicas, 0, limits.MAX_REPLICAS)
        yield from check_range(
            "spec.autoscale.maxReplicas", spec.autoscale.max_replicas, spec.autoscale.min_replicas, limits.MAX_REPLICAS
        )
        yield from _validate_autoscale(spec.autoscale)
        if spec.type is WorkloadType.BATCH:
            yield forbidden("spec.autoscale", "not allowed for a Batch, which is sized by completions and parallelism")
    if spec.rebalance is not None:
        yield from check_range("spec.rebalance.afterSeconds", spec.rebalance.after_seconds, 0, 7 * 86400)
    if spec.reassign is not None:
        yield from check_range("spec.reassign.afterSeconds", spec.reassign.after_seconds, 0, 7 * 86400)
        for name, given in (("recovery", spec.recovery), ("exclusive", spec.exclusive), ("batch", spec.batch)):
            if given is not None:
                yield forbidden("spec.reassign", f"not allowed with spec.{name}, which decides what happens on a loss")
    if spec.recovery is not None:
        yield from check_range("spec.recovery.minServing", spec.recovery.min_serving, 1, limits.MAX_REPLICAS)
        yield from check_range("spec.recovery.deadlineSeconds", spec.recovery.deadline_seconds, 30, 86400)
        for index, region in enumerate(spec.recovery.regions):
            yield from check_dns_label(f"spec.recovery.regions[{index}]", region)
        if spec.type is WorkloadType.BATCH:
            yield forbidden("spec.recovery", "not allowed for a Batch, which serves no traffic")
        if spec.exclusive is not None:
            why = "recovery replicas have no ordinals; scope Global moves to another region by itself"
            yield forbidden("spec.recovery", f"not allowed for exclusive work: {why}")
    if spec.batch is not None:
        if spec.type is not WorkloadType.BATCH:
            yield forbidden("spec.batch", "only allowed for type Batch")
        yield from check_range("spec.batch.completions", spec.batch.completions, 1, limits.MAX_REPLICAS)
        yield from check_range("spec.batch.parallelism", spec.batch.parallelism, 1, limits.MAX_REPLICAS)
        yield from check_range("spec.batch.backoffLimit", spec.batch.backoff_limit, 0, 1000)
        yield from _validate_indexes(spec)
        for name, value in (
            ("activeDeadlineSeconds", spec.batch.active_deadline_seconds),
            ("deadlineSeconds", spec.batch.deadline_seconds),
            ("ttlAfterFinishedSeconds", spec.batch.ttl_after_finished_seconds),
        ):
            if value is not None:
                yield from check_range(f"spec.batch.{name}", value, 0, 366 * 86400)
    if spec.type is WorkloadType.BATCH and spec.template.restart_policy is RestartPolicy.ALWAYS:
        yield invalid("spec.template.restartPolicy", "Always", "must be OnFailure or Never for a Batch")
    if spec.gang is not None:
        most = spec.replicas
        if spec.type is WorkloadType.BATCH and spec.batch is not None:
            most = min(spec.batch.parallelism, spec.batch.completions)
        yield from check_range("spec.gang.minAvailable", spec.gang.min_available, 1, max(1, most))
