"""Builds the placement items and the Decision that the scheduler sends to the authority. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.model.active_policy import ActivePolicy
from holdfast.model.binding import Intent
from holdfast.model.decision import AssumedBatch, Decision, DecisionInputs, DecisionSpec, QueueState, Shadow
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import ReserveItem
from holdfast.model.placement_rules import required_anti_affinity
from holdfast.model.quantity import amounts_text
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import port_number, template_hash
from holdfast.model.times import micro_text
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

    schedule: SchedulePlan
    policy: ActivePolicy
    now: float
    basis: SnapshotBasis
    overrides: tuple[str, ...] = ()


def place_items(plan: RequestPlan, request: SchedulingRequest, policy_revision: str) -> tuple[ReserveItem, ...]:
    """One item per proposal, in order."""
    hash_of_template = template_hash(request.spec.template)
    return tuple(
        ReserveItem(
            namespace=plan.requirements.namespace,
            replica=p.member.name,
            intent=Intent(replica_uid=p.member.uid, template_hash=hash_of_template, attempt=p.member.attempt),
            node=p.node,
            devices=p.devices,
            victims=p.victims,
            policy_revision=policy_revision,
        )
        for p in plan.proposals
    )


def build_decision(
    context: BatchContext,
    plan: RequestPlan,
    request: SchedulingRequest,
    *,
    ordinal: int,
    queue: QueueState,
    unique: str,
    wake_up_at: float | None,
    shadow: Shadow | None = None,
) -> Decision:
    """The Decision of one request. Its name is derived from `unique`, a new uid."""
    schedule, policy, basis = context.schedule, context.policy, context.basis
    suffix = hashlib.sha256(unique.encode()).hexdigest()[:_SUFFIX_DIGITS]
    return Decision(
        metadata=ObjectMeta(name=f"{request.metadata.name}-{suffix}", namespace=request.metadata.namespace),
        spec=DecisionSpec(
            request=request.metadata.name,
            workload=request.spec.workload,
            workload_generation=request.spec.workload_generation,
            request_revision=request.revision,
            inputs=decision_inputs(plan.requirements),
            bound=plan.requirements.bound_members,
            queued_at=request.metadata.creation_timestamp,
            decided_at=micro_text(context.now),
            queue=queue,
            policy_revision=policy.revision,
            policy_sequence=policy.sequence,
            snapshot_revision=schedule.snapshot.revision,
            snapshot_hash=schedule.snapshot.hash,
            revisions=basis.revisions,
            newer_objects=basis.newer_objects,
            batch=basis.batch,
            ordinal=ordinal,
            assumed=basis.assumed,
            adopted_claims=basis.adopted,
            overrides=context.overrides,
            seed=schedule.seed,
            planner=PLANNER_VERSION,
            nodes=plan.nodes,
            feasible=plan.feasible,
            entries=plan.decision_entries(),
            refusals=plan.refusals,
            next_owner=_next_owner(plan),
            wake_up_at=micro_text(wake_up_at) if wake_up_at is not None else "",
            shadow=shadow,
            preemption_evidence=plan.preemption_evidence,
        ),
    )


def decision_inputs(requirements: ReplicaRequirements) -> DecisionInputs:
    return DecisionInputs(
        resources=dict(amounts_text(requirements.amounts)),
        labels=dict(requirements.labels),
        ports=tuple(port for port in requirements.fixed_ports if port == port_number(port)),
        udp_ports=tuple(port_number(port) for port in requirements.fixed_ports if port != port_number(port)),
        dynamic_ports=requirements.open_ports,
        reclaimable=requirements.reclaimable,
        priority=requirements.priority,
        may_preempt=requirements.may_preempt,
        max_unavailable=requirements.max_unavailable,
        evictions_left=requirements.evictions_left,
        headroom_known=requirements.quota_headroom is not None,
        has_grant=bool(requirements.quota_headroom),
        quota_headroom=dict(amounts_text(requirements.quota_headroom or {})),
        excluded_victims=requirements.excluded_victims,
        anti_affinity=required_anti_affinity(requirements.placement),
    )


def _next_owner(plan: RequestPlan) -> str:
    """The component that acts next: the scheduler retries, release evicts victims, or the agent starts the task."""
    if plan.unplaced:
        return "scheduler"
    return "release" if any(p.victims for p in plan.proposals) else "agent"
