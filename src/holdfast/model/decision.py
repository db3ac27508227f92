"""Decision: why one planning batch came out as it did, with all it takes to run it again."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.scheduling_request import RefusalCount
from holdfast.model.validation import Causes, forbidden


class ScorePart(Part, frozen=True):
    name: str
    value: int
    weight: int


class DecisionEntry(Part, frozen=True):
    """One replica: where it went, or why nowhere."""

    replica: str
    uid: str
    attempt: int = shown(1)
    node: str = ""
    score: int = 0
    scores: tuple[ScorePart, ...] = ()
    runner_up: str = ""
    runner_up_score: int = 0
    result: str = ""
    reason: str = ""
    message: str = ""


class DecisionSpec(Part, frozen=True):
    request: str
    workload: str
    workload_generation: int = 0
    queued_at: str = ""
    decided_at: str = ""
    policy_revision: str = ""
    policy_sequence: int = 0
    snapshot_revision: int = shown(0)
    snapshot_hash: str = ""
    seed: int = 0
    planner: str = ""
    nodes: int = shown(0)
    feasible: int = shown(0)
    entries: tuple[DecisionEntry, ...] = ()
    refusals: tuple[RefusalCount, ...] = ()
    next_owner: str = ""
    wake_up_at: str = ""


class DecisionStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Decision(Object, frozen=True):
    spec: DecisionSpec
    status: DecisionStatus = msgspec.field(default_factory=DecisionStatus)


def validate_decision(decision: Decision, old: Decision | None) -> Causes:
    if old is not None and old.spec != decision.spec:
        yield forbidden("spec", "a decision is a record and never changes")
