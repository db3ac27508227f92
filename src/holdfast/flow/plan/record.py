"""From a plan to what is sent to the authority: placement items, and the Decision that is stored with them."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.flow.active_policy import ActivePolicy
from holdfast.flow.plan.planner import PLANNER_VERSION, AskPlan, Plan
from holdfast.model.binding import Intent
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement import PlaceItem, ReserveRequest
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import template_hash
from holdfast.model.times import micro_text

_SUFFIX_DIGITS = 10


class Setting(msgspec.Struct, frozen=True):
    """What all decisions of one batch share."""

    plan: Plan
    policy: ActivePolicy
    now: float


def reserve_request(
    setting: Setting, made: AskPlan, request: SchedulingRequest, *, unique: str, wake_up_at: float | None
) -> ReserveRequest:
    """All proposals of one ask. `unique` is an identity never used before; the Decision's name is made from it."""
    revision = setting.policy.revision
    hashed = template_hash(request.spec.template)
    items = tuple(
        PlaceItem(
            namespace=made.ask.namespace,
            replica=p.member.name,
            intent=Intent(replica_uid=p.member.uid, template_hash=hashed, attempt=p.member.attempt),
            node=p.node,
            devices=p.devices,
            policy_revision=revision,
        )
        for p in made.proposals
    )
    return ReserveRequest(items=items, bind=True, decision=_decision(setting, made, request, unique, wake_up_at))


def _decision(
    setting: Setting, made: AskPlan, request: SchedulingRequest, unique: str, wake_up_at: float | None
) -> Decision:
    plan, policy = setting.plan, setting.policy
    suffix = hashlib.sha256(unique.encode()).hexdigest()[:_SUFFIX_DIGITS]
    return Decision(
        metadata=ObjectMeta(name=f"{request.metadata.name}-{suffix}", namespace=request.metadata.namespace),
        spec=DecisionSpec(
            request=request.metadata.name,
            workload=request.spec.workload,
            queued_at=request.metadata.creation_timestamp,
            decided_at=micro_text(setting.now),
            policy_revision=policy.revision,
            policy_sequence=policy.sequence,
            snapshot_revision=plan.snapshot.revision,
            snapshot_hash=plan.snapshot.hash,
            seed=plan.seed,
            planner=PLANNER_VERSION,
            nodes=made.nodes,
            feasible=made.feasible,
            entries=made.entries(),
            refusals=made.refusals,
            next_owner="scheduler" if made.unplaced else "agent",
            wake_up_at=micro_text(wake_up_at) if wake_up_at is not None else "",
        ),
    )
