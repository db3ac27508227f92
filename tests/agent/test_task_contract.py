"""The edges of the agent's decisions, transitions and reports: boundaries, defaults and each field of a report."""

from __future__ import annotations

import msgspec
import pytest
from tests.agent.test_task_decision import (
    ABSENT,
    ANYWHERE,
    BATCH,
    CONFIG,
    LIVE,
    NOW,
    ONCE,
    ONLY,
    RUNNING,
    STARTING,
    STOP,
    STOPPING,
    bound,
    ended,
    tenured,
)

from holdfast.agent.status_blocks import (
    STARTING_REPORT_DELAY_S,
    acknowledgement,
    environment,
    execution_block,
    execution_write,
    image_id,
    max_delay_s,
    overcommit_message,
    task_from_binding,
    task_id,
    with_exit_time,
)
from holdfast.agent.task_decision import (
    ADOPTED_FAILURES_MAX,
    RESTARTS_ON_FAILURE_MAX,
    WATCHDOG_KILL_LEAD_S,
    WATCHDOG_LEAD_S,
    Acknowledge,
    DesiredState,
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
    desired_state,
    failures_after_exit,
    final_phase,
    restart_backoff_s,
    run_until_mono_s,
)
from holdfast.agent.task_transitions import is_zombie, to_ended, to_running, to_starting, to_stopping
from holdfast.model.binding import Binding, DesiredRunState, DeviceClaim
from holdfast.model.meta import Key
from holdfast.model.placement_api import RenewItem
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase
from holdfast.model.task_programs import ProgramKind, ProgramState, ProgramStatus
from holdfast.model.template import Port, RestartPolicy
from holdfast.model.times import micro_text
from holdfast.model.volume import BoundVolume

replace = msgspec.structs.replace


def lease(left_s: float, **more: object) -> LeaseState:
    return replace(LIVE, expires_mono_s=NOW.mono_s + left_s, **more)


# Leases


@pytest.mark.parametrize(
    ("fenced_epoch", "epoch", "fenced"), [(2, 0, False), (2, 1, True), (2, 2, True), (2, 3, False), (0, 1, False)]
)
def test_epochs_up_to_the_fenced_one_are_fenced(*, fenced_epoch: int, epoch: int, fenced: bool) -> None:
    assert LeaseState(fenced_epoch=fenced_epoch).is_fenced_epoch(epoch) is fenced


def test_renewal_names_the_epoch_and_a_registration_the_fenced_one() -> None:
    assert LeaseState(epoch=3, fenced_epoch=2).renewal("n1") == RenewItem(node="n1", epoch=3, fenced_epoch=0)
    assert LeaseState(epoch=0, fenced_epoch=2).renewal("n1") == RenewItem(node="n1", epoch=0, fenced_epoch=2)


@pytest.mark.parametrize(("ends_s", "kept"), [(NOW.mono_s, False), (NOW.mono_s + 0.1, True)])
def test_ended_tenures_are_forgotten_when_new_ones_come(ends_s: float, *, kept: bool) -> None:
    known = replace(LIVE, tenures={"old": ends_s}).with_tenures({"new": 5.0}, NOW.mono_s)
    assert known.tenures == {"new": NOW.mono_s + 5.0, **({"old": ends_s} if kept else {})}


def test_global_exclusive_work_has_the_earlier_of_lease_and_tenure_as_deadline() -> None:
    assert lease(10.0, tenures={"b": NOW.mono_s + 5.0}).exclusive_deadline_mono_s(ANYWHERE) == NOW.mono_s + 5.0
    assert lease(10.0, tenures={"b": NOW.mono_s + 15.0}).exclusive_deadline_mono_s(ANYWHERE) == NOW.mono_s + 10.0
    assert lease(10.0, tenures={"other": NOW.mono_s + 5.0}).exclusive_deadline_mono_s(ANYWHERE) == 0.0
    assert lease(10.0).exclusive_deadline_mono_s(ANYWHERE) == 0.0
    assert lease(10.0).exclusive_deadline_mono_s(ONLY) == NOW.mono_s + 10.0


# Desired state


@pytest.mark.parametrize(
    ("node_epoch", "fenced_epoch", "runs"),
    [(0, 3, True), (1, 0, True), (1, 1, False), (3, 2, True), (3, 3, False), (3, 4, False)],
)
def test_binding_of_a_fenced_epoch_is_not_to_run(*, node_epoch: int, fenced_epoch: int, runs: bool) -> None:
    wanted = desired_state(bound(node_epoch=node_epoch), replace(LIVE, fenced_epoch=fenced_epoch), NOW)
    assert wanted == (DesiredState(run=True) if runs else DesiredState(run=False, reason="Fenced"))


def test_desired_state_of_a_missing_or_released_binding() -> None:
    gone = desired_state(None, LIVE, NOW)
    assert (gone.run, gone.keeps_binding, gone.reason) == (False, False, "Deleted")
    released = desired_state(bound(quota_released=True), LIVE, NOW)
    assert (released.run, released.keeps_binding, released.reason) == (False, True, "NodeLost")
    assert (released.grace_s, released.recheck_in_s) == (0.0, None)


@pytest.mark.parametrize(
    ("grace_s", "reason", "expected"), [(4.0, "Drained", (4.0, "Drained")), (0.0, "", (10.0, "StoppedOnRequest"))]
)
def test_stop_has_the_grace_and_reason_of_its_request_or_the_template(
    grace_s: float, reason: str, expected: tuple[float, str]
) -> None:
    stop = bound(desired=DesiredRunState.STOP, stop_reason=reason, stop_grace_seconds=grace_s)
    wanted = desired_state(stop, LIVE, NOW)
    own_s = stop.spec.template.termination_grace_seconds
    assert (wanted.run, wanted.keeps_binding) == (False, True)
    assert (wanted.grace_s, wanted.reason) == (expected[0] if grace_s else own_s, expected[1])


@pytest.mark.parametrize(("left_s", "runs"), [(0.5, True), (0.0, False), (-0.5, False)])
@pytest.mark.parametrize("observed", [False, True], ids=["wall clock", "observed before"])
def test_provisional_work_runs_until_its_end(left_s: float, *, runs: bool, observed: bool) -> None:
    until = bound(run_until=micro_text(NOW.wall_s + (left_s if not observed else 500.0)))
    wanted = desired_state(until, LIVE, NOW, NOW.mono_s + left_s if observed else None)
    expected = DesiredState(run=True, recheck_in_s=left_s) if runs else DesiredState(False, reason="ProvisionalExpired")
    assert wanted == expected


def test_end_of_provisional_work_is_converted_with_the_offset_of_the_clocks() -> None:
    assert run_until_mono_s(bound(run_until=micro_text(NOW.wall_s + 30.0)), NOW) == NOW.mono_s + 30.0


# Decisions


@pytest.mark.parametrize(
    ("binding", "left_s", "starts"),
    [
        (bound(), 0.0, False),
        (bound(), 0.1, True),
        (ONLY, 2 * WATCHDOG_LEAD_S, False),
        (ONLY, 2 * WATCHDOG_LEAD_S + 0.1, True),
    ],
)
@pytest.mark.parametrize("local", [ABSENT, ended(ago_s=1.0)], ids=["first run", "restart"])
def test_task_starts_only_within_its_lease(
    binding: Binding, local: TaskObservation, left_s: float, *, starts: bool
) -> None:
    expected = TaskDecision(StartTask(local.run + 1)) if starts else TaskDecision()
    assert decide(binding, local, lease(left_s), NOW) == expected


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [
        (WATCHDOG_LEAD_S + 0.5, TaskDecision(recheck_in_s=0.5)),
        (WATCHDOG_LEAD_S, TaskDecision(StopTask(WATCHDOG_LEAD_S - WATCHDOG_KILL_LEAD_S, "LeaseExpired"))),
        (WATCHDOG_KILL_LEAD_S, TaskDecision(StopTask(0.0, "LeaseExpired"))),
        (WATCHDOG_KILL_LEAD_S + 0.25, TaskDecision(StopTask(0.25, "LeaseExpired"))),
        (-5.0, TaskDecision(StopTask(0.0, "LeaseExpired"))),
    ],
)
def test_exclusive_work_is_stopped_in_time_before_its_lease_ends(left_s: float, expected: TaskDecision) -> None:
    assert decide(ONLY, RUNNING, lease(left_s), NOW) == expected
    assert decide_without_binding(True, RUNNING, lease(left_s), NOW) == expected
    assert decide_without_binding(False, RUNNING, lease(left_s), NOW) == TaskDecision()


def test_running_global_work_follows_its_tenure_once_one_is_known() -> None:
    assert decide(ANYWHERE, RUNNING, lease(10.0), NOW) == TaskDecision(recheck_in_s=10.0 - WATCHDOG_LEAD_S)
    assert decide(ANYWHERE, RUNNING, tenured(5.0), NOW) == TaskDecision(recheck_in_s=5.0 - WATCHDOG_LEAD_S)


def test_exclusive_provisional_work_is_rechecked_at_the_first_of_its_ends() -> None:
    for end_s, recheck_s in ((3.0, 3.0), (60.0, 8.0)):
        until = bound(exclusive=ONLY.spec.exclusive, run_until=micro_text(NOW.wall_s + end_s))
        assert decide(until, RUNNING, lease(10.0), NOW) == TaskDecision(recheck_in_s=recheck_s)
    shared = bound(run_until=micro_text(NOW.wall_s + 3.0))
    assert decide(shared, RUNNING, LIVE, NOW) == TaskDecision(recheck_in_s=3.0)


def test_fence_goes_before_a_failed_probe_and_a_failed_probe_before_the_lease() -> None:
    failing = replace(RUNNING, failed_probe="LivenessFailed")
    grace_s = ONLY.spec.template.termination_grace_seconds
    assert decide(bound(), failing, replace(LIVE, fenced=True), NOW) == TaskDecision(StopTask(0.0, "Fenced"))
    assert decide(ONLY, failing, lease(0.0), NOW) == TaskDecision(StopTask(grace_s, "LivenessFailed"))


@pytest.mark.parametrize("state", [TaskState.ABSENT, TaskState.STARTING, TaskState.ENDED])
def test_unlisted_task_that_does_not_run_is_left_alone(state: TaskState) -> None:
    fenced = replace(LIVE, fenced=True)
    assert decide_without_binding(True, TaskObservation(state=state), fenced, NOW) == TaskDecision()


@pytest.mark.parametrize(
    ("by_s", "wanted", "expected"),
    [
        (5.0, STOP, StopTask(4.0, "Drained")),
        (4.0, STOP, None),
        (3.0, STOP, None),
        (5.0, bound(), None),
        (0.5, None, StopTask(0.0, "Deleted")),
        (0.0, None, None),
    ],
)
def test_stop_becomes_shorter_and_never_longer(by_s: float, wanted: Binding | None, expected: StopTask | None) -> None:
    stopping = replace(STOPPING, stop_by_mono_s=NOW.mono_s + by_s)
    assert decide(wanted, stopping, LIVE, NOW) == TaskDecision(expected)


@pytest.mark.parametrize(
    ("local", "reason", "phase"),
    [
        (ABSENT, "NeverStarted", Phase.STOPPED),
        (replace(ended(None, reason="NeverStarted"), run=1), "NeverStarted", Phase.STOPPED),
        (replace(ended(None, reason="NeverStarted"), run=2), "NeverStarted", Phase.STOPPED),
        (replace(ended(0), run=1), "Exited", Phase.SUCCEEDED),
        (ended(1, stop="Drained"), "Exited", Phase.STOPPED),
    ],
)
def test_unwanted_task_that_does_not_run_is_acknowledged(local: TaskObservation, reason: str, phase: Phase) -> None:
    stop = bound(RestartPolicy.ON_FAILURE, desired=DesiredRunState.STOP)
    action = decide(stop, local, LIVE, NOW).action
    assert isinstance(action, Acknowledge) and (action.phase, action.exit.reason) == (phase, reason)
    first = local.run <= 1 and reason == "NeverStarted"
    assert action.exit.message == ("stopped before the task was started" if first else "")
    again = bound(RestartPolicy.ON_FAILURE, desired=DesiredRunState.STOP, acknowledged=True)
    assert decide(again, local, LIVE, NOW) == TaskDecision()


@pytest.mark.parametrize(
    ("policy", "local", "expected"),
    [
        (RestartPolicy.NEVER, RUNNING, None),
        (RestartPolicy.NEVER, replace(ended(0), exit=None), None),
        (RestartPolicy.ALWAYS, ended(0), None),
        (RestartPolicy.NEVER, ended(0), Phase.SUCCEEDED),
        (RestartPolicy.NEVER, ended(1), Phase.FAILED),
        (RestartPolicy.NEVER, ended(0, stop="LivenessFailed"), Phase.FAILED),
        (RestartPolicy.NEVER, ended(0, stop="StartupFailed"), Phase.FAILED),
        (RestartPolicy.NEVER, ended(0, stop="Drained"), None),
        (RestartPolicy.NEVER, ended(None, reason="NeverStarted"), None),
        (RestartPolicy.NEVER, ended(1, reason="SecretMissing"), None),
        (RestartPolicy.ON_FAILURE, ended(1, failures=RESTARTS_ON_FAILURE_MAX), None),
        (RestartPolicy.ON_FAILURE, ended(1, failures=RESTARTS_ON_FAILURE_MAX + 1), Phase.FAILED),
    ],
)
def test_final_phase_of_an_ended_run(policy: RestartPolicy, local: TaskObservation, expected: Phase | None) -> None:
    assert final_phase(bound(policy), local) is expected


@pytest.mark.parametrize(
    ("exit_", "stop", "ran_s", "failures"),
    [
        (ExitStatus(reason="NeverStarted"), "", 1.0, 2),
        (ExitStatus(reason="ConfigMissing"), "", 1.0, 3),
        (ExitStatus(reason="Killed"), "", 1.0, 2),
        (ExitStatus(reason="Killed", code=137), "", 1.0, 3),
        (ExitStatus(reason="Exited", code=1), "Drained", 1.0, 0),
        (ExitStatus(reason="LeaseExpired"), "", 1.0, 0),
        (ExitStatus(reason="Exited", code=1), "LivenessFailed", 1.0, 3),
        (ExitStatus(reason="Exited", code=1), "", 599.0, 3),
        (ExitStatus(reason="Exited", code=1), "", 600.0, 1),
    ],
)
def test_failures_after_each_kind_of_exit(exit_: ExitStatus, stop: str, ran_s: float, failures: int) -> None:
    local = replace(RUNNING, failures=2, started_mono_s=NOW.mono_s - ran_s)
    assert failures_after_exit(local, exit_, stop, NOW) == failures


def test_run_whose_start_was_not_observed_counts_as_short() -> None:
    late = Now(wall_s=NOW.wall_s, mono_s=5000.0)
    assert failures_after_exit(RUNNING, ExitStatus(reason="Exited", code=1), "", late) == 1
    assert failures_after_exit(replace(RUNNING, failures=0), ExitStatus(reason="Killed"), "", late) == 1


@pytest.mark.parametrize(
    ("run", "policy", "failures"),
    [
        (1, RestartPolicy.ALWAYS, 0),
        (3, RestartPolicy.ALWAYS, 2),
        (9, RestartPolicy.ALWAYS, ADOPTED_FAILURES_MAX),
        (9, RestartPolicy.ON_FAILURE, 8),
    ],
)
def test_failures_assumed_of_an_adopted_task(run: int, policy: RestartPolicy, failures: int) -> None:
    assert assumed_failures(run, policy) == failures


@pytest.mark.parametrize(("failures", "pause_s"), [(-1, 0.0), (0, 0.0), (1, 1.0), (2, 2.0), (9, 256.0), (10, 300.0)])
def test_pause_before_a_restart(failures: int, pause_s: float) -> None:
    assert restart_backoff_s(failures) == pause_s


def test_ended_task_waits_for_its_pause_to_the_end() -> None:
    assert decide(bound(), ended(ago_s=0.5), LIVE, NOW) == TaskDecision(recheck_in_s=0.5)
    assert decide(bound(), replace(ended(ago_s=1.0), exit=None), LIVE, NOW) == TaskDecision(StartTask(3))
    assert decide(BATCH, ended(0), LIVE, NOW).action == Acknowledge(
        Phase.SUCCEEDED, ExitStatus(code=0, reason="Exited")
    )


# Transitions

MAIN = ProgramStatus("main", ProgramKind.MAIN, ProgramState.RUNNING)
INIT = ProgramStatus("init", ProgramKind.INIT, ProgramState.WAITING)
BUSY = TaskObservation(
    state=TaskState.RUNNING,
    run=2,
    failures=1,
    pid=7,
    started_at_s=5.0,
    started_mono_s=6.0,
    exit=ExitStatus(code=1, reason="Exited"),
    stop_reason="LivenessFailed",
    startup_passed=True,
    ready=True,
    ready_since_s=8.0,
    failed_probe="LivenessFailed",
    probe_message="refused",
    fetching=True,
    fetch_message="half",
    programs=(MAIN, INIT),
)


@pytest.mark.parametrize("fetching", [False, True])
def test_new_run_keeps_only_the_history_of_the_task(*, fetching: bool) -> None:
    found = to_starting(BUSY, 3, fetching=fetching)
    kept = TaskObservation(run=3, failures=1, exit=BUSY.exit, started_mono_s=6.0, fetching=fetching)
    assert found == replace(kept, state=TaskState.STARTING)
    assert to_starting(BUSY, 3) == to_starting(BUSY, 3, fetching=False)


def test_started_run_has_its_process_and_both_times() -> None:
    found = to_running(STARTING, pid=9, started_at_s=NOW.wall_s, now=NOW)
    expected = replace(STARTING, state=TaskState.RUNNING, pid=9, started_at_s=NOW.wall_s, started_mono_s=NOW.mono_s)
    assert found == expected


def test_stop_ends_after_its_grace() -> None:
    found = to_stopping(RUNNING, StopTask(4.0, "Drained"), NOW)
    assert found == replace(RUNNING, state=TaskState.STOPPING, stop_by_mono_s=NOW.mono_s + 4.0, stop_reason="Drained")


def test_ended_run_has_no_process_and_its_programs_have_ended() -> None:
    exit_ = ExitStatus(code=2, reason="Exited")
    found = to_ended(BUSY, exit_, "Drained", NOW)
    expected = replace(
        BUSY,
        state=TaskState.ENDED,
        exit=exit_,
        ended_mono_s=NOW.mono_s,
        stop_reason="Drained",
        failures=0,
        ready=False,
        pid=0,
        programs=(replace(MAIN, state=ProgramState.ENDED), INIT),
    )
    assert found == expected


@pytest.mark.parametrize(
    ("binding", "local", "zombie"),
    [
        (None, ABSENT, False),
        (None, ended(), False),
        (None, STARTING, True),
        (None, RUNNING, True),
        (None, STOPPING, True),
        (bound(), RUNNING, False),
        (STOP, RUNNING, False),
        (bound(node_epoch=2), RUNNING, True),
        (bound(quota_released=True), RUNNING, True),
    ],
)
def test_task_whose_claim_has_ended_is_a_zombie(
    binding: Binding | None, local: TaskObservation, *, zombie: bool
) -> None:
    assert is_zombie(binding, local, LIVE, NOW) is zombie


# Reports


def test_task_of_a_binding_has_all_that_the_driver_needs() -> None:
    binding = bound(
        exclusive=ONLY.spec.exclusive,
        workload="web",
        epoch=4,
        ports={"http": 80},
        devices=(DeviceClaim("gpu-0", 500),),
        resources={"cpu": "2"},
        volumes=(BoundVolume("data", "data-a", "v"),),
    )
    task = task_from_binding(binding, 5, CONFIG, until_mono_s=7.0)
    assert (task.id, task.run, task.namespace, task.replica) == ("acme_a.1_b", 5, "acme", "a")
    assert task.id == task_id(binding)
    assert (task.replica_uid, task.workload, task.binding, task.binding_uid) == ("u", "web", "a.1", "b")
    assert (task.attempt, task.epoch, task.node_epoch) == (1, 4, 3)
    assert (task.template, task.env) == (binding.spec.template, environment(binding, CONFIG))
    assert (task.ports, task.devices) == ({"http": 80}, (DeviceClaim("gpu-0", 500),))
    assert (task.resources, task.exclusive, task.run_until_mono_s) == ({"cpu": 2000}, True, 7.0)
    assert task.volumes == binding.spec.volumes
    assert not task_from_binding(bound(), 1, CONFIG).exclusive


def with_template(binding: Binding, **changes: object) -> Binding:
    return replace(binding, spec=replace(binding.spec, template=replace(binding.spec.template, **changes)))


def test_environment_has_only_bound_ports_the_first_as_port() -> None:
    ports = (Port("unbound"), Port("http-alt"), Port("admin"))
    env = environment(with_template(bound(ports={"http-alt": 81, "admin": 82}), ports=ports), CONFIG)
    found = {name: value for name, value in env.items() if name.startswith("PORT")}
    assert found == {"PORT": "81", "PORT_HTTP_ALT": "81", "PORT_ADMIN": "82"}
    assert "PORT" not in environment(bound(), CONFIG)
    assert "HOLDFAST_FENCING_TOKEN" not in env and "HOLDFAST_INDEX" not in env


def test_report_of_a_running_task_has_each_field() -> None:
    binding = bound(ports={"http": 80})
    local = replace(BUSY, failed_probe="", probe_message="", stop_reason="", fetching=False)
    assert execution_block(binding, local, CONFIG) == ExecutionBlock(
        phase=Phase.RUNNING,
        attempt=1,
        ready=True,
        address=CONFIG.address,
        ports={"http": 80},
        pid=7,
        restarts=1,
        started_at=micro_text(5.0),
        ready_since=micro_text(8.0),
        last_exit=BUSY.exit,
        reason="BecameReady",
        programs=(MAIN, INIT),
    )


def test_report_of_a_task_that_does_not_run_has_no_process_and_is_not_ready() -> None:
    block = execution_block(bound(), replace(BUSY, state=TaskState.STOPPING, run=1), CONFIG)
    assert block is not None
    assert (block.pid, block.ready, block.ready_since, block.restarts) == (0, False, "", 0)
    assert execution_block(bound(), replace(STARTING, run=0), CONFIG) == ExecutionBlock(
        phase=Phase.STARTING, attempt=1, address=CONFIG.address, reason="Started"
    )


@pytest.mark.parametrize(
    ("local", "reported"),
    [
        (ABSENT, False),
        (replace(RUNNING, ready=None), False),
        (replace(STOPPING, ready=None), True),
        (replace(RUNNING, ready=False), True),
    ],
)
def test_task_is_reported_once_its_state_is_known(local: TaskObservation, *, reported: bool) -> None:
    assert (execution_block(bound(), local, CONFIG) is not None) is reported


@pytest.mark.parametrize(
    ("local", "phase", "reason", "message"),
    [
        (replace(RUNNING, startup_passed=True, ready=True), Phase.RUNNING, "BecameReady", ""),
        (replace(RUNNING, startup_passed=True), Phase.RUNNING, "Started", ""),
        (replace(RUNNING, startup_passed=True, probe_message="503"), Phase.RUNNING, "BecameUnready", "503"),
        (replace(RUNNING, probe_message="not yet"), Phase.STARTING, "Started", "not yet"),
        (replace(STOPPING, stop_reason="LivenessFailed"), Phase.BACKING_OFF, "LivenessFailed", ""),
        (replace(STOPPING, stop_reason="StartupFailed"), Phase.BACKING_OFF, "StartupFailed", ""),
        (replace(STOPPING, stop_reason="Drained"), Phase.STOPPING, "Drained", ""),
        (ended(1, stop="Drained"), Phase.STOPPED, "Drained", ""),
        (ended(1), Phase.BACKING_OFF, "Exited", "Exited; restarts 1 s after the exit"),
        (ended(1, stop="LivenessFailed"), Phase.BACKING_OFF, "Exited", "Exited; restarts 1 s after the exit"),
        (replace(ended(), exit=None, failures=2), Phase.BACKING_OFF, "BackingOff", "; restarts 2 s after the exit"),
        (
            replace(ended(), exit=ExitStatus(code=1, reason="Exited", message="out of memory")),
            Phase.BACKING_OFF,
            "Exited",
            "out of memory; restarts 1 s after the exit",
        ),
    ],
)
def test_report_has_phase_reason_and_message(local: TaskObservation, phase: Phase, reason: str, message: str) -> None:
    block = execution_block(bound(), local, CONFIG)
    assert block is not None and (block.phase, block.reason, block.message) == (phase, reason, message)


def test_report_of_a_finished_task_has_the_exit_of_its_last_run() -> None:
    done = replace(ended(3), exit=ExitStatus(code=3, reason="Exited", message="bad input"))
    block = execution_block(ONCE, done, CONFIG)
    assert block is not None
    assert (block.phase, block.reason, block.message) == (Phase.FAILED, "Exited", "bad input")


@pytest.mark.parametrize(
    ("block", "delay_s"),
    [
        (ExecutionBlock(phase=Phase.STARTING), STARTING_REPORT_DELAY_S),
        (ExecutionBlock(phase=Phase.RUNNING), 0.0),
        (ExecutionBlock(phase=Phase.STARTING, restarts=1), 0.0),
        (ExecutionBlock(phase=Phase.STARTING, message="pulling"), 0.0),
    ],
)
def test_only_the_first_plain_report_of_a_start_is_delayed(block: ExecutionBlock, delay_s: float) -> None:
    assert max_delay_s(block) == delay_s


def test_report_is_written_to_the_replica_of_the_binding() -> None:
    block = ExecutionBlock(phase=Phase.RUNNING)
    write = execution_write(bound(), block)
    assert (write.kind, write.key, write.uid, write.blocks) == ("Replica", Key("acme", "a"), "u", {"execution": block})


def test_acknowledgement_names_the_generation_and_the_time_of_the_exit() -> None:
    binding = replace(bound(), metadata=replace(bound().metadata, generation=6))
    for at, expected in (("", micro_text(50.0)), ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")):
        exit_ = ExitStatus(code=0, reason="Exited", at=at)
        write = acknowledgement(binding, Acknowledge(Phase.STOPPED, exit_), 50.0)
        assert (write.kind, write.key, write.uid, write.observed_generation) == ("Binding", binding.key, "b", 6)
        ack = {"phase": Phase.STOPPED, "last_exit": replace(exit_, at=expected), "acknowledged_at": micro_text(50.0)}
        assert write.blocks == ack
        assert with_exit_time(exit_, 50.0).at == expected


def test_image_of_a_report_has_the_digest_that_runs() -> None:
    assert image_id(bound().spec.template) == ""
    digest = "sha256:" + "0" * 64
    template = with_template(bound(), image="registry.example/web:1", image_digest=digest).spec.template
    assert image_id(template).endswith(f"@{digest}")


@pytest.mark.parametrize(
    ("capacity", "says"),
    [({"cpu": "4"}, ""), ({"cpu": "3"}, "cpu by 1"), ({"memory": "1Gi"}, "")],
    ids=["fits", "shrank", "not a resource of the node"],
)
def test_overcommit_says_by_how_much_claims_exceed_the_node(capacity: dict[str, str], says: str) -> None:
    found = overcommit_message(capacity, [bound(resources={"cpu": "2"}), None, bound(resources={"cpu": "2"})])
    assert says in found and bool(found) is bool(says)
