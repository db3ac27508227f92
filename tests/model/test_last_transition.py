"""Who made a replica's last transition: always an owner of a transition to its stage, with the time of the evidence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import batch_assignment, bound_status, replica, serving_status

from holdfast.model.lifecycle import TRANSITIONS, Stage, last_transition
from holdfast.model.replica import (
    ExecutionBlock,
    ExitStatus,
    Phase,
    PlacementBlock,
    ReleaseBlock,
    Replica,
    ReplicaContact,
    ReplicaStatus,
    TrafficBlock,
)
from holdfast.server.tables import COLUMNS

T1, T2, T3, T4 = (f"2026-01-01T00:00:0{n}.000000Z" for n in range(1, 5))


def placed(**more: Any) -> ReplicaStatus:
    status = bound_status(**more)
    return msgspec.structs.replace(status, placement=msgspec.structs.replace(status.placement, bound_at=T1))


def ran(phase: Phase = Phase.RUNNING, **more: Any) -> ExecutionBlock:
    return ExecutionBlock(phase=phase, attempt=1, started_at=T2, **more)


def contact(*, lost: bool, since: str = T4) -> ReplicaContact:
    return ReplicaContact(lost=lost, attempt=1, node="n1", since=since)


READY = ran(ready=True, ready_since=T3)
ENDED = ExitStatus(code=1, at=T4)
CASES = {
    "new": (replica(), Stage.QUEUED, "replicate", "2026-01-01T00:00:00Z"),
    "queued again": (
        replica(status=ReplicaStatus(placement=PlacementBlock(attempt=2, released_reason="NodeLost", released_at=T3))),
        Stage.QUEUED,
        "authority",
        T3,
    ),
    "reserved": (
        replica(status=ReplicaStatus(placement=PlacementBlock(reservation="x.1", node="n1", reserved_at=T1))),
        Stage.RESERVED,
        "authority",
        T1,
    ),
    "bound": (replica(status=placed()), Stage.BOUND, "authority", T1),
    "back in contact": (replica(status=placed(contact=contact(lost=False))), Stage.BOUND, "node-health", T4),
    "starting": (replica(status=placed(execution=ran(Phase.STARTING))), Stage.STARTING, "agent", T2),
    "running": (replica(status=placed(execution=ran())), Stage.RUNNING, "agent", T2),
    "ready": (replica(status=placed(execution=READY)), Stage.READY, "agent", T3),
    "withdrawn": (
        replica(status=placed(execution=READY, traffic=TrafficBlock(serving=False, attempt=1, since=T4))),
        Stage.READY,
        "serve",
        T4,
    ),
    "serving": (
        replica(status=placed(execution=READY, traffic=TrafficBlock(serving=True, attempt=1, since=T4))),
        Stage.SERVING,
        "serve",
        T4,
    ),
    "ready again": (
        replica(
            status=placed(
                execution=ran(ready=True, ready_since=T4), traffic=TrafficBlock(serving=True, attempt=1, since=T3)
            )
        ),
        Stage.SERVING,
        "agent",
        T4,
    ),
    "out of contact": (replica(status=serving_status(contact=contact(lost=True))), Stage.UNKNOWN, "node-health", T4),
    "stopping": (
        replica(status=serving_status(release=ReleaseBlock(reason="Drained", attempt=1, at=T4))),
        Stage.STOPPING,
        "release",
        T4,
    ),
    "failed": (replica(status=placed(execution=ran(Phase.FAILED, last_exit=ENDED))), Stage.FAILED, "agent", T4),
    "batch ended": (
        replica(
            of=batch_assignment(1, 1),
            status=ReplicaStatus(
                placement=PlacementBlock(attempt=2, released_reason="Exited", released_at=T4),
                execution=ran(Phase.SUCCEEDED),
            ),
        ),
        Stage.SUCCEEDED,
        "authority",
        T4,
    ),
    "released": (
        replica(
            terminating=True,
            status=ReplicaStatus(placement=PlacementBlock(attempt=2, released_reason="Drained", released_at=T4)),
        ),
        Stage.RELEASED,
        "authority",
        T4,
    ),
    "deleted in the queue": (replica(terminating=True), Stage.RELEASED, "release", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_last_transition_names_its_owner_and_time(case: str) -> None:
    item, stage, owner, at = CASES[case]
    found = last_transition(item)
    assert (found.stage, found.owner, found.at) == (stage, owner, at)
    assert owner in {step.owner for step in TRANSITIONS if step.target is stage}


def test_every_stage_has_a_case() -> None:
    assert {stage for _, stage, _, _ in CASES.values()} == set(Stage)


def test_table_of_replicas_shows_who_made_the_last_transition() -> None:
    item: Replica = CASES["serving"][0]
    shown = {column.name: column.cell(item) for column in COLUMNS["Replica"] if column.wide}
    assert (shown["By"], shown["Since"]) == ("serve", T4)
