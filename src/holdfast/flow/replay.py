"""Plans a recorded decision again, on the state it was made on, and says whether the outcome is the same to the bit.

Pure: `reads` says which past states are needed, the caller fetches them from the store's history, and `replay` judges.
The snapshot's hash must come out as recorded before anything is compared: a replay on another state proves nothing and
is answered with NotReplayable and a reason.
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
"""What a snapshot is made of. Decisions record the revision of each."""

_POLICY_KIND = "PolicyRevision"
_encoder = msgspec.json.Encoder(order="sorted")


class Ahead(msgspec.Struct, frozen=True):
    """One object that the scheduler knew in a later state than the rest of its kind."""

    kind: str
    key: Key
    revision: int


class Reads(msgspec.Struct, frozen=True):
    """Past states to fetch: whole kinds, single objects, and the request itself."""

    kinds: dict[str, int]
    ahead: tuple[Ahead, ...]
    request: Key
    request_revision: int
    policy: str
    policy_at: int


class Past(msgspec.Struct, frozen=True):
    """What was fetched. `ahead` has None where the object did not exist at that revision."""

    objects: tuple[Object, ...]
    ahead: Mapping[Ahead, Object | None]
    request: SchedulingRequest | None
    policy: PolicyRevision | None
    decisions: tuple[Decision, ...]


class NotReplayable(msgspec.Struct, frozen=True):
    reason: str
    message: str


class Replayed(msgspec.Struct, frozen=True):
    """`differences` is empty when every bit of the outcome came out as recorded; under another policy, whose scores are
    its own, when every replica would have gone to the same place."""

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
    """Plans the decision again; with `rules`, as another policy would have had it."""
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
            f"the state rebuilt from history has hash {snapshot.hash}, the decision was made on {spec.snapshot_hash}",
        )
    problem = _assume_earlier(builder, decision, past.decisions)
    if problem is not None:
        return problem
    request = past.request
    assert request is not None  # `_why_not` saw to it
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
    """The oldest revision that a replay of any of these reads; 0 when none can be replayed anyway."""
    found = 0
    for decision in decisions:
        spec: DecisionSpec = decision.spec
        if spec.planner == PLANNER_VERSION and spec.revisions:
            oldest = min(*spec.revisions.values(), spec.request_revision or spec.snapshot_revision)
            found = min(found, oldest) if found else oldest
    return found


def claims_of(decision: Decision) -> Iterator[tuple[ClaimKey, Claim]]:
    """What the proposals of a decision would take: the claims that others planned around."""
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
            "PlannerChanged", f"it was made by planner {spec.planner or 'unknown'}, this one is {PLANNER_VERSION}"
        )
    missing = [kind for kind in SNAPSHOT_KINDS if kind not in spec.revisions]
    if missing:
        return NotReplayable("NotRecorded", f"the decision does not say at which revision it saw {', '.join(missing)}")
    if spec.adopted:
        return NotReplayable("AdoptedClaims", f"{spec.adopted} places known only from the authority's answers counted")
    if past.request is None:
        return NotReplayable("RequestMissing", f"request {spec.request} at revision {spec.request_revision} is gone")
    if spec.policy_revision != BUILT_IN and past.policy is None:
        return NotReplayable("PolicyMissing", f"policy revision {spec.policy_revision} is gone")
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
    """Counts the batches that were under way as the scheduler did."""
    wanted = {batch.batch: batch for batch in decision.spec.assumed}
    found = _by_batch(known)
    for name, batch in wanted.items():
        decisions = found.get(name, {})
        if len(decisions) < batch.decisions:
            return NotReplayable(
                "AssumedDecisionMissing",
                f"of batch {name}, then under way, {batch.decisions} decisions counted and {len(decisions)} are kept",
            )
        without = frozenset(batch.without)
        for other in decisions.values():
            for key, claim in claims_of(other):
                if f"{key.namespace}/{key.name}" not in without and not builder.on_record(key, claim.replica_uid):
                    builder.assume(key, claim)
    return None


def _assume_earlier(builder: SnapshotBuilder, decision: Decision, known: Iterable[Decision]) -> NotReplayable | None:
    """Counts what the same batch had proposed before."""
    spec = decision.spec
    mates = _by_batch(known).get(spec.batch, {})
    for ordinal in range(spec.ordinal):
        other = mates.get(ordinal)
        if other is None:
            return NotReplayable(
                "EarlierDecisionMissing", f"decision {ordinal} of batch {spec.batch}, planned before it, is not kept"
            )
        for key, claim in claims_of(other):
            builder.assume(key, claim)
    return None


def _by_batch(decisions: Iterable[Decision]) -> dict[str, dict[int, Decision]]:
    """Decisions with proposals by batch and ordinal; parts of one decision that were stored apart count once."""
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
        yield "the reasons of the nodes that refused differ"
    if (spec.nodes, spec.feasible) != (made.nodes, made.feasible):
        yield f"recorded {spec.feasible} of {spec.nodes} nodes feasible, planned {made.feasible} of {made.nodes}"


def _moves(spec: DecisionSpec, made: AskPlan) -> Iterator[str]:
    for recorded, planned in zip(spec.entries, made.entries(), strict=True):
        if (recorded.node, recorded.victims) != (planned.node, planned.victims):
            yield f"{recorded.replica}: recorded {_said(recorded)}, planned {_said(planned)}"


def _planned_part(entry: DecisionEntry) -> bytes:
    """What the planner said of a replica, without the authority's answer to it."""
    if entry.node:
        entry = msgspec.structs.replace(entry, result="", reason="", message="")
    return _encoder.encode(entry)


def _said(entry: DecisionEntry) -> str:
    if not entry.node:
        return f"no place ({entry.reason})"
    victims = f" evicting {', '.join(entry.victims)}" if entry.victims else ""
    return f"node {entry.node} with score {entry.score}{victims}"
