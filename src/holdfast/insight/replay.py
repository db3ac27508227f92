"""Replays a recorded Decision on the state it was made on, and compares the outcome bit by bit.

Pure: `required_history` lists the past states, the caller loads them from the store's history, `replay` compares. The
rebuilt snapshot must have the recorded hash. Otherwise the result is NotReplayable with a reason, because a replay on
another state proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.model.active_policy import BUILT_IN
from holdfast.model.binding import claim_name
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec, NewerObject, parse_newer_object
from holdfast.model.meta import Key, Object
from holdfast.model.quantity import amounts
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest
from holdfast.model.template import Protocol, port_key
from holdfast.model.times import parse_time
from holdfast.scheduling import quota_headroom
from holdfast.scheduling.plan.planner import PLANNER_VERSION, RequestPlan, plan
from holdfast.scheduling.plan.victim_selection import UNKNOWN_SIBLINGS, RecordedSiblings
from holdfast.scheduling.replica_requirements import ReplicaRequirements, requirements_of
from holdfast.scheduling.snapshot import ClaimKey, Snapshot, SnapshotBuilder, SnapshotClaim

SNAPSHOT_KINDS = ("Node", "Binding", "Reservation", "RecoverySlot", "Override", "GrantCopy", "Region", "Volume")
"""The kinds in a snapshot. A Decision records the revision of each."""

_POLICY_KIND = "PolicyRevision"
_encoder = msgspec.json.Encoder(order="sorted")


class RequiredHistory(msgspec.Struct, frozen=True):
    """Past states to load: whole kinds, single objects, the request and the policy."""

    kinds: dict[str, int]
    newer_objects: tuple[NewerObject, ...]
    request: Key
    request_revision: int
    policy: str
    policy_revision: int


class ReplayState(msgspec.Struct, frozen=True):
    """The loaded past states. `newer_objects` maps to None where the object did not exist at that revision."""

    objects: tuple[Object, ...]
    newer_objects: Mapping[NewerObject, Object | None]
    request: SchedulingRequest | None
    policy: PolicyRevision | None
    decisions: tuple[Decision, ...]


class NotReplayable(msgspec.Struct, frozen=True):
    reason: str
    message: str


class ReplayResult(msgspec.Struct, frozen=True):
    """`differences` is empty if the outcome equals the recorded one bit by bit. Under another policy, whose scores
    differ, it is empty if every replica gets the same node and victims."""

    plan: RequestPlan
    differences: tuple[str, ...]

    @property
    def identical(self) -> bool:
        return not self.differences


def required_history(decision: Decision) -> RequiredHistory:
    spec = decision.spec
    kinds = {kind: spec.revisions[kind] for kind in SNAPSHOT_KINDS if kind in spec.revisions}
    return RequiredHistory(
        kinds=kinds,
        newer_objects=tuple(parse_newer_object(text) for text in spec.newer_objects),
        request=Key(decision.metadata.namespace, spec.request),
        request_revision=spec.request_revision,
        policy="" if spec.policy_revision == BUILT_IN else spec.policy_revision,
        policy_revision=spec.revisions.get(_POLICY_KIND, 0),
    )


def replay(
    region: str, decision: Decision, state: ReplayState, *, rules: PolicyRules | None = None
) -> ReplayResult | NotReplayable:
    """Plans the Decision again; `rules` replaces the recorded policy."""
    spec = decision.spec
    snapshot = rebuild_snapshot(region, decision, state)
    if isinstance(snapshot, NotReplayable):
        return snapshot
    request = state.request
    assert request is not None  # checked by `_obstacle_to_replay`
    replanned = replan(snapshot, spec, request, rules or recorded_rules(state))
    return ReplayResult(
        replanned, tuple(_differences(spec, replanned) if rules is None else _placement_differences(spec, replanned))
    )


def rebuild_snapshot(region: str, decision: Decision, state: ReplayState) -> Snapshot | NotReplayable:
    """The snapshot that the decision was made on, with the proposals that it counted."""
    spec = decision.spec
    obstacle = _obstacle_to_replay(spec, state)
    if obstacle is not None:
        return obstacle
    builder = _rebuilt(region, state)
    obstacle = _assume(builder, decision, state.decisions)
    if obstacle is not None:
        return obstacle
    snapshot = builder.freeze(spec.snapshot_revision)
    if snapshot.hash != spec.snapshot_hash:
        return NotReplayable(
            "SnapshotDiffers",
            f"the state rebuilt from history has another hash (expected {spec.snapshot_hash}, found {snapshot.hash})",
        )
    obstacle = _assume_earlier(builder, decision, state.decisions)
    if obstacle is not None:
        return obstacle
    return builder.freeze(spec.snapshot_revision)


def recorded_rules(state: ReplayState) -> PolicyRules:
    return state.policy.spec.rules if state.policy is not None else PolicyRules()


def replan(snapshot: Snapshot, spec: DecisionSpec, request: SchedulingRequest, rules: PolicyRules) -> RequestPlan:
    requirements = recorded_requirements(spec, request)
    sibling_status = (
        RecordedSiblings(spec.preemption_evidence) if spec.preemption_evidence is not None else UNKNOWN_SIBLINGS
    )
    return plan(
        snapshot, [requirements], rules, parse_time(spec.decided_at), spec.seed, sibling_status=sibling_status
    ).request_plans[0]


def recorded_requirements(spec: DecisionSpec, request: SchedulingRequest) -> ReplicaRequirements:
    """The requirements of the request, as the decision recorded them."""
    members = tuple(RequestMember(name=e.replica, uid=e.uid, attempt=e.attempt) for e in spec.entries)
    inputs = spec.inputs
    return requirements_of(
        request,
        members,
        bound_members=spec.bound,
        evictions_left=inputs.evictions_left,
        quota_headroom=quota_headroom.recorded_headroom(inputs),
        excluded_victims=inputs.excluded_victims,
    )


def oldest_revision_needed(decisions: Iterable[Any]) -> int:
    """The oldest revision that a replay of any of these Decisions reads; 0 if none can be replayed."""
    found = 0
    for decision in decisions:
        spec: DecisionSpec = decision.spec
        if spec.planner == PLANNER_VERSION and spec.revisions:
            oldest = min(*spec.revisions.values(), spec.request_revision or spec.snapshot_revision)
            found = min(found, oldest) if found else oldest
    return found


def proposed_claims(decision: Decision) -> Iterator[tuple[ClaimKey, SnapshotClaim]]:
    """The claims that a Decision proposed; later plans counted them."""
    spec, namespace = decision.spec, decision.metadata.namespace
    inputs = spec.inputs
    for entry in spec.entries:
        if not entry.node:
            continue
        yield (
            ClaimKey(namespace, claim_name(entry.replica, entry.attempt)),
            SnapshotClaim(
                node=entry.node,
                namespace=namespace,
                replica_uid=entry.uid,
                workload=spec.workload,
                labels=tuple(sorted(inputs.labels.items())),
                amounts=tuple(amounts(inputs.resources).items()),
                reclaimable=inputs.reclaimable,
                nominated=bool(entry.victims),
                devices=tuple((d.id, d.milli) for d in entry.devices),
                ports=(*inputs.ports, *(port_key(port, Protocol.UDP) for port in inputs.udp_ports)),
                open_ports=inputs.dynamic_ports,
                priority=inputs.priority,
                max_unavailable=inputs.max_unavailable,
                victims=entry.victims,
                anti_affinity=inputs.anti_affinity,
            ),
        )


def _obstacle_to_replay(spec: DecisionSpec, state: ReplayState) -> NotReplayable | None:
    if spec.planner != PLANNER_VERSION:
        return NotReplayable(
            "PlannerChanged", f"other planner version (expected {PLANNER_VERSION}, found {spec.planner or 'unknown'})"
        )
    missing = [kind for kind in SNAPSHOT_KINDS if kind not in spec.revisions]
    if missing:
        return NotReplayable("NotRecorded", f"the decision records no revision for {', '.join(missing)}")
    if spec.adopted_claims:
        return NotReplayable("AdoptedClaims", f"{spec.adopted_claims} claims were known only from authority responses")
    if state.request is None:
        return NotReplayable("RequestMissing", f"request {spec.request} at revision {spec.request_revision} not found")
    if spec.policy_revision != BUILT_IN and state.policy is None:
        return NotReplayable("PolicyMissing", f"policy revision {spec.policy_revision} not found")
    return None


def _rebuilt(region: str, state: ReplayState) -> SnapshotBuilder:
    builder = SnapshotBuilder(region)
    replaced = {(item.kind, item.key) for item in state.newer_objects}
    for found in state.objects:
        if (type(found).__name__, found.key) not in replaced:
            builder.upsert(found)
    for item in state.newer_objects.values():
        if item is not None:
            builder.upsert(item)
    return builder


def _assume(builder: SnapshotBuilder, decision: Decision, known: Iterable[Decision]) -> NotReplayable | None:
    """Assumes the proposals of batches that were in flight, as the scheduler did."""
    assumed_batches = {batch.batch: batch for batch in decision.spec.assumed}
    found = _by_batch(known)
    for name, batch in assumed_batches.items():
        decisions = found.get(name, {})
        if len(decisions) < batch.decisions:
            return NotReplayable(
                "AssumedDecisionMissing",
                f"decisions of in-flight batch {name} are missing (expected {batch.decisions}, found {len(decisions)})",
            )
        without = frozenset(batch.excluded)
        for other in decisions.values():
            for key, claim in proposed_claims(other):
                if f"{key.namespace}/{key.name}" not in without and not builder.is_recorded(key, claim.replica_uid):
                    builder.assume(key, claim)
    return None


def _assume_earlier(builder: SnapshotBuilder, decision: Decision, known: Iterable[Decision]) -> NotReplayable | None:
    """Assumes the proposals of earlier decisions of the same batch."""
    spec = decision.spec
    batch = _by_batch(known).get(spec.batch, {})
    for ordinal in range(spec.ordinal):
        other = batch.get(ordinal)
        if other is None:
            return NotReplayable(
                "EarlierDecisionMissing", f"decision {ordinal} of batch {spec.batch}, planned earlier, not found"
            )
        for key, claim in proposed_claims(other):
            builder.assume(key, claim)
    return None


def _by_batch(decisions: Iterable[Decision]) -> dict[str, dict[int, Decision]]:
    """Decisions with proposals by batch and ordinal; a decision stored in several parts counts once."""
    found: dict[str, dict[int, Decision]] = {}
    for decision in decisions:
        if decision.spec.batch and any(entry.node for entry in decision.spec.entries):
            found.setdefault(decision.spec.batch, {}).setdefault(decision.spec.ordinal, decision)
    return found


def _differences(spec: DecisionSpec, replanned: RequestPlan) -> Iterator[str]:
    for recorded, planned in zip(spec.entries, replanned.decision_entries(), strict=True):
        if _planned_part(recorded) != _planned_part(planned):
            yield f"{recorded.replica}: recorded {_entry_text(recorded)}, planned {_entry_text(planned)}"
    if _encoder.encode(spec.refusals) != _encoder.encode(replanned.refusals):
        yield "the node refusals differ"
    if (spec.nodes, spec.feasible) != (replanned.nodes, replanned.feasible):
        recorded_count = f"recorded {spec.feasible} of {spec.nodes} nodes feasible"
        yield f"{recorded_count}, planned {replanned.feasible} of {replanned.nodes}"


def _placement_differences(spec: DecisionSpec, replanned: RequestPlan) -> Iterator[str]:
    for recorded, planned in zip(spec.entries, replanned.decision_entries(), strict=True):
        if (recorded.node, recorded.victims) != (planned.node, planned.victims):
            yield f"{recorded.replica}: recorded {_entry_text(recorded)}, planned {_entry_text(planned)}"


def _planned_part(entry: DecisionEntry) -> bytes:
    """The planner's part of an entry, without the authority's response."""
    if entry.node:
        entry = msgspec.structs.replace(entry, result="", reason="", message="")
    return _encoder.encode(entry)


def _entry_text(entry: DecisionEntry) -> str:
    if not entry.node:
        return f"unschedulable ({entry.reason})"
    victims = f" evicting {', '.join(entry.victims)}" if entry.victims else ""
    return f"node {entry.node} with score {entry.score}{victims}"
