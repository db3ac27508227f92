"""SchedulerPolicy: the rules for choosing nodes. PolicyRevision: one immutable, content-addressed version of them."""

from __future__ import annotations

import enum
import hashlib
import re

import msgspec

from holdfast.model import limits
from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.validation import Causes, check_range, check_unique, duplicate, forbidden, invalid, unsupported

# CEL expressions per list of a policy. More are refused.
POLICY_EXPRESSIONS_MAX = 16


class FilterName(enum.StrEnum):
    """Filters that a policy may list. Filters that protect an invariant always apply."""

    HEALTH = "Health"
    SCHEDULABLE = "Schedulable"
    RESIDENCY = "Residency"
    TENANCY = "Tenancy"
    LABELS = "Labels"
    TAINTS = "Taints"
    RESOURCES = "Resources"
    DEVICES = "Devices"
    PORTS = "Ports"
    SPREAD = "Spread"
    AFFINITY = "Affinity"
    VOLUMES = "Volumes"


class ScoreName(enum.StrEnum):
    LOCALITY = "Locality"
    COST = "Cost"
    FRAGMENTATION = "Fragmentation"
    GPU_SHAPE = "GpuShape"
    ARTIFACT_LOCALITY = "ArtifactLocality"
    BALANCE = "Balance"
    PACKING = "Packing"
    SPREAD = "Spread"
    TAINTS = "Taints"
    EVICTIONS = "Evictions"
    IMAGE_LOCALITY = "ImageLocality"


class PartitionMode(enum.StrEnum):
    WAIT = "Wait"
    PROVISIONAL = "Provisional"


class PromotionStage(enum.StrEnum):
    DRAFT = "Draft"
    SHADOW = "Shadow"
    CANARY = "Canary"
    ACTIVE = "Active"


class QueueKey(enum.StrEnum):
    """Keys of the queue's order. `Size` puts large replicas first; a policy must name it to use it."""

    PRIORITY = "Priority"
    DEADLINE = "Deadline"
    FAIRNESS = "Fairness"
    SIZE = "Size"
    AGE = "Age"


DEFAULT_QUEUE = (QueueKey.PRIORITY, QueueKey.DEADLINE, QueueKey.FAIRNESS, QueueKey.AGE)


class WeightedScore(ApiStruct, frozen=True):
    name: ScoreName
    weight: int = visible_default(1)


class FilterExpression(ApiStruct, frozen=True):
    """A custom filter: a CEL expression that is true for allowed nodes."""

    name: str
    expression: str


class ScoreExpression(ApiStruct, frozen=True):
    """A custom score: a CEL expression whose value is limited to 0 to 100 and multiplied by `weight`."""

    name: str
    expression: str
    weight: int = visible_default(1)


class PreemptionRules(ApiStruct, frozen=True):
    enabled: bool = visible_default(True)
    per_tenant_per_minute: int = visible_default(60)


class PolicyRules(ApiStruct, frozen=True):
    """The rules of a policy. Their hash names the revision."""

    filters: tuple[FilterName, ...] = visible_default(tuple(FilterName))
    scores: tuple[WeightedScore, ...] = visible_default(
        (
            WeightedScore(name=ScoreName.SPREAD, weight=2),
            WeightedScore(name=ScoreName.BALANCE, weight=1),
            WeightedScore(name=ScoreName.TAINTS, weight=1),
            WeightedScore(name=ScoreName.LOCALITY, weight=2),
        )
    )
    filter_expressions: tuple[FilterExpression, ...] = ()
    score_expressions: tuple[ScoreExpression, ...] = ()
    queue: tuple[QueueKey, ...] = visible_default(DEFAULT_QUEUE)
    preemption: PreemptionRules = msgspec.field(default_factory=PreemptionRules)
    partition_mode: PartitionMode = visible_default(PartitionMode.WAIT)


_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_REQUEST = re.compile(r"\brequest\b")


def reads_request(expression: str) -> bool:
    return bool(_REQUEST.search(_STRING.sub("''", expression)))


def filters_that_read_requests(rules: PolicyRules) -> tuple[str, ...]:
    """Names of the filter expressions that accept a node for some requests only. A region reports its recovery slots
    without applying them, because it does not know the requests of workloads that run elsewhere."""
    return tuple(e.name for e in rules.filter_expressions if reads_request(e.expression))


class GuardAction(enum.StrEnum):
    PAUSE = "Pause"
    ROLLBACK = "Rollback"


class PolicyGuard(ApiStruct, frozen=True):
    """Limits at which a policy revision is stopped automatically.

    Checked in every region that uses the revision, over the decisions of the last `windowSeconds`, once there are
    `minDecisions`. Conflicts are proposals that the authority refused. `maxPendingSeconds` limits the age of the oldest
    pending request, `minPlacedPercent` the percentage of replicas for which a node was found. `Pause` stops the
    promotion, `Rollback` restores the previous revision.
    """

    max_conflict_percent: int = visible_default(20)
    max_pending_seconds: float = visible_default(300.0)
    min_placed_percent: int = visible_default(0)
    min_decisions: int = visible_default(10)
    window_seconds: float = visible_default(300.0)
    action: GuardAction = visible_default(GuardAction.ROLLBACK)


class PolicyStop(ApiStruct, frozen=True):
    """Why the guard stopped a revision. The next change of the policy (`generation`) lifts the stop."""

    revision: str
    generation: int
    action: GuardAction
    reason: str = ""
    message: str = ""
    at: str = ""
    regions: tuple[str, ...] = ()


class SchedulerPolicySpec(ApiStruct, frozen=True):
    rules: PolicyRules = msgspec.field(default_factory=PolicyRules)
    stage: PromotionStage = visible_default(PromotionStage.ACTIVE)
    canary_regions: tuple[str, ...] = ()
    guard: PolicyGuard | None = None


class SchedulerPolicyStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    revision: str = ""
    sequence: int = 0
    stopped: PolicyStop | None = None


class SchedulerPolicy(Object, frozen=True):
    spec: SchedulerPolicySpec = msgspec.field(default_factory=SchedulerPolicySpec)
    status: SchedulerPolicyStatus = msgspec.field(default_factory=SchedulerPolicyStatus)


class PolicyRevisionSpec(ApiStruct, frozen=True):
    policy: str
    rules: PolicyRules
    sequence: int = visible_default(1)
    stage: PromotionStage = visible_default(PromotionStage.ACTIVE)
    regions: tuple[str, ...] = ()
    guard: PolicyGuard | None = None


class PolicyRevisionStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class PolicyRevision(Object, frozen=True):
    spec: PolicyRevisionSpec
    status: PolicyRevisionStatus = msgspec.field(default_factory=PolicyRevisionStatus)


_encoder = msgspec.json.Encoder(order="sorted")


def rules_hash(rules: PolicyRules) -> str:
    """Hash of the canonical JSON in twelve hex digits. Part of the revision's name."""
    return hashlib.sha256(_encoder.encode(rules)).hexdigest()[:12]


def another_policy_text(other: str, stage: str) -> str:
    """Why a policy may not leave the stage Draft."""
    return (
        f"policy {other} is in stage {stage}, and only one policy may be in a stage other than Draft; "
        f"next: holdfast policy shadow {other} -f FILE to try these rules as policy {other}, or set spec.stage of "
        f"policy {other} to Draft first"
    )


def validate_rules(field: str, rules: PolicyRules) -> Causes:
    yield from check_unique(f"{field}.filters", rules.filters)
    yield from check_unique(f"{field}.scores", (s.name for s in rules.scores))
    for index, score in enumerate(rules.scores):
        yield from check_range(f"{field}.scores[{index}].weight", score.weight, 0, 1000)
    yield from _validate_expressions(field, rules)
    if len(set(rules.queue)) != len(rules.queue):
        yield duplicate(f"{field}.queue", ", ".join(rules.queue))
    if not rules.queue or rules.queue[-1] is not QueueKey.AGE:
        yield unsupported(f"{field}.queue", ", ".join(rules.queue), ["an order that ends with Age"])
    shared = [key for key in rules.queue if key in (QueueKey.SIZE, QueueKey.FAIRNESS)]
    if shared == [QueueKey.SIZE, QueueKey.FAIRNESS]:
        # A tenant with large replicas would always go before tenants with small ones.
        yield unsupported(f"{field}.queue", ", ".join(rules.queue), ["Size after Fairness"])
    yield from check_range(
        f"{field}.preemption.perTenantPerMinute", rules.preemption.per_tenant_per_minute, 0, 1_000_000
    )


def _validate_expressions(field: str, rules: PolicyRules) -> Causes:
    """Names and lengths only. Admission compiles the expressions."""
    built_in = {name.value for name in (*FilterName, *ScoreName)}
    named = [("filterExpressions", e.name, e.expression) for e in rules.filter_expressions]
    named += [("scoreExpressions", e.name, e.expression) for e in rules.score_expressions]
    yield from check_unique(f"{field}.filterExpressions", (e.name for e in rules.filter_expressions))
    yield from check_unique(f"{field}.scoreExpressions", (e.name for e in rules.score_expressions))
    for kind, count in (
        ("filterExpressions", len(rules.filter_expressions)),
        ("scoreExpressions", len(rules.score_expressions)),
    ):
        yield from check_range(f"{field}.{kind}", count, 0, POLICY_EXPRESSIONS_MAX)
    for kind, name, expression in named:
        path = f"{field}.{kind}[{name}]"
        if name in built_in or not name:
            yield invalid(f"{path}.name", name, "must be unique and not the name of a built-in filter or score")
        yield from check_range(f"{path}.expression", len(expression), 1, limits.EXPRESSION_CHARS_MAX)
    for index, score in enumerate(rules.score_expressions):
        yield from check_range(f"{field}.scoreExpressions[{index}].weight", score.weight, 0, 1000)


def validate_scheduler_policy(policy: SchedulerPolicy, old: SchedulerPolicy | None) -> Causes:
    yield from validate_rules("spec.rules", policy.spec.rules)
    guard = policy.spec.guard
    if guard is not None:
        yield from check_range("spec.guard.maxConflictPercent", guard.max_conflict_percent, 0, 100)
        yield from check_range("spec.guard.maxPendingSeconds", guard.max_pending_seconds, 1, 86400)
        yield from check_range("spec.guard.minPlacedPercent", guard.min_placed_percent, 0, 100)
        yield from check_range("spec.guard.minDecisions", guard.min_decisions, 1, limits.POLICY_TRIAL_DECISIONS_MAX)
        yield from check_range("spec.guard.windowSeconds", guard.window_seconds, 1, 86400)


def validate_policy_revision(revision: PolicyRevision, old: PolicyRevision | None) -> Causes:
    yield from validate_rules("spec.rules", revision.spec.rules)
    if old is not None and old.spec.rules != revision.spec.rules:
        yield forbidden("spec.rules", "immutable; change the SchedulerPolicy, which creates another revision")
