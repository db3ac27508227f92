"""The Pod of a Binding and its Replica: what kubectl users read, state by state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.model.binding import Binding, BindingStatus, DesiredRunState
from holdfast.model.meta import find_condition
from holdfast.model.pod_view import Pod, pod_of
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase, Replica, ReplicaContact
from holdfast.model.task_programs import ProgramKind, ProgramState, ProgramStatus
from holdfast.model.template import Template
from holdfast.server.tables import cells, definitions

AT = "2026-01-01T00:00:07.000000Z"
CRASH = ExitStatus(code=3, reason="Exited", at=AT)
KILLED = ExitStatus(signal="SIGKILL", reason="OutOfMemory", at=AT)


def report(phase: Phase, **more: Any) -> ExecutionBlock:
    return ExecutionBlock(phase=phase, attempt=1, address="10.0.0.7", **more)


def replica_with(execution: ExecutionBlock | None, contact: ReplicaContact | None = None) -> Replica:
    return factories.replica(status=factories.bound_status(execution=execution, contact=contact))


def pod(execution: ExecutionBlock | None, **binding: Any) -> Pod:
    replica = replica_with(execution)
    return pod_of(factories.binding(replica, **binding), replica)


def row(shown: Pod) -> dict[str, Any]:
    names = [column["name"] for column in definitions("Pod")]
    return dict(zip(names, cells("Pod", shown, 0.0), strict=True))


# report → phase, Ready, READY, STATUS, RESTARTS
TABLE: dict[str, tuple[ExecutionBlock | None, tuple[str, str, str, str, int]]] = {
    "not reported": (None, ("Pending", "False", "0/1", "ContainerCreating", 0)),
    "pulls its image": (
        report(Phase.STARTING, reason="ImagePulling"),
        ("Pending", "False", "0/1", "ContainerCreating", 0),
    ),
    "runs init tasks": (
        report(Phase.STARTING, reason="Initializing", pid=7),
        ("Pending", "False", "0/1", "PodInitializing", 0),
    ),
    "started, not probed": (report(Phase.STARTING, reason="Started", pid=7), ("Running", "False", "0/1", "Running", 0)),
    "not ready": (report(Phase.RUNNING, reason="BecameUnready", pid=7), ("Running", "False", "0/1", "Running", 0)),
    "ready": (
        report(Phase.RUNNING, reason="BecameReady", pid=7, ready=True, ready_since=AT),
        ("Running", "True", "1/1", "Running", 0),
    ),
    "ready after a crash": (
        report(Phase.RUNNING, pid=7, ready=True, restarts=2, last_exit=CRASH),
        ("Running", "True", "1/1", "Running", 2),
    ),
    "crash loop": (
        report(Phase.BACKING_OFF, reason="Exited", restarts=7, last_exit=CRASH),
        ("Running", "False", "0/1", "CrashLoopBackOff", 7),
    ),
    "first crash": (
        report(Phase.BACKING_OFF, reason="Exited", last_exit=CRASH),
        ("Running", "False", "0/1", "CrashLoopBackOff", 0),
    ),
    "no image": (
        report(Phase.BACKING_OFF, reason="ImageNotFound", last_exit=ExitStatus(reason="ImageNotFound", at=AT)),
        ("Pending", "False", "0/1", "ImageNotFound", 0),
    ),
    "finished": (
        report(Phase.SUCCEEDED, last_exit=ExitStatus(code=0, reason="Finished", at=AT)),
        ("Succeeded", "False", "0/1", "Completed", 0),
    ),
    "failed": (report(Phase.FAILED, last_exit=CRASH), ("Failed", "False", "0/1", "Error", 0)),
    "killed for memory": (report(Phase.FAILED, last_exit=KILLED), ("Failed", "False", "0/1", "OOMKilled", 0)),
}


@pytest.mark.parametrize("case", TABLE)
def test_pod_shows_the_report_of_the_agent(case: str) -> None:
    execution, expected = TABLE[case]
    shown = pod(execution)
    ready = find_condition(shown.status.conditions, "Ready")
    cell = row(shown)
    assert ready is not None
    assert (shown.status.phase, ready.status, cell["Ready"], cell["Status"], cell["Restarts"]) == expected
    (main,) = shown.status.container_statuses
    states = (main.state.waiting, main.state.running, main.state.terminated)
    assert sum(state is not None for state in states) == 1, "exactly one state"
    assert main.ready is (ready.status == "True")


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_of_a_task_has_a_container_state(phase: Phase) -> None:
    (main,) = pod(report(phase)).status.container_statuses
    assert main.state != type(main.state)()


def test_crash_loop_names_the_exit_and_our_reason() -> None:
    (main,) = pod(
        report(Phase.BACKING_OFF, reason="Exited", message="exit code 3; restarts 40 s after the exit", last_exit=CRASH)
    ).status.container_statuses
    assert main.state.waiting is not None and main.last_state.terminated is not None
    assert main.state.waiting.message == "Exited: exit code 3; restarts 40 s after the exit"
    assert (main.last_state.terminated.exit_code, main.last_state.terminated.finished_at) == (3, AT)


def test_run_that_ended_has_its_own_start_and_not_that_of_the_next_run() -> None:
    earlier, later = "2026-01-01T00:00:05.000000Z", "2026-01-01T00:00:09.000000Z"
    for phase, started_at, shown in ((Phase.BACKING_OFF, earlier, earlier), (Phase.RUNNING, later, "")):
        (main,) = pod(report(phase, started_at=started_at, last_exit=CRASH)).status.container_statuses
        assert main.last_state.terminated is not None
        assert main.last_state.terminated.started_at == shown


def test_signal_without_exit_code_is_an_exit_code_above_128() -> None:
    (main,) = pod(report(Phase.FAILED, last_exit=KILLED)).status.container_statuses
    assert main.state.terminated is not None
    assert (main.state.terminated.exit_code, main.state.terminated.signal) == (137, 9)


def test_report_of_another_attempt_or_replica_is_not_shown() -> None:
    serving = report(Phase.RUNNING, pid=7, ready=True)
    replica = replica_with(msgspec.structs.replace(serving, attempt=2))
    claim = factories.binding(replica)
    assert pod_of(claim, replica).status.phase == "Pending"
    current = replica_with(serving)
    assert pod_of(claim, current).status.phase == "Running"
    other = msgspec.structs.replace(current, metadata=msgspec.structs.replace(current.metadata, uid="another"))
    assert pod_of(claim, other).status.phase == "Pending"


def test_pod_on_a_node_out_of_contact_is_unknown() -> None:
    contact = ReplicaContact(lost=True, attempt=1, node="n1", since=AT, reason="NodeLost")
    replica = replica_with(report(Phase.RUNNING, pid=7, ready=True), contact)
    shown = pod_of(factories.binding(replica), replica)
    ready = find_condition(shown.status.conditions, "Ready")
    assert ready is not None and (ready.status, ready.reason) == ("Unknown", "NodeLost")
    assert (shown.status.phase, row(shown)["Status"]) == ("Unknown", "Unknown")


def test_pod_that_is_stopped_is_terminating_then_ended() -> None:
    replica = replica_with(report(Phase.RUNNING, pid=7, ready=True))
    claim = factories.binding(replica)
    stopping = msgspec.structs.replace(claim.spec, desired=DesiredRunState.STOP, stop_reason="Drained")
    claim = msgspec.structs.replace(claim, spec=stopping)
    assert (row(pod_of(claim, replica))["Status"], pod_of(claim, replica).status.reason) == ("Terminating", "Drained")
    ended = Binding(claim.metadata, stopping, BindingStatus(phase=Phase.STOPPED, last_exit=ExitStatus(code=0)))
    assert row(pod_of(ended, replica))["Status"] == "Completed"


def test_sidecars_count_as_containers_and_init_tasks_do_not() -> None:
    programs = (
        ProgramStatus("setup", ProgramKind.INIT, ProgramState.ENDED, exit_code=0),
        ProgramStatus("proxy", ProgramKind.SIDECAR, ProgramState.RUNNING, ready=True, restarts=1),
        ProgramStatus("work", ProgramKind.MAIN, ProgramState.RUNNING),
    )
    template = msgspec.convert(
        {
            "command": ["serve"],
            "initTasks": [{"name": "setup", "command": ["x"]}],
            "sidecars": [{"name": "proxy", "command": ["y"]}],
        },
        Template,
    )
    replica = replica_with(report(Phase.STARTING, reason="Started", pid=7, programs=programs))
    claim = factories.binding(replica)
    shown = pod_of(msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, template=template)), replica)
    assert (row(shown)["Ready"], row(shown)["Restarts"]) == ("1/2", 1)
    assert [(one.name, one.ready) for one in shown.status.init_container_statuses] == [("setup", True), ("proxy", True)]


def test_revision_is_that_of_the_newer_record() -> None:
    replica = replica_with(None)
    claim = factories.binding(replica)
    for bound, reported, shown in (("9", "10", "10"), ("11", "10", "11")):
        meta = msgspec.structs.replace(claim.metadata, resource_version=bound)
        of = msgspec.structs.replace(replica.metadata, resource_version=reported)
        found = pod_of(msgspec.structs.replace(claim, metadata=meta), msgspec.structs.replace(replica, metadata=of))
        assert found.metadata.resource_version == shown


def test_wide_columns_are_those_of_kubectl() -> None:
    columns = {column["name"]: column["priority"] for column in definitions("Pod")}
    assert [name for name, priority in columns.items() if not priority] == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
    ]
    assert [name for name, priority in columns.items() if priority] == ["IP", "Node", "Workload"]
    shown = row(pod(report(Phase.RUNNING, pid=7)))
    assert (shown["IP"], shown["Node"]) == ("10.0.0.7", "n1")
