"""Replica: one instance of a workload in one region. Each block of its status has one writer.

The stage a replica has reached is derived from its blocks by `lifecycle.stage`; it is stored nowhere.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.placement_rules import Placement
from holdfast.model.template import Template
from holdfast.model.validation import Causes, check_range, forbidden
from holdfast.model.workload import Disruption, Exclusivity, WorkloadType


class ReplicaSpec(Part, frozen=True):
    """Written once by replicate; a replica never changes what it is."""

    workload: str
    workload_uid: str
    assignment: str
    revision: str
    template: Template
    purpose: Purpose = shown(Purpose.NORMAL)
    ordinal: int = shown(0)
    type: WorkloadType = shown(WorkloadType.SERVICE)
    placement: Placement = msgspec.field(default_factory=Placement)
    rank: int = shown(0)
    reclaimable: bool = False
    dedicated: bool = False
    disruption: Disruption = msgspec.field(default_factory=Disruption)
    exclusive: Exclusivity | None = None
    min_ready_seconds: float = 0.0


class PlacementBlock(Part, frozen=True):
    """The authority's. `attempt` rises with every release, so that an old intent cannot come back to life."""

    attempt: int = shown(1)
    node: str = ""
    zone: str = ""
    reservation: str = ""
    binding: str = ""
    epoch: int = 0
    reserved_at: str = ""
    bound_at: str = ""
    decision: str = ""
    released_reason: str = ""


class Phase(enum.StrEnum):
    """What the agent last said of the process."""

    STARTING = "Starting"
    RUNNING = "Running"
    BACKING_OFF = "BackingOff"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"


TERMINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED})
"""The last word on an attempt."""


class Exit(Part, frozen=True):
    """How the process ended: the evidence, not an interpretation."""

    code: int | None = None
    signal: str = ""
    reason: str = ""
    message: str = ""
    at: str = ""


class ExecutionBlock(Part, frozen=True):
    """The agent's. Counts only for the attempt it names; one for an older attempt is history."""

    phase: Phase
    attempt: int = shown(0)
    ready: bool = shown(False)
    address: str = ""
    ports: dict[str, int] = {}
    pid: int = 0
    restarts: int = shown(0)
    started_at: str = ""
    ready_since: str = ""
    last_exit: Exit | None = None
    reason: str = ""
    message: str = ""


class ReplicaContact(Part, frozen=True):
    """node-health's: whether the node of the attempt it names can be heard. For an older attempt it is history."""

    lost: bool = shown(False)
    attempt: int = shown(0)
    node: str = ""
    since: str = ""
    reason: str = ""


class TrafficBlock(Part, frozen=True):
    """serve's: whether it is in its workload's Endpoint."""

    serving: bool = shown(False)
    attempt: int = shown(0)
    since: str = ""


class ReleaseBlock(Part, frozen=True):
    """release's: the decision that this replica gives up its place, and why."""

    reason: str
    attempt: int = shown(0)
    message: str = ""
    requested_by: str = ""
    at: str = ""


class RepairBlock(Part, frozen=True):
    """repair's: what it found about this attempt, and what it asked for."""

    reason: str
    attempt: int = shown(0)
    message: str = ""
    state: str = ""
    at: str = ""


class ReplicaStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    placement: PlacementBlock = msgspec.field(default_factory=PlacementBlock)
    execution: ExecutionBlock | None = None
    contact: ReplicaContact | None = None
    traffic: TrafficBlock | None = None
    release: ReleaseBlock | None = None
    repair: RepairBlock | None = None


class Replica(Object, frozen=True):
    spec: ReplicaSpec
    status: ReplicaStatus = msgspec.field(default_factory=ReplicaStatus)


def replica_name(workload: str, region: str, ordinal: int, purpose: Purpose) -> str:
    mark = "r" if purpose is Purpose.RECOVERY else ""
    return f"{workload}-{region}-{mark}{ordinal}"


def validate_replica(replica: Replica, old: Replica | None) -> Causes:
    yield from check_range("spec.ordinal", replica.spec.ordinal, 0, 10_000_000)
    if old is not None and old.spec != replica.spec:
        yield forbidden("spec", "a replica's spec never changes; replicate makes another replica")
    if old is not None and _comes_back(old.status.execution, replica.status.execution):
        yield forbidden("status.execution", "work that ended for good stays so within its attempt; this word is older")


def _comes_back(old: ExecutionBlock | None, new: ExecutionBlock | None) -> bool:
    """Whether an older word arrives late: one without an answer may, after newer ones, and would undo them."""
    if old is None or new is None or old is new:
        return False
    if new.attempt < old.attempt:
        return True
    return new.attempt == old.attempt and old.phase in TERMINAL and new.phase is not old.phase
