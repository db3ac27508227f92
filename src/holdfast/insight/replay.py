"""Replays a recorded Decision on the state it was made on, and compares the outcome bit by bit.

Pure: `reads` lists the past states that are needed, the caller loads them from the store's history, `replay` compares.
The rebuilt snapshot must have the recorded hash. Otherwise the result is NotReplayable with a reason, because a replay
on another state proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.model.binding import claim_name
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec
from holdfast.model.meta import Key, Object
from holdfast.model.quantity import amounts
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest
from holdfast.model.times import parse_time
from holdfast.scheduling import quota_headroom
from holdfast.scheduling.active_policy import BUILT_IN
from holdfast.scheduling.plan.planner import PLANNER_VERSION, RequestPlan, plan
from holdfast.scheduling.plan.victim_selection import UNKNOWN_SIBLINGS, RecordedSiblings
from holdfast.scheduling.replica_requirements import requirements_of
from holdfast.scheduling.snapshot import ClaimKey, Snapshot, SnapshotBuilder, SnapshotClaim

SNAPSHOT_KINDS = ("Node", "Binding", "Reservation", "Hold", "Override", "GrantCopy", "Region")
"""The kinds in a snapshot. A Decision records the revision of each."""

_POLICY_KIND = "PolicyRevision"
_encoder = msgspec.json.Encoder(order="sorted")


class NewerObject(msgspec.Struct, frozen=True):
    """An object that the scheduler had read at a newer revision than the rest of its kind."""

    kind: str
    key: Key
    revision: int


class RequiredHistory(msgspec.Struct, frozen=True):
    """Past states to load: whole kinds, single objects, the request and the policy."""

    kinds: dict[str, int]
    newer_objects: tuple[NewerObject, ...]
    request: Key
    request_revision: int
    policy: str
    policy_revision: int


class ReplayState(msgspec.Struct, frozen=True):
    """The loaded past states. `ahead` maps to None where the object did not exist at that revision."""

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


def newer_object_text(kind: str, key: Key, revision: int) -> str:
    return f"{kind}/{key.namespace}/{key.name}@{revision}"


def parse_newer_object(text: str) -> NewerObject:
    path, _, revision = text.rpartition("@")
    kind, namespace, name = path.split("/", 2)
    return NewerObject(kind, Key(namespace, name), int(revision))


def replay(region: str, decision: Decision, past: ReplayState, *, rules: PolicyRules | None = None) -> ReplayResult | NotReplayable:
    """Plans the Decision again; `rules` replaces the recorded policy."""
    spec = decision.spec
    wrong = _why_not(spec, past)
    if wrong is not None:
        return wrong
    builder = _rebuilt(region, past)
    problem = _assume(builder, decision, past.decisions)
    if problem is not None:
        return problem
    snapshot = builder.freeze(spec.snapshot_revision)
    if snapshot.hash != spec.snapshot_hash:
        return NotReplayable(
            "SnapshotDiffers",
            f"the state rebuilt from history has another hash (expected {spec.snapshot_hash}, found {snapshot.hash})",
        )
    problem = _assume_earlier(builder, decision, past.decisions)
    if problem is not None:
        return problem
    request = past.request
    assert request is not None  # checked by `_why_not`
    used = rules or (past.policy.spec.rules if past.policy is not None else PolicyRules())
    made = replan(builder.freeze(spec.snapshot_revision), spec, request, used)
    return ReplayResult(made, tuple(_differences(spec, made) if rules is None else _moves(spec, made)))


def replan(snapshot: Snapshot, spec: DecisionSpec, request: SchedulingRequest, rules: PolicyRules) -> RequestPlan:
    members = tuple(RequestMember(name=e.replica, uid=e.uid, attempt=e.attempt) for e in spec.entries)
    asked = spec.inputs
    room = quota_headroom.recorded_headroom(asked)
    ask = requirements_of(request, members, bound=spec.bound, evictions=asked.evictions_left, room=room, spared=asked.excluded_victims)
    standing = RecordedSiblings(spec.preemption_evidence) if spec.preemption_evidence is not None else UNKNOWN_SIBLINGS
    return plan(snapshot, [ask], rules, parse_time(spec.decided_at), spec.seed, standing=standing).request_plans[0]


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
    asked = spec.inputs
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
                labels=tuple(sorted(asked.labels.items())),
                amounts=tuple(amounts(asked.resources).items()),
                reclaimable=asked.reclaimable,
                nominated=bool(entry.victims),
                devices=tuple((d.id, d.milli) for d in entry.devices),
                ports=asked.ports,
                open_ports=asked.dynamic_ports,
                priority=asked.priority,
                max_unavailable=asked.max_unavailable,
                victims=entry.victims,
                anti_affinity=asked.anti_affinity,
            ),
        )


def _why_not(spec: DecisionSpec, past: ReplayState) -> NotReplayable | None:
    if spec.planner != PLANNER_VERSION:
        return NotReplayable(
            "PlannerChanged", f"other planner version (expected {PLANNER_VERSION}, found {spec.planner or 'unknown'})"
        )
    missing = [kind for kind in SNAPSHOT_KINDS if kind not in spec.revisions]
    if missing:
        return NotReplayable("NotRecorded", f"the decision records no revision for {', '.join(missing)}")
    if spec.adopted_claims:
        return NotReplayable("AdoptedClaims", f"{spec.adopted_claims} claims were known only from authority responses")
    if past.request is None:
        return NotReplayable("RequestMissing", f"request {spec.request} at revision {spec.request_revision} not found")
    if spec.policy_revision != BUILT_IN and past.policy is None:
        return NotReplayable("PolicyMissing", f"policy revision {spec.policy_revision} not found")
    return None


def _rebuilt(region: str, past: ReplayState) -> SnapshotBuilder:
    builder = SnapshotBuilder(region)
    overtaken = {(item.kind, item.key) for item in past.newer_objects}
    for found in past.objects:
        if (type(found).__name__, found.key) not in overtaken:
            builder.upsert(found)
    for item in past.newer_objects.values():
        if item is not None:
            builder.upsert(item)
    return builder


def _assume(builder: SnapshotBuilder, decision: Decision, known: Iterable[Decision]) -> NotReplayable | None:
    """Assumes the proposals of batches that were in flight, as the scheduler did."""
    wanted = {batch.batch: batch for batch in decision.spec.assumed}
    found = _by_batch(known)
    for name, batch in wanted.items():
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
    mates = _by_batch(known).get(spec.batch, {})
    for ordinal in range(spec.ordinal):
        other = mates.get(ordinal)
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


def _differences(spec: DecisionSpec, made: RequestPlan) -> Iterator[str]:
    for recorded, planned in zip(spec.entries, made.decision_entries(), strict=True):
        if _planned_part(recorded) != _planned_part(planned):
            yield f"{recorded.replica}: recorded {_said(recorded)}, planned {_said(planned)}"
    if _encoder.encode(spec.refusals) != _encoder.encode(made.refusals):
        yield "the node refusals differ"
    if (spec.nodes, spec.feasible) != (made.nodes, made.feasible):
        yield f"recorded {spec.feasible} of {spec.nodes} nodes feasible, planned {made.feasible} of {made.nodes}"


def _moves(spec: DecisionSpec, made: RequestPlan) -> Iterator[str]:
    for recorded, planned in zip(spec.entries, made.decision_entries(), strict=True):
        if (recorded.node, recorded.victims) != (planned.node, planned.victims):
            yield f"{recorded.replica}: recorded {_said(recorded)}, planned {_said(planned)}"


def _planned_part(entry: DecisionEntry) -> bytes:
    """The planner's part of an entry, without the authority's response."""
    if entry.node:
        entry = msgspec.structs.replace(entry, result="", reason="", message="")
    return _encoder.encode(entry)


def _said(entry: DecisionEntry) -> str:
    if not entry.node:
        return f"unschedulable ({entry.reason})"
    victims = f" evicting {', '.join(entry.victims)}" if entry.victims else ""
    return f"node {entry.node} with score {entry.score}{victims}"
