"""Decision: why one planning batch came out as it did, with all it takes to run it again."""

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
    """One replica: where it went, or why nowhere.

    Node, devices, victims and scores are the planner's word; result, reason and message are the authority's, or the
    planner's where nothing was proposed.
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
    """What every member of the request takes from a node: enough to count it as taken without reading the request."""

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
    """What the tenant could still spend, if that was known (`limited`) and there was a grant at all (`granted`)."""
    spared: tuple[str, ...] = ()
    keeps_off: tuple[AffinityRule, ...] = ()


class QueueState(Part, frozen=True):
    """What put the request where it was in the queue, and the tenant's limit as the scheduler knew it."""

    position: int = 0
    waiting: int = 0
    rank: int = 0
    deadline: str = ""
    share: int = 0
    attempts: int = 0
    limit: dict[str, Amount] = {}
    used: dict[str, Amount] = {}


class AssumedBatch(Part, frozen=True):
    """A batch whose proposals counted as taken though they were not on record yet, except those in `without`."""

    batch: str
    decisions: int = shown(0)
    without: tuple[str, ...] = ()


class ShadowEntry(Part, frozen=True):
    """One replica for which a shadow policy would have chosen otherwise: its node, or the reason for none."""

    replica: str
    node: str = ""
    score: int = 0
    reason: str = ""


class WeighedWorkload(Part, frozen=True):
    """How a workload (tenant/name) stood that may have had to make way: its replicas here, and those that served."""

    workload: str
    staying: int = shown(0)
    serving: int = shown(0)


class Weighed(Part, frozen=True):
    """What was read of those that could have made way. `idle` are claims (tenant/claim) whose loss no budget counts."""

    workloads: tuple[WeighedWorkload, ...] = ()
    idle: tuple[str, ...] = ()


class Shadow(Part, frozen=True):
    """What a policy in its shadow stage would have decided of the same replicas on the same snapshot.

    `gained` and `lost` count those that only one of the two found a place for. Of those that differ the first few
    are told.
    """

    revision: str
    same: int = shown(0)
    other: int = shown(0)
    gained: int = 0
    lost: int = 0
    entries: tuple[ShadowEntry, ...] = ()


class DecisionSpec(Part, frozen=True):
    """Everything it takes to plan the same again.

    The snapshot is made of each kind as of its own revision (`revisions`), with the objects in `ahead` as of theirs
    ("Kind/namespace/name@revision"), of the assumed batches, and of the decisions of the same batch with a lower
    ordinal. `snapshotHash` stands for all of it but the last.
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
        yield forbidden("spec", "a decision is a record and never changes")
