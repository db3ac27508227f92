"""One replica as the pages show it: stage, times of the current attempt, and who acts next."""

from __future__ import annotations

from holdfast.console.answers import ReplicaRow
from holdfast.insight.timeline import next_step
from holdfast.model.lifecycle import Stage, current_execution, stage
from holdfast.model.replica import Phase, Replica

SHOWN_STAGES = tuple(s.value for s in Stage)


def replica_row(replica: Replica) -> ReplicaRow:
    current = stage(replica)
    status, placed = replica.status, replica.status.placement
    # An ended replica has released its node: its report is about the attempt before.
    ended = current in (Stage.SUCCEEDED, Stage.FAILED)
    ran = status.execution if ended else current_execution(replica)
    attempt = ran.attempt if ended and ran is not None else placed.attempt
    traffic = status.traffic
    serving = traffic is not None and traffic.serving and traffic.attempt == placed.attempt
    owner, step = next_step(current)
    reason, message = _trouble(replica, current)
    if ran is not None and ran.phase is Phase.BACKING_OFF:
        step = "restarts it after the backoff"
    row = ReplicaRow(
        tenant=replica.metadata.namespace,
        name=replica.metadata.name,
        workload=replica.spec.workload,
        assignment=replica.spec.assignment,
        purpose=replica.spec.purpose.value,
        stage=current.value,
        revision=replica.spec.revision,
        attempt=placed.attempt,
        node=placed.node,
        zone=placed.zone,
        binding=placed.binding,
        decision=placed.decision,
        priority=replica.spec.priority,
        reclaimable=replica.spec.reclaimable,
        restarts=ran.restarts if ran is not None else 0,
        address=_address(replica),
        reason=reason,
        message=message,
        queued_at=replica.metadata.creation_timestamp if attempt == 1 else _released_at(replica),
        reserved_at=placed.reserved_at,
        bound_at=placed.bound_at,
        started_at=ran.started_at if ran is not None else "",
        ready_at=ran.ready_since if ran is not None else "",
        ended_at=ran.last_exit.at if ended and ran is not None and ran.last_exit is not None else "",
        serving_at=traffic.since if traffic is not None and serving else "",
        since=_since(replica, current),
        next_owner=owner,
        next_step=step,
    )
    return row


def _released_at(replica: Replica) -> str:
    release = replica.status.release
    return release.at if release is not None else ""


def _address(replica: Replica) -> str:
    ran = current_execution(replica)
    if ran is None or not ran.address:
        return ""
    port = next((str(number) for _, number in sorted(ran.ports.items())), "")
    return f"{ran.address}:{port}" if port else ran.address


def _trouble(replica: Replica, current: Stage) -> tuple[str, str]:
    """Why a replica is not where it should be; empty if all is well."""
    status = replica.status
    ran = current_execution(replica)
    if current is Stage.UNKNOWN and status.contact is not None:
        return status.contact.reason or "NodeUnreachable", "its node is out of contact"
    if current is Stage.STOPPING and status.release is not None:
        return status.release.reason, status.release.message
    if ran is not None and not ran.ready and ran.reason:
        return ran.reason, ran.message
    if current is Stage.QUEUED and status.placement.released_reason:
        return status.placement.released_reason, "the previous attempt was released"
    return "", ""


def _since(replica: Replica, current: Stage) -> str:
    """When the replica entered its stage, as far as that is recorded."""
    status, placed = replica.status, replica.status.placement
    ran = current_execution(replica)
    queued = replica.metadata.creation_timestamp if placed.attempt == 1 else _released_at(replica)
    match current:
        case Stage.QUEUED:
            return queued
        case Stage.RESERVED:
            return placed.reserved_at
        case Stage.BOUND:
            return placed.bound_at
        case Stage.STARTING | Stage.RUNNING:
            return (ran.started_at if ran is not None else "") or placed.bound_at
        case Stage.READY:
            return ran.ready_since if ran is not None else ""
        case Stage.SERVING:
            return status.traffic.since if status.traffic is not None else ""
        case Stage.UNKNOWN:
            return status.contact.since if status.contact is not None else ""
        case Stage.STOPPING:
            return status.release.at if status.release is not None else ""
        case _:
            last = status.execution
            return last.last_exit.at if last is not None and last.last_exit is not None else ""
