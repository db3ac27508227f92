"""Builds the placement items and the Decision that the scheduler sends to the authority. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.model.binding import Intent
from holdfast.model.decision import AssumedBatch, Decision, DecisionInputs, DecisionSpec, QueueState, Shadow
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import ReserveItem
from holdfast.model.placement_rules import required_anti_affinity
from holdfast.model.quantity import amounts_text
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import template_hash
from holdfast.model.times import micro_text
from holdfast.scheduling.active_policy import ActivePolicy
from holdfast.scheduling.plan.planner import PLANNER_VERSION, RequestPlan, SchedulePlan
from holdfast.scheduling.replica_requirements import ReplicaRequirements

_SUFFIX_DIGITS = 10


class SnapshotBasis(msgspec.Struct, frozen=True):
    """The inputs of a batch's snapshot; sufficient to rebuild it for a replay."""

    batch: str = ""
    revisions: dict[str, int] = {}
    newer_objects: tuple[str, ...] = ()
    assumed: tuple[AssumedBatch, ...] = ()
    adopted: int = 0


class BatchContext(msgspec.Struct, frozen=True):
    """Data shared by all decisions of one batch."""

    plan: SchedulePlan
    policy: ActivePolicy
    now: float
    basis: SnapshotBasis
    overrides: tuple[str, ...] = ()


def place_items(made: RequestPlan, request: SchedulingRequest, policy_revision: str) -> tuple[ReserveItem, ...]:
    """One item per proposal, in order."""
    hashed = template_hash(request.spec.template)
    return tuple(
        ReserveItem(
            namespace=made.requirements.namespace,
            replica=p.member.name,
            intent=Intent(replica_uid=p.member.uid, template_hash=hashed, attempt=p.member.attempt),
            node=p.node,
            devices=p.devices,
            victims=p.victims,
            policy_revision=policy_revision,
        )
        for p in made.proposals
    )


def build_decision(
    setting: BatchContext,
    made: RequestPlan,
    request: SchedulingRequest,
    *,
    ordinal: int,
    queue: QueueState,
    unique: str,
    wake_up_at: float | None,
    shadow: Shadow | None = None,
) -> Decision:
    """The Decision of one request. Its name is derived from `unique`, a new uid."""
    plan, policy, basis = setting.plan, setting.policy, setting.basis
    suffix = hashlib.sha256(unique.encode()).hexdigest()[:_SUFFIX_DIGITS]
    return Decision(
        metadata=ObjectMeta(name=f"{request.metadata.name}-{suffix}", namespace=request.metadata.namespace),
        spec=DecisionSpec(
            request=request.metadata.name,
            workload=request.spec.workload,
            workload_generation=request.spec.workload_generation,
            request_revision=request.revision,
            inputs=decision_inputs(made.requirements),
            bound=made.requirements.bound_members,
            queued_at=request.metadata.creation_timestamp,
            decided_at=micro_text(setting.now),
            queue=queue,
            policy_revision=policy.revision,
            policy_sequence=policy.sequence,
            snapshot_revision=plan.snapshot.revision,
            snapshot_hash=plan.snapshot.hash,
            revisions=basis.revisions,
            newer_objects=basis.newer_objects,
            batch=basis.batch,
            ordinal=ordinal,
            assumed=basis.assumed,
            adopted_claims=basis.adopted,
            overrides=setting.overrides,
            seed=plan.seed,
            planner=PLANNER_VERSION,
            nodes=made.nodes,
            feasible=made.feasible,
            entries=made.decision_entries(),
            refusals=made.refusals,
            next_owner=_next_owner(made),
            wake_up_at=micro_text(wake_up_at) if wake_up_at is not None else "",
            shadow=shadow,
            preemption_evidence=made.preemption_evidence,
        ),
    )


def decision_inputs(ask: ReplicaRequirements) -> DecisionInputs:
    return DecisionInputs(
        resources=dict(amounts_text(ask.amounts)),
        labels=dict(ask.labels),
        ports=ask.fixed_ports,
        dynamic_ports=ask.open_ports,
        reclaimable=ask.reclaimable,
        priority=ask.priority,
        may_preempt=ask.may_preempt,
        max_unavailable=ask.max_unavailable,
        evictions_left=ask.evictions_left,
        headroom_known=ask.quota_headroom is not None,
        has_grant=bool(ask.quota_headroom),
        quota_headroom=dict(amounts_text(ask.quota_headroom or {})),
        excluded_victims=ask.excluded_victims,
        anti_affinity=required_anti_affinity(ask.placement),
    )


def _next_owner(made: RequestPlan) -> str:
    """The component that acts next: the scheduler retries, release evicts victims, or the agent starts the task."""
    if made.unplaced:
        return "scheduler"
    return "release" if any(p.victims for p in made.proposals) else "agent"
