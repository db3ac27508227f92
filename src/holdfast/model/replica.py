"""Replica: one instance of a workload in one region. Each block of its status has one writer.

`lifecycle.stage` derives the stage of a replica from these blocks; no stage is stored.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.reasons import Reason
from holdfast.model.task_programs import ProgramStatus
from holdfast.model.template import Template
from holdfast.model.validation import Causes, check_range, forbidden
from holdfast.model.workload import Disruption, Exclusivity, WorkloadType


class ReplicaSpec(ApiStruct, frozen=True):
    """Written once by replicate. Immutable."""

    workload: str
    workload_uid: str
    assignment: str
    revision: str
    template: Template
    purpose: Purpose = visible_default(Purpose.NORMAL)
    ordinal: int = visible_default(0)
    type: WorkloadType = visible_default(WorkloadType.SERVICE)
    placement: PlacementRules = msgspec.field(default_factory=PlacementRules)
    priority: int = visible_default(0)
    reclaimable: bool = False
    dedicated: bool = False
    disruption: Disruption = msgspec.field(default_factory=Disruption)
    exclusive: Exclusivity | None = None
    min_ready_seconds: float = 0.0
    index: int | None = None
    active_until: str = ""


class PlacementBlock(ApiStruct, frozen=True):
    """Written by the authority. `attempt` increases with every release, so that an old intent is refused."""

    attempt: int = visible_default(1)
    node: str = ""
    zone: str = ""
    reservation: str = ""
    binding: str = ""
    epoch: int = 0
    reserved_at: str = ""
    bound_at: str = ""
    decision: str = ""
    released_reason: str = ""
    released_at: str = ""
    last_node: str = ""
    """`lastNode` is where the attempt before was bound: the logs of ended work are there."""
    devices: tuple[str, ...] = ()
    ports: dict[str, int] = {}
    """`devices` and `ports` of the node that the bound task uses. They stay claimed if the store loses the Binding."""


class Phase(enum.StrEnum):
    """State of the process, as last reported by the agent."""

    STARTING = "Starting"
    RUNNING = "Running"
    BACKING_OFF = "BackingOff"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"


TERMINAL_PHASES = frozenset({Phase.SUCCEEDED, Phase.FAILED})
"""Phases that end an attempt."""


class ExitStatus(ApiStruct, frozen=True):
    """Exit code, signal and reason of a process that ended."""

    code: int | None = None
    signal: str = ""
    reason: str = ""
    message: str = ""
    at: str = ""
    termination_message: str = ""


class ExecutionBlock(ApiStruct, frozen=True):
    """The agent's report. It is valid only for the attempt that it names."""

    phase: Phase
    attempt: int = visible_default(0)
    ready: bool = visible_default(False)
    address: str = ""
    ports: dict[str, int] = {}
    pid: int = 0
    restarts: int = visible_default(0)
    started_at: str = ""
    ready_since: str = ""
    last_exit: ExitStatus | None = None
    reason: str = ""
    message: str = ""
    sequence: int = 0
    image: str = ""
    programs: tuple[ProgramStatus, ...] = ()
    """`programs` are the init tasks, sidecars and main task of a template that has more than a main task.

    `sequence` numbers the agent's reports. Of one attempt, a report with a lower number than the stored one is
    refused: it was delayed on its way."""


class ReplicaContact(ApiStruct, frozen=True):
    """Whether the node is out of contact. Written by node-health; valid only for the attempt that it names."""

    lost: bool = visible_default(False)
    attempt: int = visible_default(0)
    node: str = ""
    since: str = ""
    reason: str = ""


class TrafficBlock(ApiStruct, frozen=True):
    """Whether the replica is in its workload's Endpoint. Written by serve."""

    serving: bool = visible_default(False)
    attempt: int = visible_default(0)
    since: str = ""


class ReleaseBlock(ApiStruct, frozen=True):
    """The decision to release the replica's node, and why. Written by release."""

    reason: str
    attempt: int = visible_default(0)
    message: str = ""
    requested_by: str = ""
    at: str = ""


class RepairBlock(ApiStruct, frozen=True):
    """The finding of repair about this attempt, and its request. Written by repair."""

    reason: str
    attempt: int = visible_default(0)
    message: str = ""
    state: str = ""
    at: str = ""


class RebalanceBlock(ApiStruct, frozen=True):
    """The request to move the replica for a more even spread, and why. Written by rebalance.

    It stays after the move, as the record of it: `attempt` is the attempt that was to leave `fromNode`."""

    attempt: int = visible_default(0)
    from_node: str = ""
    from_zone: str = ""
    to_node: str = ""
    to_zone: str = ""
    message: str = ""
    at: str = ""


class ReplicaStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    placement: PlacementBlock = msgspec.field(default_factory=PlacementBlock)
    execution: ExecutionBlock | None = None
    contact: ReplicaContact | None = None
    traffic: TrafficBlock | None = None
    release: ReleaseBlock | None = None
    repair: RepairBlock | None = None
    rebalance: RebalanceBlock | None = None


class Replica(Object, frozen=True):
    spec: ReplicaSpec
    status: ReplicaStatus = msgspec.field(default_factory=ReplicaStatus)


def replica_name(workload: str, region: str, ordinal: int, purpose: Purpose) -> str:
    mark = "r" if purpose is Purpose.RECOVERY else ""
    return f"{workload}-{region}-{mark}{ordinal}"


def ordinal_in(name: str) -> str:
    """The ordinal at the end of a replica's name."""
    return name.rpartition("-")[2].removeprefix("r")


def validate_replica(replica: Replica, old: Replica | None) -> Causes:
    yield from check_range("spec.ordinal", replica.spec.ordinal, 0, 10_000_000)
    if old is not None and old.spec != replica.spec:
        yield forbidden("spec", "immutable; replicate creates another replica instead")
    if old is not None and _is_older_report(old.status.execution, replica.status.execution):
        yield forbidden("status.execution", "this report is older than the stored one")


def _is_older_report(old: ExecutionBlock | None, new: ExecutionBlock | None) -> bool:
    """Whether the new report is older than the stored one. An unanswered report may arrive late and undo newer ones."""
    if old is None or new is None or old is new:
        return False
    if new.attempt < old.attempt:
        return True
    if new.attempt == old.attempt and 0 < new.sequence < old.sequence:
        return True
    return new.attempt == old.attempt and old.phase in TERMINAL_PHASES and new.phase is not old.phase


BOUND = "Bound"


def bound_condition(placement: PlacementBlock, generation: int) -> Condition:
    """The condition `Bound` of a replica with this placement. While it is false, its reason says why."""
    if placement.binding:
        status, reason, message = "True", str(Reason.BOUND), f"node {placement.node}, attempt {placement.attempt}"
    elif placement.reservation:
        status, reason, message = "False", str(Reason.RESERVED), f"node {placement.node}, attempt {placement.attempt}"
    else:
        status, reason = "False", placement.released_reason or str(Reason.WAITING)
        message = f"attempt {placement.attempt} is queued"
    return Condition(type=BOUND, status=status, reason=reason, message=message, observed_generation=generation)
