"""Decision: the record of one scheduling decision, with all inputs that a replay needs."""

from __future__ import annotations

import msgspec

from holdfast.model.binding import DeviceClaim
from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.placement_rules import AffinityRule
from holdfast.model.quantity import Amount
from holdfast.model.scheduling_request import RefusalCount
from holdfast.model.validation import Causes, forbidden


class ScorePart(Part, frozen=True):
    name: str
    value: int
    weight: int


class DecisionEntry(Part, frozen=True):
    """One replica: its chosen node, or why there is none.

    Node, devices, victims and scores come from the planner. Result, reason and message come from the authority, or from
    the planner if nothing was proposed.
    """

    replica: str
    uid: str
    attempt: int = shown(1)
    node: str = ""
    devices: tuple[DeviceClaim, ...] = ()
    victims: tuple[str, ...] = ()
    score: int = 0
    scores: tuple[ScorePart, ...] = ()
    runner_up: str = ""
    runner_up_score: int = 0
    result: str = ""
    reason: str = ""
    message: str = ""


class Asked(Part, frozen=True):
    """Requirements of each member of the request, so that a replay need not read the request."""

    resources: dict[str, Amount] = {}
    labels: dict[str, str] = {}
    ports: tuple[int, ...] = ()
    open_ports: int = 0
    reclaimable: bool = False
    rank: int = 0
    may_preempt: bool = False
    max_unavailable: int = 0
    evictions: int = 0
    limited: bool = False
    granted: bool = False
    room: dict[str, Amount] = {}
    """The tenant's remaining quota, if it was known (`headroomKnown`) and if there was a grant (`hasGrant`)."""
    spared: tuple[str, ...] = ()
    keeps_off: tuple[AffinityRule, ...] = ()


class QueueState(Part, frozen=True):
    """Sort keys of the request in the queue, and the tenant's limit and usage as the scheduler knew them."""

    position: int = 0
    waiting: int = 0
    rank: int = 0
    deadline: str = ""
    share: int = 0
    attempts: int = 0
    limit: dict[str, Amount] = {}
    used: dict[str, Amount] = {}


class AssumedBatch(Part, frozen=True):
    """An earlier batch whose proposals were assumed although not committed yet, except those in `excluded`."""

    batch: str
    decisions: int = shown(0)
    without: tuple[str, ...] = ()


class ShadowEntry(Part, frozen=True):
    """One replica for which the shadow policy chose differently: its node, or the reason for none."""

    replica: str
    node: str = ""
    score: int = 0
    reason: str = ""


class WeighedWorkload(Part, frozen=True):
    """Replicas in the region, and serving replicas, of a workload (tenant/name) that could have been preempted."""

    workload: str
    staying: int = shown(0)
    serving: int = shown(0)


class Weighed(Part, frozen=True):
    """Data read about possible preemption victims. `notServing` lists claims (tenant/claim) that cost no budget."""

    workloads: tuple[WeighedWorkload, ...] = ()
    idle: tuple[str, ...] = ()


class Shadow(Part, frozen=True):
    """Result of the shadow policy for the same replicas on the same snapshot.

    `additional` counts replicas that only the shadow policy placed, `missing` those that only the active policy
    placed. `entries` lists the first differences.
    """

    revision: str
    same: int = shown(0)
    other: int = shown(0)
    gained: int = 0
    lost: int = 0
    entries: tuple[ShadowEntry, ...] = ()


class DecisionSpec(Part, frozen=True):
    """All inputs of the decision, so that a replay computes the same plan.

    The snapshot consists of every kind at its own revision (`revisions`), the objects in `newerObjects` at theirs
    ("Kind/namespace/name@revision"), the assumed batches, and the decisions of the same batch with a lower ordinal.
    `snapshotHash` covers all of these except the last.
    """

    request: str
    workload: str
    workload_generation: int = 0
    request_revision: int = 0
    asked: Asked = msgspec.field(default_factory=Asked)
    bound: int = 0
    queued_at: str = ""
    decided_at: str = ""
    queue: QueueState = msgspec.field(default_factory=QueueState)
    policy_revision: str = ""
    policy_sequence: int = 0
    snapshot_revision: int = shown(0)
    snapshot_hash: str = ""
    revisions: dict[str, int] = {}
    ahead: tuple[str, ...] = ()
    batch: str = ""
    ordinal: int = 0
    assumed: tuple[AssumedBatch, ...] = ()
    adopted: int = 0
    overrides: tuple[str, ...] = ()
    seed: int = 0
    planner: str = ""
    nodes: int = shown(0)
    feasible: int = shown(0)
    entries: tuple[DecisionEntry, ...] = ()
    refusals: tuple[RefusalCount, ...] = ()
    next_owner: str = ""
    wake_up_at: str = ""
    shadow: Shadow | None = None
    weighed: Weighed | None = None


class DecisionStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Decision(Object, frozen=True):
    spec: DecisionSpec
    status: DecisionStatus = msgspec.field(default_factory=DecisionStatus)


def validate_decision(decision: Decision, old: Decision | None) -> Causes:
    if old is not None and old.spec != decision.spec:
        yield forbidden("spec", "immutable")
