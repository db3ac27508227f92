"""Bound replicas that do not become ready are reported in the Assignment status and the workload's condition."""

from __future__ import annotations

from typing import Any

import msgspec
from tests import factories

from holdfast.fleet import workload_status
from holdfast.insight.timeline import Evidence, replica_timeline
from holdfast.model.assignment import PendingReason
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase, ReleaseBlock, Replica, ReplicaStatus
from holdfast.model.writes import SetStatus
from holdfast.scheduling.assignment_status import assignment_status


def bound_with(**block: Any) -> ReplicaStatus:
    return factories.bound_status("n1", name="x", attempt=1, execution=ExecutionBlock(attempt=1, **block))


def crashed_status(pid: int, phase: Phase = Phase.BACKING_OFF) -> ReplicaStatus:
    last_exit = ExitStatus(
        code=3, reason=Reason.EXITED, message=f"process {pid} exited with code 3", at="2026-01-01T00:00:05Z"
    )
    return bound_with(
        phase=phase, reason=Reason.EXITED, message=f"process {pid} exited", restarts=pid, last_exit=last_exit
    )


def failing(*statuses: ReplicaStatus) -> tuple[PendingReason, ...]:
    desired = factories.assignment(replicas=len(statuses))
    return assignment_status(
        desired, [factories.replica(i, desired, status=s) for i, s in enumerate(statuses)], ()
    ).failing


def test_assignment_status_counts_every_stage() -> None:
    desired = factories.assignment(replicas=6)
    stages = (
        ReplicaStatus(),
        factories.bound_status(),
        bound_with(phase=Phase.STARTING, reason=Reason.STARTED),
        bound_with(phase=Phase.RUNNING, reason=Reason.STARTED),
        factories.serving_status(serving=False),
        factories.serving_status(),
    )
    status = assignment_status(desired, [factories.replica(n, desired, status=s) for n, s in enumerate(stages)], ())
    counts = (status.replicas, status.queued, status.bound, status.started, status.ready, status.serving)
    assert counts == (6, 1, 5, 3, 2, 1)
    assert (status.updated, status.updated_serving, status.unknown, status.failed) == (6, 1, 0, 0)


def test_assignment_status_counts_failure_reasons() -> None:
    unready = bound_with(phase=Phase.RUNNING, reason=Reason.BECAME_UNREADY, message="GET /readyz: 503")
    reported = failing(crashed_status(7), unready, crashed_status(9), factories.serving_status())
    assert [(f.reason, f.count, f.message) for f in reported] == [
        ("Exited", 2, "exit code 3"),
        ("BecameUnready", 1, ""),
    ]
    assert failing(factories.serving_status(), bound_with(phase=Phase.STARTING, reason=Reason.STARTED)) == ()


def test_assignment_failure_is_unchanged_by_restart() -> None:
    """A restart changes process id and backoff; the status must not change for that."""
    assert failing(crashed_status(7)) == failing(crashed_status(8, Phase.STARTING)) != ()


def test_recovered_replica_is_not_counted_as_failing() -> None:
    last_exit = ExitStatus(code=3, reason=Reason.EXITED)
    status = factories.serving_status()
    assert status.execution is not None
    well = msgspec.structs.replace(status.execution, last_exit=last_exit)
    assert failing(msgspec.structs.replace(status, execution=well)) == ()


def test_workload_serving_condition_names_failure_reason() -> None:
    workload = factories.workload(replicas=1)
    desired = factories.assignment(replicas=1, namespace=workload.metadata.namespace)
    desired = msgspec.structs.replace(
        desired, status=assignment_status(desired, [factories.replica(0, desired, status=crashed_status(7))], ())
    )
    (write,) = workload_status.decide(
        workload.key, factories.cache_of(workload, desired, factories.region("us-east")), 0.0
    ).writes
    assert isinstance(write, SetStatus)
    serving = next(c for c in write.conditions if c.type == "Serving")
    assert serving.message == "0 of 1 replicas serve; failing: 1 in us-east: Exited (exit code 3)"
    assert write.blocks["summary"].regions[0].pending_reason == "Exited"


def start_of(*stages: ReplicaStatus) -> str:
    """The Serving condition's message of a workload with one replica in each of these states."""
    workload = factories.workload(replicas=len(stages))
    desired = factories.assignment(replicas=len(stages), namespace=workload.metadata.namespace)
    replicas = [factories.replica(n, desired, status=status) for n, status in enumerate(stages)]
    desired = msgspec.structs.replace(desired, status=assignment_status(desired, replicas, ()))
    view = factories.cache_of(workload, desired, factories.region("us-east"))
    (write,) = workload_status.decide(workload.key, view, 0.0).writes
    assert isinstance(write, SetStatus)
    return next(c for c in write.conditions if c.type == "Serving").message


def starting_status(reason: Reason, phase: Phase = Phase.STARTING) -> ReplicaStatus:
    return factories.bound_status(execution=ExecutionBlock(attempt=1, phase=phase, reason=reason))


def test_workload_tells_slow_artifacts_from_slow_starts_and_slow_readiness() -> None:
    fetching = starting_status(Reason.FETCHING_ARTIFACTS)
    assert start_of(fetching, fetching) == (
        "0 of 2 replicas serve; starting: 2 in us-east: FetchingArtifacts; 2 bound, not running"
    )
    assert "starting: 1 in us-east: ImagePulling" in start_of(starting_status(Reason.IMAGE_PULLING))
    assert start_of(starting_status(Reason.STARTED)) == "0 of 1 replicas serve; 1 bound, not running"
    running = starting_status(Reason.STARTED, Phase.RUNNING)
    assert start_of(running, running) == "0 of 2 replicas serve; 2 running, not ready"
    probe_fails = starting_status(Reason.BECAME_UNREADY, Phase.RUNNING)
    assert start_of(probe_fails) == "0 of 1 replicas serve; failing: 1 in us-east: BecameUnready"


def test_timeline_of_crashing_replica_names_reason_and_logs_command() -> None:
    shown = replica_timeline(factories.replica(0, status=crashed_status(7)), Evidence())
    assert shown.reasons == ("Exited: process 7 exited",)
    assert shown.next_owner == "agent" and "restarts it" in shown.next_step
    assert "holdfast logs acme/api-us-east-0" in shown.suggested_fix


def test_timeline_of_rescheduled_replica_is_ordered_by_time() -> None:
    """The release of the previous attempt precedes the bind of the present one."""
    release = ReleaseBlock(reason="Drained", attempt=1, message="node n1 is drained", at="2026-01-01T00:00:01Z")
    status = factories.serving_status(attempt=2)
    placed = msgspec.structs.replace(status.placement, bound_at="2026-01-01T00:00:03Z")
    item: Replica = factories.replica(0, status=msgspec.structs.replace(status, placement=placed, release=release))
    reported = [(e.stage, e.text) for e in replica_timeline(item, Evidence()).events]
    assert [stage for stage, _ in reported] == ["Queued", "Stopping", "Bound", "Ready", "Serving"]
    assert reported[1][1] == "attempt 1 was released: Drained: node n1 is drained"
