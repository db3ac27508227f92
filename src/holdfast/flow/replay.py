"""Replays a recorded Decision on the state it was made on, and compares the outcome bit by bit.

Pure: `reads` lists the past states that are needed, the caller loads them from the store's history, `replay` compares.
The rebuilt snapshot must have the recorded hash. Otherwise the result is NotReplayable with a reason, because a replay
on another state proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.flow import purse
from holdfast.flow.active_policy import BUILT_IN
from holdfast.flow.ask import ask_of
from holdfast.flow.plan.planner import PLANNER_VERSION, AskPlan, plan
from holdfast.flow.plan.sparing import UNKNOWN, Recorded
from holdfast.flow.snapshot import Claim, ClaimKey, Snapshot, SnapshotBuilder
from holdfast.model.binding import claim_name
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec
from holdfast.model.meta import Key, Object
from holdfast.model.quantity import amounts
from holdfast.model.scheduler_policy import PolicyRevision, Rules
from holdfast.model.scheduling_request import Member, SchedulingRequest
from holdfast.model.times import parse_time

SNAPSHOT_KINDS = ("Node", "Binding", "Reservation", "Hold", "Override", "GrantCopy", "Region")
"""The kinds in a snapshot. A Decision records the revision of each."""

_POLICY_KIND = "PolicyRevision"
_encoder = msgspec.json.Encoder(order="sorted")


class Ahead(msgspec.Struct, frozen=True):
    """An object that the scheduler had read at a newer revision than the rest of its kind."""

    kind: str
    key: Key
    revision: int


class Reads(msgspec.Struct, frozen=True):
    """Past states to load: whole kinds, single objects, the request and the policy."""

    kinds: dict[str, int]
    ahead: tuple[Ahead, ...]
    request: Key
    request_revision: int
    policy: str
    policy_at: int


class Past(msgspec.Struct, frozen=True):
    """The loaded past states. `ahead` maps to None where the object did not exist at that revision."""

    objects: tuple[Object, ...]
    ahead: Mapping[Ahead, Object | None]
    request: SchedulingRequest | None
    policy: PolicyRevision | None
    decisions: tuple[Decision, ...]


class NotReplayable(msgspec.Struct, frozen=True):
    reason: str
    message: str


class Replayed(msgspec.Struct, frozen=True):
    """`differences` is empty if the outcome equals the recorded one bit by bit. Under another policy, whose scores
    differ, it is empty if every replica gets the same node and victims."""

    made: AskPlan
    differences: tuple[str, ...]

    @property
    def same(self) -> bool:
        return not self.differences


def reads(decision: Decision) -> Reads:
    spec = decision.spec
    kinds = {kind: spec.revisions[kind] for kind in SNAPSHOT_KINDS if kind in spec.revisions}
    return Reads(
        kinds=kinds,
        ahead=tuple(parse_ahead(text) for text in spec.ahead),
        request=Key(decision.metadata.namespace, spec.request),
        request_revision=spec.request_revision,
        policy="" if spec.policy_revision == BUILT_IN else spec.policy_revision,
        policy_at=spec.revisions.get(_POLICY_KIND, 0),
    )


def ahead_text(kind: str, key: Key, revision: int) -> str:
    return f"{kind}/{key.namespace}/{key.name}@{revision}"


def parse_ahead(text: str) -> Ahead:
    path, _, revision = text.rpartition("@")
    kind, namespace, name = path.split("/", 2)
    return Ahead(kind, Key(namespace, name), int(revision))


def replay(region: str, decision: Decision, past: Past, *, rules: Rules | None = None) -> Replayed | NotReplayable:
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
    used = rules or (past.policy.spec.rules if past.policy is not None else Rules())
    made = plan_again(builder.freeze(spec.snapshot_revision), spec, request, used)
    return Replayed(made, tuple(_differences(spec, made) if rules is None else _moves(spec, made)))


def plan_again(snapshot: Snapshot, spec: DecisionSpec, request: SchedulingRequest, rules: Rules) -> AskPlan:
    members = tuple(Member(name=e.replica, uid=e.uid, attempt=e.attempt) for e in spec.entries)
    asked = spec.asked
    room = purse.recorded(asked)
    ask = ask_of(request, members, bound=spec.bound, evictions=asked.evictions, room=room, spared=asked.spared)
    standing = Recorded(spec.weighed) if spec.weighed is not None else UNKNOWN
    return plan(snapshot, [ask], rules, parse_time(spec.decided_at), spec.seed, standing=standing).asks[0]


def needed_from(decisions: Iterable[Any]) -> int:
    """The oldest revision that a replay of any of these Decisions reads; 0 if none can be replayed."""
    found = 0
    for decision in decisions:
        spec: DecisionSpec = decision.spec
        if spec.planner == PLANNER_VERSION and spec.revisions:
            oldest = min(*spec.revisions.values(), spec.request_revision or spec.snapshot_revision)
            found = min(found, oldest) if found else oldest
    return found


def claims_of(decision: Decision) -> Iterator[tuple[ClaimKey, Claim]]:
    """The claims that a Decision proposed; later plans counted them."""
    spec, namespace = decision.spec, decision.metadata.namespace
    asked = spec.asked
    for entry in spec.entries:
        if not entry.node:
            continue
        yield (
            ClaimKey(namespace, claim_name(entry.replica, entry.attempt)),
            Claim(
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
                open_ports=asked.open_ports,
                rank=asked.rank,
                max_unavailable=asked.max_unavailable,
                victims=entry.victims,
                keeps_off=asked.keeps_off,
            ),
        )


def _why_not(spec: DecisionSpec, past: Past) -> NotReplayable | None:
    if spec.planner != PLANNER_VERSION:
        return NotReplayable(
            "PlannerChanged", f"other planner version (expected {PLANNER_VERSION}, found {spec.planner or 'unknown'})"
        )
    missing = [kind for kind in SNAPSHOT_KINDS if kind not in spec.revisions]
    if missing:
        return NotReplayable("NotRecorded", f"the decision records no revision for {', '.join(missing)}")
    if spec.adopted:
        return NotReplayable("AdoptedClaims", f"{spec.adopted} claims were known only from authority responses")
    if past.request is None:
        return NotReplayable("RequestMissing", f"request {spec.request} at revision {spec.request_revision} not found")
    if spec.policy_revision != BUILT_IN and past.policy is None:
        return NotReplayable("PolicyMissing", f"policy revision {spec.policy_revision} not found")
    return None


def _rebuilt(region: str, past: Past) -> SnapshotBuilder:
    builder = SnapshotBuilder(region)
    overtaken = {(item.kind, item.key) for item in past.ahead}
    for found in past.objects:
        if (type(found).__name__, found.key) not in overtaken:
            builder.upsert(found)
    for item in past.ahead.values():
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
        without = frozenset(batch.without)
        for other in decisions.values():
            for key, claim in claims_of(other):
                if f"{key.namespace}/{key.name}" not in without and not builder.on_record(key, claim.replica_uid):
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
        for key, claim in claims_of(other):
            builder.assume(key, claim)
    return None


def _by_batch(decisions: Iterable[Decision]) -> dict[str, dict[int, Decision]]:
    """Decisions with proposals by batch and ordinal; a decision stored in several parts counts once."""
    found: dict[str, dict[int, Decision]] = {}
    for decision in decisions:
        if decision.spec.batch and any(entry.node for entry in decision.spec.entries):
            found.setdefault(decision.spec.batch, {}).setdefault(decision.spec.ordinal, decision)
    return found


def _differences(spec: DecisionSpec, made: AskPlan) -> Iterator[str]:
    for recorded, planned in zip(spec.entries, made.entries(), strict=True):
        if _planned_part(recorded) != _planned_part(planned):
            yield f"{recorded.replica}: recorded {_said(recorded)}, planned {_said(planned)}"
    if _encoder.encode(spec.refusals) != _encoder.encode(made.refusals):
        yield "the node refusals differ"
    if (spec.nodes, spec.feasible) != (made.nodes, made.feasible):
        yield f"recorded {spec.feasible} of {spec.nodes} nodes feasible, planned {made.feasible} of {made.nodes}"


def _moves(spec: DecisionSpec, made: AskPlan) -> Iterator[str]:
    for recorded, planned in zip(spec.entries, made.entries(), strict=True):
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
