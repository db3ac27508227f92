"""The replica state machine as data. The code, the diagrams, the console and the tests all read this table.

`stage()` derives a replica's stage from its status blocks; no stage is stored. Each transition has exactly one owner.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.replica import ExecutionBlock, Phase, Replica
from holdfast.model.workload import WorkloadType


class Stage(enum.StrEnum):
    QUEUED = "Queued"
    RESERVED = "Reserved"
    BOUND = "Bound"
    STARTING = "Starting"
    RUNNING = "Running"
    READY = "Ready"
    SERVING = "Serving"
    UNKNOWN = "Unknown"
    STOPPING = "Stopping"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"
    RELEASED = "Released"


class Transition(msgspec.Struct, frozen=True):
    """`owner` is the only role that may write `evidence`, which causes the transition."""

    source: Stage | None
    target: Stage
    owner: str
    evidence: str
    commit_point: str


_S = Stage
TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, _S.QUEUED, "replicate", "Replica and SchedulingRequest exist", "Replica"),
    Transition(_S.QUEUED, _S.RESERVED, "authority", "a Reservation is held", "Reservation"),
    Transition(_S.QUEUED, _S.BOUND, "authority", "reserved and bound in one transaction", "Binding"),
    Transition(_S.RESERVED, _S.BOUND, "authority", "the Binding consumed the Reservation", "Binding"),
    Transition(_S.RESERVED, _S.QUEUED, "authority", "the Reservation was released or expired", "Reservation"),
    Transition(_S.BOUND, _S.STARTING, "agent", "the process was started", "Replica.status.execution"),
    Transition(_S.BOUND, _S.READY, "agent", "started and ready within one report", "Replica.status.execution"),
    Transition(_S.BOUND, _S.RUNNING, "agent", "started and not yet ready", "Replica.status.execution"),
    Transition(_S.BOUND, _S.FAILED, "agent", "the start failed", "Replica.status.execution"),
    Transition(_S.BOUND, _S.SUCCEEDED, "agent", "exited with code 0 within one report", "Replica.status.execution"),
    Transition(_S.STARTING, _S.RUNNING, "agent", "the startup probe passed", "Replica.status.execution"),
    Transition(_S.STARTING, _S.READY, "agent", "probes passed", "Replica.status.execution"),
    Transition(_S.STARTING, _S.FAILED, "agent", "exit evidence, restarts exhausted", "Replica.status.execution"),
    Transition(_S.STARTING, _S.SUCCEEDED, "agent", "exit code 0", "Replica.status.execution"),
    Transition(_S.RUNNING, _S.READY, "agent", "the readiness probe passed", "Replica.status.execution"),
    Transition(_S.RUNNING, _S.STARTING, "agent", "restarted after an exit", "Replica.status.execution"),
    Transition(_S.RUNNING, _S.FAILED, "agent", "exit evidence, restarts exhausted", "Replica.status.execution"),
    Transition(_S.RUNNING, _S.SUCCEEDED, "agent", "exit code 0", "Replica.status.execution"),
    Transition(_S.READY, _S.RUNNING, "agent", "the readiness probe failed", "Replica.status.execution"),
    Transition(_S.READY, _S.STARTING, "agent", "restarted after an exit", "Replica.status.execution"),
    Transition(_S.READY, _S.FAILED, "agent", "exit evidence, restarts exhausted", "Replica.status.execution"),
    Transition(_S.READY, _S.SUCCEEDED, "agent", "exit code 0", "Replica.status.execution"),
    Transition(_S.READY, _S.SERVING, "serve", "its address is in the Endpoint", "Endpoint"),
    *(
        Transition(
            stage, _S.SERVING, "agent", "ready again before its address was withdrawn", "Replica.status.execution"
        )
        for stage in (_S.STARTING, _S.RUNNING)
    ),
    Transition(_S.SERVING, _S.READY, "serve", "its address was withdrawn", "Endpoint"),
    Transition(_S.SERVING, _S.RUNNING, "agent", "the readiness probe failed", "Replica.status.execution"),
    Transition(_S.SERVING, _S.STARTING, "agent", "restarted after an exit", "Replica.status.execution"),
    Transition(_S.SERVING, _S.FAILED, "agent", "exit evidence, restarts exhausted", "Replica.status.execution"),
    Transition(_S.SERVING, _S.SUCCEEDED, "agent", "exit code 0", "Replica.status.execution"),
    *(
        Transition(stage, _S.UNKNOWN, "node-health", "the node's lease expired", "Replica.status.contact")
        for stage in (_S.BOUND, _S.STARTING, _S.RUNNING, _S.READY, _S.SERVING, _S.FAILED, _S.SUCCEEDED)
    ),
    *(
        Transition(_S.UNKNOWN, stage, "node-health", "the node renewed its lease", "Replica.status.contact")
        for stage in (_S.BOUND, _S.STARTING, _S.RUNNING, _S.READY, _S.SERVING, _S.FAILED, _S.SUCCEEDED)
    ),
    *(
        Transition(stage, _S.STOPPING, "release", "the decision to release the node", "Replica.status.release")
        for stage in (
            _S.RESERVED,
            _S.BOUND,
            _S.STARTING,
            _S.RUNNING,
            _S.READY,
            _S.SERVING,
            _S.UNKNOWN,
            _S.FAILED,
            _S.SUCCEEDED,
        )
    ),
    Transition(_S.STOPPING, _S.QUEUED, "authority", "claims released; the next attempt is queued", "Binding"),
    Transition(_S.STOPPING, _S.RELEASED, "authority", "claims released; the replica is being deleted", "Binding"),
    Transition(_S.STOPPING, _S.FAILED, "authority", "claims released; the batch replica failed", "Binding"),
    Transition(_S.STOPPING, _S.SUCCEEDED, "authority", "claims released; the batch replica succeeded", "Binding"),
    Transition(_S.QUEUED, _S.RELEASED, "release", "deleted before it was placed", "Replica"),
)


def current_execution(replica: Replica) -> ExecutionBlock | None:
    """The agent's report on the current attempt; None if the report is about an older one."""
    block = replica.status.execution
    if block is None or block.attempt != replica.status.placement.attempt:
        return None
    return block


def is_out_of_contact(replica: Replica) -> bool:
    """Whether the node of the current attempt is out of contact."""
    contact = replica.status.contact
    return contact is not None and contact.lost and contact.attempt == replica.status.placement.attempt


def final_phase(replica: Replica) -> Phase | None:
    """Succeeded or Failed if a batch replica has ended; None otherwise."""
    block = replica.status.execution
    if block is not None and block.phase in (Phase.SUCCEEDED, Phase.FAILED) and replica.spec.type is WorkloadType.BATCH:
        return block.phase
    return None


def stage(replica: Replica) -> Stage:
    """The stage of a replica. No other code derives it.

    Only a release of the current attempt makes it Stopping; only node-health makes it Unknown.
    """
    status = replica.status
    placed = status.placement
    if not placed.binding and not placed.reservation:
        ended = final_phase(replica)
        if ended is not None:
            return Stage.SUCCEEDED if ended is Phase.SUCCEEDED else Stage.FAILED
        return Stage.RELEASED if replica.metadata.terminating else Stage.QUEUED
    if status.release is not None and status.release.attempt == placed.attempt:
        return Stage.STOPPING
    if not placed.binding:
        return Stage.RESERVED
    if is_out_of_contact(replica):
        return Stage.UNKNOWN
    return _running_stage(replica)


def _running_stage(replica: Replica) -> Stage:
    ran = current_execution(replica)
    if ran is None:
        return Stage.BOUND
    if ran.phase is Phase.RUNNING:
        if not ran.ready:
            return Stage.RUNNING
        traffic = replica.status.traffic
        in_endpoint = traffic is not None and traffic.serving and traffic.attempt == ran.attempt
        return Stage.SERVING if in_endpoint else Stage.READY
    if ran.phase is Phase.SUCCEEDED:
        return Stage.SUCCEEDED
    if ran.phase is Phase.FAILED:
        return Stage.FAILED
    # Starting, or stopped without a release (for example for lack of a lease): between two runs.
    return Stage.STARTING


STARTED_STAGES = frozenset({Stage.RUNNING, Stage.READY, Stage.SERVING})
PLACED_STAGES = frozenset({Stage.BOUND, Stage.STARTING, Stage.RUNNING, Stage.READY, Stage.SERVING, Stage.UNKNOWN})


class LastTransition(msgspec.Struct, frozen=True):
    """The transition to the current stage: its owner, and when it was made (empty if the object does not say)."""

    stage: Stage
    owner: str
    at: str = ""


def last_transition(replica: Replica) -> LastTransition:
    """Who made the replica's last transition and when, from the block that is the evidence of it."""
    found = stage(replica)
    status = replica.status
    placed = status.placement
    if found is Stage.QUEUED:
        first = placed.attempt == 1
        at = replica.metadata.creation_timestamp if first else placed.released_at
        return LastTransition(found, "replicate" if first else "authority", at)
    if found is Stage.RESERVED:
        return LastTransition(found, "authority", placed.reserved_at)
    if found is Stage.UNKNOWN:
        return LastTransition(found, "node-health", status.contact.since if status.contact is not None else "")
    if found is Stage.STOPPING:
        return LastTransition(found, "release", status.release.at if status.release is not None else "")
    if found is Stage.RELEASED:
        return LastTransition(found, "authority" if placed.released_reason else "release", placed.released_at)
    if not placed.binding:  # a batch replica that has ended and gave up its node
        return LastTransition(found, "authority", placed.released_at)
    at, owner = max(_evidence(replica, found))
    return LastTransition(found, owner, at)


def _evidence(replica: Replica, found: Stage) -> list[tuple[str, str]]:
    """(time, owner) of each write that can have made a placed replica's current stage."""
    status = replica.status
    attempt = status.placement.attempt
    ran, traffic, contact = current_execution(replica), status.traffic, status.contact
    times = [(status.placement.bound_at, "authority")] if ran is None else []
    if ran is not None:
        ended = ran.last_exit.at if ran.last_exit is not None else ""
        times.append((max(ran.started_at, ran.ready_since, ended), "agent"))
    if found in (Stage.READY, Stage.SERVING) and traffic is not None and traffic.attempt == attempt:
        times.append((traffic.since, "serve"))
    if contact is not None and contact.attempt == attempt and not contact.lost and contact.since:
        times.append((contact.since, "node-health"))
    return times
