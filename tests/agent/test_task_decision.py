"""The agent's decisions as tables: desired state and observation, and the expected action."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import template

from holdfast.agent.config import AgentConfig, load
from holdfast.agent.status_blocks import environment, execution_block, task_id
from holdfast.agent.task_decision import (
    CONFIG_RETRY_FAILURES,
    RESTART_BACKOFF_MAX_S,
    RESTART_BACKOFF_RESET_S,
    RESTARTS_ON_FAILURE_MAX,
    Acknowledge,
    ForgetTask,
    LeaseState,
    Now,
    StartTask,
    StopTask,
    TaskDecision,
    TaskObservation,
    TaskState,
    assumed_failures,
    decide,
    decide_without_binding,
    failures_after_exit,
    restart_backoff_s,
)
from holdfast.model.binding import Binding, BindingSpec, BindingStatus, DesiredRunState, DeviceClaim, Intent
from holdfast.model.errors import Invalid
from holdfast.model.meta import ObjectMeta
from holdfast.model.replica import ExitStatus, Phase
from holdfast.model.task_programs import ProgramKind, ProgramState, ProgramStatus
from holdfast.model.template import Port, RestartPolicy
from holdfast.model.workload import ExclusiveScope, Exclusivity

NOW = Now(wall_s=1_700_000_000.0, mono_s=1000.0)
LIVE = LeaseState(epoch=3, expires_mono_s=1010.0, fenced_epoch=2)
LAPSED = LeaseState(epoch=3, expires_mono_s=999.0, fenced_epoch=2)
FENCED = LeaseState(epoch=3, expires_mono_s=0.0, fenced_epoch=3, fenced=True)

ABSENT = TaskObservation()
STARTING = TaskObservation(state=TaskState.STARTING, run=1)
RUNNING = TaskObservation(state=TaskState.RUNNING, run=1, pid=7)
STOPPING = TaskObservation(state=TaskState.STOPPING, run=1, stop_by_mono_s=1008.0, stop_reason="StoppedOnRequest")


def ended(
    code: int | None = 1, *, reason: str = "Exited", failures: int = 1, ago_s: float = 0.0, stop: str = ""
) -> TaskObservation:
    return TaskObservation(
        state=TaskState.ENDED,
        run=2,
        failures=failures,
        exit=ExitStatus(code=code, reason=reason),
        stop_reason=stop,
        ended_mono_s=NOW.mono_s - ago_s,
    )


def bound(policy: RestartPolicy = RestartPolicy.ALWAYS, *, acknowledged: bool = False, **spec: Any) -> Binding:
    made = BindingSpec(
        replica="a",
        intent=Intent(replica_uid="u", template_hash="h", attempt=1),
        node="n1",
        template=template(restart_policy=policy),
        **{"node_epoch": 3, **spec},
    )
    status = BindingStatus(acknowledged_at="2026-01-01T00:00:00Z" if acknowledged else "")
    return Binding(metadata=ObjectMeta(name="a.1", namespace="acme", uid="b"), spec=made, status=status)


STOP = bound(desired=DesiredRunState.STOP, stop_reason="Drained", stop_grace_seconds=4.0)
BATCH = bound(RestartPolicy.ON_FAILURE)
ONCE = bound(RestartPolicy.NEVER)
ONLY = bound(exclusive=Exclusivity())
ANYWHERE = bound(exclusive=Exclusivity(scope=ExclusiveScope.GLOBAL))


def tenured(left_s: float) -> LeaseState:
    return LeaseState(epoch=3, expires_mono_s=1010.0, fenced_epoch=2, tenures={"b": NOW.mono_s + left_s})


NEVER = ExitStatus(reason="NeverStarted", message="stopped before the task was started")

TABLE = [
    # desired: run
    ("starts a bound task", bound(), ABSENT, LIVE, TaskDecision(StartTask(1))),
    ("does not start without a lease", bound(), ABSENT, LAPSED, TaskDecision()),
    ("does not start while fenced", bound(), ABSENT, FENCED, None),
    ("does not start an acknowledged task", bound(acknowledged=True), ABSENT, LIVE, TaskDecision()),
    ("waits for the driver to start it", bound(), STARTING, LIVE, TaskDecision()),
    ("keeps a running task", bound(), RUNNING, LIVE, TaskDecision()),
    ("keeps a running task without a lease", bound(), RUNNING, LAPSED, TaskDecision()),
    ("waits before a restart", bound(), ended(ago_s=0.25), LIVE, TaskDecision(recheck_in_s=0.75)),
    ("restarts after the backoff", bound(), ended(ago_s=1.0), LIVE, TaskDecision(StartTask(3))),
    ("does not restart without a lease", bound(), ended(ago_s=1.0), LAPSED, TaskDecision()),
    ("restarts a service that exited with 0", bound(), ended(0, ago_s=1.0), LIVE, TaskDecision(StartTask(3))),
    (
        "restarts without backoff if it never started",
        bound(),
        ended(None, reason="NeverStarted", failures=0),
        LIVE,
        TaskDecision(StartTask(3)),
    ),
    # ended and not restarted
    (
        "batch succeeded",
        BATCH,
        ended(0),
        LIVE,
        TaskDecision(Acknowledge(Phase.SUCCEEDED, ExitStatus(code=0, reason="Exited"))),
    ),
    ("batch is restarted after failure", BATCH, ended(1, ago_s=1.0), LIVE, TaskDecision(StartTask(3))),
    (
        "batch fails after the last restart",
        BATCH,
        ended(1, failures=RESTARTS_ON_FAILURE_MAX + 1),
        LIVE,
        TaskDecision(Acknowledge(Phase.FAILED, ExitStatus(code=1, reason="Exited"))),
    ),
    (
        "restart policy Never",
        ONCE,
        ended(1),
        LIVE,
        TaskDecision(Acknowledge(Phase.FAILED, ExitStatus(code=1, reason="Exited"))),
    ),
    (
        "stop at lease expiry is not a failure",
        ONCE,
        ended(137, stop="LeaseExpired", failures=0),
        LIVE,
        TaskDecision(StartTask(3)),
    ),
    (
        "stop by a dead agent is not a failure",
        ONCE,
        ended(143, reason="StoppedOnRequest", failures=0),
        LIVE,
        TaskDecision(StartTask(3)),
    ),
    # desired: stop
    ("stops on request", STOP, RUNNING, LIVE, TaskDecision(StopTask(4.0, "Drained"))),
    ("stops without a lease", STOP, RUNNING, LAPSED, TaskDecision(StopTask(4.0, "Drained"))),
    ("stop before the start", STOP, ABSENT, LIVE, TaskDecision(Acknowledge(Phase.STOPPED, NEVER))),
    (
        "acknowledges the stop",
        STOP,
        ended(143, reason="StoppedOnRequest", stop="Drained"),
        LIVE,
        TaskDecision(Acknowledge(Phase.STOPPED, ExitStatus(code=143, reason="StoppedOnRequest"))),
    ),
    ("acknowledges a stop once", bound(desired=DesiredRunState.STOP, acknowledged=True), ABSENT, LIVE, TaskDecision()),
    ("waits for the stop", STOP, STOPPING, LIVE, TaskDecision(StopTask(4.0, "Drained"))),
    (
        "longer grace does not delay a stop",
        bound(desired=DesiredRunState.STOP, stop_grace_seconds=60),
        STOPPING,
        LIVE,
        TaskDecision(),
    ),
    (
        "success remains after a later stop",
        bound(RestartPolicy.NEVER, desired=DesiredRunState.STOP),
        ended(0),
        LIVE,
        TaskDecision(Acknowledge(Phase.SUCCEEDED, ExitStatus(code=0, reason="Exited"))),
    ),
    # lost claim: no binding, fenced epoch or released quota
    ("kills a task without binding", None, RUNNING, LIVE, TaskDecision(StopTask(0.0, "Deleted"))),
    ("shortens the grace without binding", None, STOPPING, LIVE, TaskDecision(StopTask(0.0, "Deleted"))),
    ("forgets an ended task without binding", None, ended(), LIVE, TaskDecision(ForgetTask())),
    ("forgets an absent task without binding", None, ABSENT, LIVE, TaskDecision(ForgetTask())),
    ("kills a task of a fenced epoch", bound(node_epoch=2), RUNNING, LIVE, TaskDecision(StopTask(0.0, "Fenced"))),
    (
        "does not start under a fenced epoch",
        bound(node_epoch=2),
        ABSENT,
        LIVE,
        TaskDecision(Acknowledge(Phase.STOPPED, NEVER)),
    ),
    (
        "kills a task with released quota",
        bound(quota_released=True),
        RUNNING,
        LIVE,
        TaskDecision(StopTask(0.0, "NodeLost")),
    ),
    ("stops every task when fenced", bound(node_epoch=0), RUNNING, FENCED, TaskDecision(StopTask(0.0, "Fenced"))),
    ("shortens every grace when fenced", bound(node_epoch=0), STOPPING, FENCED, TaskDecision(StopTask(0.0, "Fenced"))),
    # time
    (
        "rechecks at runUntil",
        bound(run_until="2023-11-14T22:13:30.000000Z"),
        RUNNING,
        LIVE,
        TaskDecision(recheck_in_s=10.0),
    ),
    (
        "stops at runUntil",
        bound(run_until="2023-11-14T22:13:20.000000Z"),
        RUNNING,
        LIVE,
        TaskDecision(StopTask(0.0, "ProvisionalExpired")),
    ),
    (
        "does not start after runUntil",
        bound(run_until="2023-11-14T22:13:19.000000Z"),
        ABSENT,
        LIVE,
        TaskDecision(Acknowledge(Phase.STOPPED, NEVER)),
    ),
    ("exclusive task rechecks before lease expiry", ONLY, RUNNING, LIVE, TaskDecision(recheck_in_s=8.0)),
    ("scope Global does not start without tenure", ANYWHERE, ABSENT, LIVE, TaskDecision()),
    ("scope Global starts with tenure", ANYWHERE, ABSENT, tenured(30.0), TaskDecision(StartTask(1))),
    ("scope Global does not start near the end of tenure", ANYWHERE, ABSENT, tenured(1.0), TaskDecision()),
    ("scope Global rechecks before the end of tenure", ANYWHERE, RUNNING, tenured(6.0), TaskDecision(recheck_in_s=4.0)),
    (
        "scope Global stops at the end of tenure",
        ANYWHERE,
        RUNNING,
        tenured(-1.0),
        TaskDecision(StopTask(0.0, "LeaseExpired")),
    ),
    ("discovered scope Global runs until the first tenure", ANYWHERE, RUNNING, LIVE, TaskDecision(recheck_in_s=8.0)),
    ("exclusive task stops at lease expiry", ONLY, RUNNING, LAPSED, TaskDecision(StopTask(0.0, "LeaseExpired"))),
    # probes
    (
        "failed liveness probe stops the task",
        bound(),
        msgspec.structs.replace(RUNNING, failed_probe="LivenessFailed"),
        LIVE,
        TaskDecision(StopTask(10.0, "LivenessFailed")),
    ),
]


@pytest.mark.parametrize(
    ("binding", "local", "lease", "expected"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_decide_for_each_case_returns_expected_action(
    binding: Binding | None, local: TaskObservation, lease: LeaseState, expected: TaskDecision | None
) -> None:
    found = decide(binding, local, lease, NOW)
    if expected is None:
        assert not isinstance(found.action, StartTask)
    else:
        assert found == expected


@pytest.mark.parametrize("local", [ABSENT, STARTING, RUNNING, STOPPING, ended()])
@pytest.mark.parametrize("binding", [None, bound(), STOP, BATCH, ONCE, bound(exclusive=Exclusivity())])
@pytest.mark.parametrize("lease", [LIVE, LAPSED, FENCED, LeaseState()])
def test_decide_never_starts_without_lease_nor_acknowledges_while_running(
    binding: Binding | None, local: TaskObservation, lease: LeaseState
) -> None:
    action = decide(binding, local, lease, NOW).action
    if isinstance(action, StartTask):
        assert lease is LIVE and binding is not None and local.state in (TaskState.ABSENT, TaskState.ENDED)
    if isinstance(action, Acknowledge | ForgetTask):
        assert local.state in (TaskState.ABSENT, TaskState.ENDED), "a task that may run is never acknowledged as ended"


@pytest.mark.parametrize(
    ("exclusive", "local", "lease", "expected"),
    [
        (False, RUNNING, LeaseState(), TaskDecision()),
        (True, RUNNING, LIVE, TaskDecision(recheck_in_s=8.0)),
        (True, RUNNING, LAPSED, TaskDecision(StopTask(0.0, "LeaseExpired"))),
        (False, RUNNING, FENCED, TaskDecision(StopTask(0.0, "Fenced"))),
        (True, ended(), LAPSED, TaskDecision()),
        (True, STOPPING, LAPSED, TaskDecision()),
        (False, STOPPING, LIVE, TaskDecision()),
    ],
)
def test_decide_without_binding_keeps_tasks_running_while_lease_allows(
    exclusive: bool, local: TaskObservation, lease: LeaseState, expected: TaskDecision
) -> None:
    assert decide_without_binding(exclusive, local, lease, NOW) == expected


@pytest.mark.parametrize("left_s", [0.5, 0.0, -1.0])
def test_fence_ends_the_grace_of_a_stop_once(left_s: float) -> None:
    """A stop without time left is not repeated: the driver has the order already."""
    local = msgspec.structs.replace(STOPPING, stop_by_mono_s=NOW.mono_s + left_s)
    expected = TaskDecision(StopTask(0.0, "Fenced")) if left_s > 0 else TaskDecision()
    assert decide(bound(), local, FENCED, NOW) == expected
    assert decide_without_binding(False, local, FENCED, NOW) == expected


@pytest.mark.parametrize("left_s", [5.0, 4.0, 3.0])
def test_stop_in_progress_becomes_only_more_urgent(left_s: float) -> None:
    """The Binding asks for a stop within 4 s."""
    local = msgspec.structs.replace(STOPPING, stop_by_mono_s=NOW.mono_s + left_s)
    expected = TaskDecision(StopTask(4.0, "Drained")) if left_s > 4.0 else TaskDecision()
    assert decide(STOP, local, LIVE, NOW) == expected


def test_task_that_was_never_observed_had_no_run_failure_or_process() -> None:
    unseen = TaskObservation()
    assert (unseen.state, unseen.run, unseen.failures, unseen.pid) == (TaskState.ABSENT, 0, 0, 0)


def test_restart_backoff_doubles_up_to_its_maximum() -> None:
    assert [restart_backoff_s(n) for n in (0, 1, 2, 3, 4)] == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert restart_backoff_s(10_000) == RESTART_BACKOFF_MAX_S


def test_failure_count_after_long_run_or_stop_is_reset() -> None:
    exit_ = ExitStatus(code=1, reason="Exited")
    soon = TaskObservation(state=TaskState.RUNNING, failures=4, started_mono_s=NOW.mono_s - 5)
    late = TaskObservation(state=TaskState.RUNNING, failures=4, started_mono_s=NOW.mono_s - RESTART_BACKOFF_RESET_S)
    assert failures_after_exit(soon, exit_, "", NOW) == 5
    assert failures_after_exit(late, exit_, "", NOW) == 1
    assert failures_after_exit(soon, exit_, "LivenessFailed", NOW) == 5
    assert failures_after_exit(soon, exit_, "LeaseExpired", NOW) == 0
    assert failures_after_exit(soon, ExitStatus(reason="NeverStarted"), "", NOW) == 4
    assert failures_after_exit(soon, ExitStatus(code=143, reason="StoppedOnRequest"), "", NOW) == 0


CONFIG = AgentConfig(name="n1", region="us-east", zone="us-east-a", state_dir="/x", address="10.0.0.7")


def test_environment_contains_ports_and_identity_overriding_template() -> None:
    made = template(ports=(Port(name="http"), Port(name="admin-ui")), env={"A": "1", "HOLDFAST_NODE": "lie"})
    spec = msgspec.structs.replace(
        bound().spec,
        template=made,
        ports={"http": 20001, "admin-ui": 20002},
        workload="api",
        epoch=7,
        devices=(DeviceClaim(id="gpu-0"), DeviceClaim(id="gpu-1", milli=300)),
    )
    binding = msgspec.structs.replace(bound(), spec=spec)
    env = environment(binding, CONFIG)
    assert env["PORT"] == env["PORT_HTTP"] == "20001" and env["PORT_ADMIN_UI"] == "20002"
    assert env["HOLDFAST_NODE"] == "n1" and env["HOLDFAST_EPOCH"] == "7" and env["A"] == "1"
    assert env["HOLDFAST_DEVICES"] == "gpu-0,gpu-1" and env["HOLDFAST_TENANT"] == "acme"
    assert task_id(binding) == "acme_a.1_b"


def test_environment_names_the_name_server_of_the_node_and_no_other() -> None:
    made = template(env={"HOLDFAST_DNS": "192.0.2.1:53"})
    binding = msgspec.structs.replace(bound(), spec=msgspec.structs.replace(bound().spec, template=made))
    assert "HOLDFAST_DNS" not in environment(binding, CONFIG)
    named = msgspec.structs.replace(CONFIG, dns="10.0.0.2:53")
    assert environment(binding, named)["HOLDFAST_DNS"] == "10.0.0.2:53"


@pytest.mark.parametrize("text", ["10.0.0.2", "10.0.0.2:", ":53", "10.0.0.2:70000", "fd00::2:53", "ns:dns"])
def test_settings_with_an_unusable_name_server_are_refused(text: str) -> None:
    node = {"name": "n1", "region": "us-east", "zone": "us-east-a", "state_dir": "/x"}
    with pytest.raises(Invalid, match="expected HOST:PORT"):
        load(**node, dns=text)
    assert load(**node, dns="[fd00::2]:53").dns == "[fd00::2]:53"


@pytest.mark.parametrize(
    ("local", "phase", "ready"),
    [
        (STARTING, Phase.STARTING, False),
        (msgspec.structs.replace(RUNNING, startup_passed=True, ready=True), Phase.RUNNING, True),
        (msgspec.structs.replace(RUNNING, startup_passed=True, ready=False), Phase.RUNNING, False),
        (RUNNING, Phase.STARTING, False),
        (STOPPING, Phase.STOPPING, False),
        (ended(), Phase.BACKING_OFF, False),
        (ended(143, stop="Drained"), Phase.STOPPED, False),
    ],
)
def test_execution_block_for_each_task_state_has_expected_phase(
    local: TaskObservation, phase: Phase, ready: bool
) -> None:
    block = execution_block(bound(), local, CONFIG)
    assert block is not None
    assert (block.phase, block.ready, block.address) == (phase, ready, "10.0.0.7")


def test_execution_block_of_adopted_task_before_first_probe_is_none() -> None:
    assert execution_block(bound(), msgspec.structs.replace(RUNNING, ready=None), CONFIG) is None
    assert execution_block(bound(), ABSENT, CONFIG) is None


def test_execution_block_of_stopping_task_without_probe_is_reported() -> None:
    block = execution_block(bound(), msgspec.structs.replace(STOPPING, ready=None), CONFIG)
    assert block is not None and block.phase is Phase.STOPPING


def test_failure_count_after_lost_shim_is_unchanged() -> None:
    lost = ExitStatus(reason="Killed", message="ended without evidence")
    local = msgspec.structs.replace(RUNNING, failures=5, started_mono_s=999.0)
    assert failures_after_exit(local, lost, "", NOW) == 5
    assert failures_after_exit(msgspec.structs.replace(local, failures=0), lost, "", NOW) == 1
    assert failures_after_exit(local, ExitStatus(reason="Killed", code=137, signal="SIGKILL"), "", NOW) == 6
    assert assumed_failures(200, RestartPolicy.ALWAYS) == 3
    assert assumed_failures(5, RestartPolicy.ON_FAILURE) == 4


@pytest.mark.parametrize(
    ("local", "image", "expected"),
    [
        (
            msgspec.structs.replace(STARTING, fetching=True, fetch_message="3 of 9 MiB"),
            "",
            (Phase.STARTING, "FetchingArtifacts", "3 of 9 MiB"),
        ),
        (
            msgspec.structs.replace(STARTING, fetching=True, fetch_message="2 of 4 layers"),
            "registry.example/app:1",
            (Phase.STARTING, "ImagePulling", "2 of 4 layers"),
        ),
        (
            msgspec.structs.replace(
                RUNNING,
                programs=(
                    ProgramStatus("main"),
                    ProgramStatus("migrate", kind=ProgramKind.INIT, state=ProgramState.RUNNING),
                ),
            ),
            "",
            (Phase.STARTING, "Initializing", "init task migrate (1 of 1) is running"),
        ),
        (STARTING, "", (Phase.STARTING, "Started", "")),
    ],
    ids=["artifacts", "image", "init task", "start"],
)
def test_report_says_what_a_start_waits_for(
    local: TaskObservation, image: str, expected: tuple[Phase, str, str]
) -> None:
    binding = bound()
    made = msgspec.structs.replace(binding.spec.template, image=image)
    asked = msgspec.structs.replace(binding, spec=msgspec.structs.replace(binding.spec, template=made))
    block = execution_block(asked, local, CONFIG)
    assert block is not None and (block.phase, block.reason, block.message, block.ready) == (*expected, False)


@pytest.mark.parametrize("reason", ["SecretMissing", "ConfigMissing", "ConfigUnreachable"])
def test_task_that_waits_for_its_values_is_tried_again_at_a_steady_pace(reason: str) -> None:
    local = TaskObservation(state=TaskState.RUNNING, failures=9, started_mono_s=NOW.mono_s - 1)
    assert failures_after_exit(local, ExitStatus(reason=reason), "", NOW) == CONFIG_RETRY_FAILURES
    assert restart_backoff_s(CONFIG_RETRY_FAILURES) == 4.0


def test_index_of_a_job_array_is_in_the_environment() -> None:
    assert "HOLDFAST_INDEX" not in environment(bound(), CONFIG)
    env = environment(bound(index=0), CONFIG)
    assert env["HOLDFAST_INDEX"] == env["JOB_COMPLETION_INDEX"] == "0"


def test_granted_tenure_counts_from_the_sending_of_its_renewal_and_never_shrinks() -> None:
    first = LIVE.with_tenures({"b": 40.0}, 1000.0)
    assert first.tenures == {"b": 1040.0}
    later = first.with_tenures({"b": 10.0, "c": 5.0}, 1001.0)
    assert later.tenures == {"b": 1040.0, "c": 1006.0}, "a shorter answer that came late revokes nothing"
    assert later.with_tenures({}, 1020.0).tenures == {"b": 1040.0}, "an ended tenure is forgotten"
