"""Builds the placement items and the Decision that the scheduler sends to the authority. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.flow.active_policy import ActivePolicy
from holdfast.flow.ask import Ask
from holdfast.flow.plan.planner import PLANNER_VERSION, AskPlan, Plan
from holdfast.model.binding import Intent
from holdfast.model.decision import Asked, AssumedBatch, Decision, DecisionSpec, QueueState, Shadow
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement import PlaceItem
from holdfast.model.placement_rules import keeps_off
from holdfast.model.quantity import amounts_text
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import template_hash
from holdfast.model.times import micro_text

_SUFFIX_DIGITS = 10


class Basis(msgspec.Struct, frozen=True):
    """The inputs of a batch's snapshot; sufficient to rebuild it for a replay."""

    batch: str = ""
    revisions: dict[str, int] = {}
    ahead: tuple[str, ...] = ()
    assumed: tuple[AssumedBatch, ...] = ()
    adopted: int = 0


class Setting(msgspec.Struct, frozen=True):
    """Data shared by all decisions of one batch."""

    plan: Plan
    policy: ActivePolicy
    now: float
    basis: Basis
    overrides: tuple[str, ...] = ()


def place_items(made: AskPlan, request: SchedulingRequest, policy_revision: str) -> tuple[PlaceItem, ...]:
    """One item per proposal, in order."""
    hashed = template_hash(request.spec.template)
    return tuple(
        PlaceItem(
            namespace=made.ask.namespace,
            replica=p.member.name,
            intent=Intent(replica_uid=p.member.uid, template_hash=hashed, attempt=p.member.attempt),
            node=p.node,
            devices=p.devices,
            victims=p.victims,
            policy_revision=policy_revision,
        )
        for p in made.proposals
    )


def decision(
    setting: Setting,
    made: AskPlan,
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
            asked=asked(made.ask),
            bound=made.ask.bound,
            queued_at=request.metadata.creation_timestamp,
            decided_at=micro_text(setting.now),
            queue=queue,
            policy_revision=policy.revision,
            policy_sequence=policy.sequence,
            snapshot_revision=plan.snapshot.revision,
            snapshot_hash=plan.snapshot.hash,
            revisions=basis.revisions,
            ahead=basis.ahead,
            batch=basis.batch,
            ordinal=ordinal,
            assumed=basis.assumed,
            adopted=basis.adopted,
            overrides=setting.overrides,
            seed=plan.seed,
            planner=PLANNER_VERSION,
            nodes=made.nodes,
            feasible=made.feasible,
            entries=made.entries(),
            refusals=made.refusals,
            next_owner=_next_owner(made),
            wake_up_at=micro_text(wake_up_at) if wake_up_at is not None else "",
            shadow=shadow,
            weighed=made.weighed,
        ),
    )


def asked(ask: Ask) -> Asked:
    return Asked(
        resources=dict(amounts_text(ask.amounts)),
        labels=dict(ask.labels),
        ports=ask.fixed_ports,
        open_ports=ask.open_ports,
        reclaimable=ask.reclaimable,
        rank=ask.rank,
        may_preempt=ask.may_preempt,
        max_unavailable=ask.max_unavailable,
        evictions=ask.evictions,
        limited=ask.room is not None,
        granted=bool(ask.room),
        room=dict(amounts_text(ask.room or {})),
        spared=ask.spared,
        keeps_off=keeps_off(ask.placement),
    )


def _next_owner(made: AskPlan) -> str:
    """The component that acts next: the scheduler retries, release evicts victims, or the agent starts the task."""
    if made.unplaced:
        return "scheduler"
    return "release" if any(p.victims for p in made.proposals) else "agent"
