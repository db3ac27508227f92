"""SchedulerPolicy: the rules for choosing nodes. PolicyRevision: one immutable, content-addressed version of them."""

from __future__ import annotations

import enum
import hashlib

import msgspec

from holdfast.model import limits
from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.validation import Causes, check_range, check_unique, duplicate, forbidden, invalid, unsupported


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


class ScoreName(enum.StrEnum):
    LOCALITY = "Locality"
    COST = "Cost"
    FRAGMENTATION = "Fragmentation"
    GPU_SHAPE = "GpuShape"
    WARM = "Warm"
    BALANCE = "Balance"
    PACKING = "Packing"
    SPREAD = "Spread"
    TAINTS = "Taints"
    EVICTIONS = "Evictions"


class PartitionMode(enum.StrEnum):
    WAIT = "Wait"
    PROVISIONAL = "Provisional"


class PromotionStage(enum.StrEnum):
    DRAFT = "Draft"
    SHADOW = "Shadow"
    CANARY = "Canary"
    ACTIVE = "Active"


class QueueKey(enum.StrEnum):
    PRIORITY = "Priority"
    DEADLINE = "Deadline"
    FAIRNESS = "Fairness"
    AGE = "Age"


class WeightedScore(Part, frozen=True):
    name: ScoreName
    weight: int = shown(1)


class FilterExpression(Part, frozen=True):
    """A custom filter: a CEL expression that is true for allowed nodes."""

    name: str
    expression: str


class ScoreExpression(Part, frozen=True):
    """A custom score: a CEL expression whose value is limited to 0 to 100 and multiplied by `weight`."""

    name: str
    expression: str
    weight: int = shown(1)


class Preemption(Part, frozen=True):
    enabled: bool = shown(True)
    per_tenant_per_minute: int = shown(60)


class Rules(Part, frozen=True):
    """The rules of a policy. Their hash names the revision."""

    filters: tuple[FilterName, ...] = shown(tuple(FilterName))
    scores: tuple[WeightedScore, ...] = shown(
        (
            WeightedScore(name=ScoreName.SPREAD, weight=2),
            WeightedScore(name=ScoreName.BALANCE, weight=1),
            WeightedScore(name=ScoreName.TAINTS, weight=1),
        )
    )
    filter_expressions: tuple[FilterExpression, ...] = ()
    score_expressions: tuple[ScoreExpression, ...] = ()
    queue: tuple[QueueKey, ...] = shown(tuple(QueueKey))
    preemption: Preemption = msgspec.field(default_factory=Preemption)
    partition_mode: PartitionMode = shown(PartitionMode.WAIT)


class GuardAction(enum.StrEnum):
    PAUSE = "Pause"
    ROLLBACK = "Rollback"


class Guard(Part, frozen=True):
    """Limits at which a policy revision is stopped automatically.

    Checked in every region that uses the revision, over the decisions of the last `windowSeconds`, once there are
    `minDecisions`. Conflicts are proposals that the authority refused. `maxPendingSeconds` limits the age of the oldest
    pending request, `minPlacedPercent` the percentage of replicas for which a node was found. `Pause` stops the
    promotion, `Rollback` restores the previous revision.
    """

    max_conflict_percent: int = shown(20)
    max_pending_seconds: float = shown(300.0)
    min_placed_percent: int = shown(0)
    min_decisions: int = shown(10)
    window_seconds: float = shown(300.0)
    action: GuardAction = shown(GuardAction.ROLLBACK)


class PolicyHold(Part, frozen=True):
    """Why the guard stopped a revision. The next change of the policy (`generation`) lifts the stop."""

    revision: str
    generation: int
    action: GuardAction
    reason: str = ""
    message: str = ""
    at: str = ""
    regions: tuple[str, ...] = ()


class SchedulerPolicySpec(Part, frozen=True):
    rules: Rules = msgspec.field(default_factory=Rules)
    stage: PromotionStage = shown(PromotionStage.ACTIVE)
    canary_regions: tuple[str, ...] = ()
    guard: Guard | None = None


class SchedulerPolicyStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    revision: str = ""
    sequence: int = 0
    held: PolicyHold | None = None


class SchedulerPolicy(Object, frozen=True):
    spec: SchedulerPolicySpec = msgspec.field(default_factory=SchedulerPolicySpec)
    status: SchedulerPolicyStatus = msgspec.field(default_factory=SchedulerPolicyStatus)


class PolicyRevisionSpec(Part, frozen=True):
    policy: str
    rules: Rules
    sequence: int = shown(1)
    stage: PromotionStage = shown(PromotionStage.ACTIVE)
    regions: tuple[str, ...] = ()
    guard: Guard | None = None


class PolicyRevisionStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class PolicyRevision(Object, frozen=True):
    spec: PolicyRevisionSpec
    status: PolicyRevisionStatus = msgspec.field(default_factory=PolicyRevisionStatus)


_encoder = msgspec.json.Encoder(order="sorted")


def rules_hash(rules: Rules) -> str:
    """Hash of the canonical JSON in twelve hex digits. Part of the revision's name."""
    return hashlib.sha256(_encoder.encode(rules)).hexdigest()[:12]


def validate_rules(field: str, rules: Rules) -> Causes:
    yield from check_unique(f"{field}.filters", rules.filters)
    yield from check_unique(f"{field}.scores", (s.name for s in rules.scores))
    for index, score in enumerate(rules.scores):
        yield from check_range(f"{field}.scores[{index}].weight", score.weight, 0, 1000)
    yield from _validate_expressions(field, rules)
    if len(set(rules.queue)) != len(rules.queue):
        yield duplicate(f"{field}.queue", ", ".join(rules.queue))
    if not rules.queue or rules.queue[-1] is not QueueKey.AGE:
        yield unsupported(f"{field}.queue", ", ".join(rules.queue), ["an order that ends with Age"])
    yield from check_range(
        f"{field}.preemption.perTenantPerMinute", rules.preemption.per_tenant_per_minute, 0, 1_000_000
    )


def _validate_expressions(field: str, rules: Rules) -> Causes:
    """Names and lengths only. Admission compiles the expressions."""
    built_in = {name.value for name in (*FilterName, *ScoreName)}
    named = [("filterExpressions", e.name, e.expression) for e in rules.filter_expressions]
    named += [("scoreExpressions", e.name, e.expression) for e in rules.score_expressions]
    yield from check_unique(f"{field}.filterExpressions", (e.name for e in rules.filter_expressions))
    yield from check_unique(f"{field}.scoreExpressions", (e.name for e in rules.score_expressions))
    for kind, count in (
        ("filterExpressions", len(rules.filter_expressions)), ("scoreExpressions", len(rules.score_expressions)),
    ):  # fmt: skip
        yield from check_range(f"{field}.{kind}", count, 0, limits.POLICY_EXPRESSIONS)
    for kind, name, expression in named:
        path = f"{field}.{kind}[{name}]"
        if name in built_in or not name:
            yield invalid(f"{path}.name", name, "must be unique and not the name of a built-in filter or score")
        yield from check_range(f"{path}.expression", len(expression), 1, limits.EXPRESSION_CHARS)
    for index, score in enumerate(rules.score_expressions):
        yield from check_range(f"{field}.scoreExpressions[{index}].weight", score.weight, 0, 1000)


def validate_scheduler_policy(policy: SchedulerPolicy, old: SchedulerPolicy | None) -> Causes:
    yield from validate_rules("spec.rules", policy.spec.rules)
    guard = policy.spec.guard
    if guard is not None:
        yield from check_range("spec.guard.maxConflictPercent", guard.max_conflict_percent, 0, 100)
        yield from check_range("spec.guard.maxPendingSeconds", guard.max_pending_seconds, 1, 86400)
        yield from check_range("spec.guard.minPlacedPercent", guard.min_placed_percent, 0, 100)
        yield from check_range("spec.guard.minDecisions", guard.min_decisions, 1, limits.TRIAL_DECISIONS)
        yield from check_range("spec.guard.windowSeconds", guard.window_seconds, 1, 86400)


def validate_policy_revision(revision: PolicyRevision, old: PolicyRevision | None) -> Causes:
    yield from validate_rules("spec.rules", revision.spec.rules)
    if old is not None and old.spec.rules != revision.spec.rules:
        yield forbidden("spec.rules", "immutable; change the SchedulerPolicy, which creates another revision")
