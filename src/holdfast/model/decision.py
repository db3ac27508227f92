"""Decision: the record of one scheduling decision, with all inputs that a replay needs."""

from __future__ import annotations

import msgspec

from holdfast.model.binding import DeviceClaim
from holdfast.model.meta import ApiStruct, Condition, Key, Object, visible_default
from holdfast.model.placement_rules import AffinityRule
from holdfast.model.quantity import Amount
from holdfast.model.reasons import Reason
from holdfast.model.scheduling_request import RefusalCount
from holdfast.model.validation import Causes, forbidden


class ScoreComponent(ApiStruct, frozen=True):
    name: str
    value: int
    weight: int


class DecisionEntry(ApiStruct, frozen=True):
    """One replica: its chosen node, or why there is none.

    Node, devices, victims and scores come from the planner. Result, reason and message come from the authority, or from
    the planner if nothing was proposed.
    """

    replica: str
    uid: str
    attempt: int = visible_default(1)
    node: str = ""
    devices: tuple[DeviceClaim, ...] = ()
    victims: tuple[str, ...] = ()
    score: int = 0
    scores: tuple[ScoreComponent, ...] = ()
    runner_up: str = ""
    runner_up_score: int = 0
    result: str = ""
    reason: str = ""
    message: str = ""


class DecisionInputs(ApiStruct, frozen=True):
    """Requirements of each member of the request, so that a replay need not read the request."""

    resources: dict[str, Amount] = {}
    labels: dict[str, str] = {}
    ports: tuple[int, ...] = ()
    dynamic_ports: int = 0
    reclaimable: bool = False
    priority: int = 0
    may_preempt: bool = False
    max_unavailable: int = 0
    evictions_left: int = 0
    headroom_known: bool = False
    has_grant: bool = False
    quota_headroom: dict[str, Amount] = {}
    """The tenant's remaining quota, if it was known (`headroomKnown`) and if there was a grant (`hasGrant`)."""
    excluded_victims: tuple[str, ...] = ()
    anti_affinity: tuple[AffinityRule, ...] = ()
    udp_ports: tuple[int, ...] = ()
    """Fixed UDP ports; `ports` has the TCP ports."""


class QueueState(ApiStruct, frozen=True):
    """Sort keys of the request in the queue, and the tenant's limit and usage as the scheduler knew them."""

    position: int = 0
    waiting: int = 0
    priority: int = 0
    deadline: str = ""
    share: int = 0
    attempts: int = 0
    limit: dict[str, Amount] = {}
    used: dict[str, Amount] = {}


class AssumedBatch(ApiStruct, frozen=True):
    """An earlier batch whose proposals were assumed although not committed yet, except those in `excluded`."""

    batch: str
    decisions: int = visible_default(0)
    excluded: tuple[str, ...] = ()


class ShadowEntry(ApiStruct, frozen=True):
    """One replica for which the shadow policy chose differently: its node, or the reason for none."""

    replica: str
    node: str = ""
    score: int = 0
    reason: str = ""


class SiblingEvidence(ApiStruct, frozen=True):
    """Replicas in the region, and serving replicas, of a workload (tenant/name) that could have been preempted."""

    workload: str
    total: int = visible_default(0)
    serving: int = visible_default(0)


class PreemptionEvidence(ApiStruct, frozen=True):
    """Data read about possible preemption victims. `notServing` lists claims (tenant/claim) that cost no budget."""

    workloads: tuple[SiblingEvidence, ...] = ()
    not_serving: tuple[str, ...] = ()


class Shadow(ApiStruct, frozen=True):
    """Result of the shadow policy for the same replicas on the same snapshot.

    `additional` counts replicas that only the shadow policy placed, `missing` those that only the active policy
    placed, `skipped` those that the active policy placed in a batch that was not compared. Replicas that neither policy
    placed are not counted. `entries` lists the first differences.
    """

    revision: str
    same: int = visible_default(0)
    different: int = visible_default(0)
    additional: int = 0
    missing: int = 0
    skipped: int = 0
    entries: tuple[ShadowEntry, ...] = ()


class DecisionSpec(ApiStruct, frozen=True):
    """All inputs of the decision, so that a replay computes the same plan.

    The snapshot consists of every kind at its own revision (`revisions`), the objects in `newerObjects` at theirs
    ("Kind/namespace/name@revision"), the assumed batches, and the decisions of the same batch with a lower ordinal.
    `snapshotHash` covers all of these except the last.
    """

    request: str
    workload: str
    workload_generation: int = 0
    request_revision: int = 0
    inputs: DecisionInputs = msgspec.field(default_factory=DecisionInputs)
    bound: int = 0
    queued_at: str = ""
    decided_at: str = ""
    queue: QueueState = msgspec.field(default_factory=QueueState)
    policy_revision: str = ""
    policy_sequence: int = 0
    snapshot_revision: int = visible_default(0)
    snapshot_hash: str = ""
    revisions: dict[str, int] = {}
    newer_objects: tuple[str, ...] = ()
    batch: str = ""
    ordinal: int = 0
    assumed: tuple[AssumedBatch, ...] = ()
    adopted_claims: int = 0
    overrides: tuple[str, ...] = ()
    seed: int = 0
    planner: str = ""
    nodes: int = visible_default(0)
    feasible: int = visible_default(0)
    entries: tuple[DecisionEntry, ...] = ()
    refusals: tuple[RefusalCount, ...] = ()
    next_owner: str = ""
    wake_up_at: str = ""
    shadow: Shadow | None = None
    preemption_evidence: PreemptionEvidence | None = None


class DecisionStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


PLACED = "Placed"
PLACED_RESULTS = frozenset({"Accepted", "Already"})


def decided_status(entries: tuple[DecisionEntry, ...], at: str) -> DecisionStatus:
    """The status of a stored Decision, whose spec never changes. `Placed` is true if every replica got a claim."""
    missing = [entry for entry in entries if entry.result not in PLACED_RESULTS]
    condition = Condition(
        type=PLACED,
        status="False" if missing else "True",
        reason=(missing[0].reason or Reason.UNSCHEDULABLE) if missing else Reason.ALL_PLACED,
        message=f"{len(entries) - len(missing)} of {len(entries)} replica(s) placed",
        last_transition_time=at,
        observed_generation=1,
    )
    return DecisionStatus(observed_generation=1, conditions=(condition,))


class Decision(Object, frozen=True):
    spec: DecisionSpec
    status: DecisionStatus = msgspec.field(default_factory=DecisionStatus)


class NewerObject(msgspec.Struct, frozen=True):
    """An object that the scheduler had read at a newer revision than the rest of its kind."""

    kind: str
    key: Key
    revision: int


def newer_object_text(kind: str, key: Key, revision: int) -> str:
    """The form of `newerObjects`."""
    return f"{kind}/{key.namespace}/{key.name}@{revision}"


def parse_newer_object(text: str) -> NewerObject:
    path, _, revision = text.rpartition("@")
    kind, namespace, name = path.split("/", 2)
    return NewerObject(kind, Key(namespace, name), int(revision))


def validate_decision(decision: Decision, old: Decision | None) -> Causes:
    if old is not None and old.spec != decision.spec:
        yield forbidden("spec", "immutable")
