"""The agent's decisions as tables: desired state and observation, and the expected action."""

from __future__ import annotations

import msgspec
import pytest
from agent_world import template

from holdfast.agent.config import AgentConfig
from holdfast.agent.decide import (
    Acknowledge,
    Forget,
    Lease,
    Local,
    Now,
    Start,
    State,
    Stop,
    Verdict,
    decide,
    decide_unlisted,
    failures_adopted,
    failures_after,
    restart_pause_s,
)
from holdfast.agent.describe import environment, execution_of, task_id
from holdfast.model import limits
from holdfast.model.binding import Binding, BindingSpec, BindingStatus, Desired, DeviceClaim, Intent
from holdfast.model.meta import ObjectMeta
from holdfast.model.replica import Exit, Phase
from holdfast.model.template import Port, RestartPolicy
from holdfast.model.workload import ExclusiveScope, Exclusivity

NOW = Now(wall_s=1_700_000_000.0, mono_s=1000.0)
LIVE = Lease(epoch=3, until_mono_s=1010.0, fenced_epoch=2)
LAPSED = Lease(epoch=3, until_mono_s=999.0, fenced_epoch=2)
FENCED = Lease(epoch=3, until_mono_s=0.0, fenced_epoch=3, fenced=True)

ABSENT = Local()
STARTING = Local(state=State.STARTING, run=1)
RUNNING = Local(state=State.RUNNING, run=1, pid=7)
STOPPING = Local(state=State.STOPPING, run=1, stop_by_mono_s=1008.0, stop_reason="StoppedAsAsked")


def ended(
    code: int | None = 1, *, reason: str = "Exited", failures: int = 1, ago_s: float = 0.0, stop: str = ""
) -> Local:
    return Local(
        state=State.ENDED, run=2, failures=failures, exit=Exit(code=code, reason=reason), stop_reason=stop,
        ended_mono_s=NOW.mono_s - ago_s,
    )  # fmt: skip


def bound(policy: RestartPolicy = RestartPolicy.ALWAYS, *, acknowledged: bool = False, **spec: object) -> Binding:
    made = BindingSpec(
        replica="a", intent=Intent(replica_uid="u", template_hash="h", attempt=1), node="n1",
        template=template(restart_policy=policy), **{"node_epoch": 3, **spec},
    )  # fmt: skip
    status = BindingStatus(acknowledged_at="2026-01-01T00:00:00Z" if acknowledged else "")
    return Binding(metadata=ObjectMeta(name="a.1", namespace="acme", uid="b"), spec=made, status=status)


STOP = bound(desired=Desired.STOP, stop_reason="Drained", stop_grace_seconds=4.0)
BATCH = bound(RestartPolicy.ON_FAILURE)
ONCE = bound(RestartPolicy.NEVER)
ONLY = bound(exclusive=Exclusivity())
ANYWHERE = bound(exclusive=Exclusivity(scope=ExclusiveScope.GLOBAL))


def tenured(left_s: float) -> Lease:
    return Lease(epoch=3, until_mono_s=1010.0, fenced_epoch=2, tenures={"b": NOW.mono_s + left_s})


NEVER = Exit(reason="NeverStarted", message="stopped before the task was started")

TABLE = [
    # desired: run
    ("starts what is bound", bound(), ABSENT, LIVE, Verdict(Start(1))),
    ("starts nothing without a lease", bound(), ABSENT, LAPSED, Verdict()),
    ("starts nothing while fenced", bound(), ABSENT, FENCED, None),
    ("starts nothing that ended for good", bound(acknowledged=True), ABSENT, LIVE, Verdict()),
    ("waits for the driver", bound(), STARTING, LIVE, Verdict()),
    ("leaves well alone", bound(), RUNNING, LIVE, Verdict()),
    ("leaves running work alone without a lease", bound(), RUNNING, LAPSED, Verdict()),
    ("waits before a restart", bound(), ended(ago_s=0.25), LIVE, Verdict(again_in_s=0.75)),
    ("restarts when the pause is over", bound(), ended(ago_s=1.0), LIVE, Verdict(Start(3))),
    ("restarts nothing without a lease", bound(), ended(ago_s=1.0), LAPSED, Verdict()),
    ("restarts a service that ended well", bound(), ended(0, ago_s=1.0), LIVE, Verdict(Start(3))),
    ("starts at once what never began", bound(), ended(None, reason="NeverStarted", failures=0), LIVE,
     Verdict(Start(3))),
    # ended for good
    ("batch succeeded", BATCH, ended(0), LIVE, Verdict(Acknowledge(Phase.SUCCEEDED, Exit(code=0, reason="Exited")))),
    ("batch tries again", BATCH, ended(1, ago_s=1.0), LIVE, Verdict(Start(3))),
    ("batch gives up", BATCH, ended(1, failures=limits.RESTARTS_ON_FAILURE_MAX + 1), LIVE,
     Verdict(Acknowledge(Phase.FAILED, Exit(code=1, reason="Exited")))),
    ("never restarted", ONCE, ended(1), LIVE, Verdict(Acknowledge(Phase.FAILED, Exit(code=1, reason="Exited")))),
    ("a lapsed lease is not the work's failure", ONCE, ended(137, stop="LeaseLapsed", failures=0), LIVE,
     Verdict(Start(3))),
    ("nor is a stop by an agent that died", ONCE, ended(143, reason="StoppedAsAsked", failures=0), LIVE,
     Verdict(Start(3))),
    # desired: stop
    ("stops on request", STOP, RUNNING, LIVE, Verdict(Stop(4.0, "Drained"))),
    ("stops without a lease too", STOP, RUNNING, LAPSED, Verdict(Stop(4.0, "Drained"))),
    ("never started", STOP, ABSENT, LIVE, Verdict(Acknowledge(Phase.STOPPED, NEVER))),
    ("acknowledges the stop", STOP, ended(143, reason="StoppedAsAsked", stop="Drained"), LIVE,
     Verdict(Acknowledge(Phase.STOPPED, Exit(code=143, reason="StoppedAsAsked")))),
    ("acknowledges once", bound(desired=Desired.STOP, acknowledged=True), ABSENT, LIVE, Verdict()),
    ("waits for the stop", STOP, STOPPING, LIVE, Verdict(Stop(4.0, "Drained"))),
    ("no more urgent", bound(desired=Desired.STOP, stop_grace_seconds=60), STOPPING, LIVE, Verdict()),
    ("success survives a later stop", bound(RestartPolicy.NEVER, desired=Desired.STOP), ended(0), LIVE,
     Verdict(Acknowledge(Phase.SUCCEEDED, Exit(code=0, reason="Exited")))),
    # ended claims
    ("kills what is not bound", None, RUNNING, LIVE, Verdict(Stop(0.0, "Deleted"))),
    ("hastens a stop", None, STOPPING, LIVE, Verdict(Stop(0.0, "Deleted"))),
    ("forgets what ended and is not bound", None, ended(), LIVE, Verdict(Forget())),
    ("forgets what never was", None, ABSENT, LIVE, Verdict(Forget())),
    ("kills work of a fenced epoch", bound(node_epoch=2), RUNNING, LIVE, Verdict(Stop(0.0, "Fenced"))),
    ("never starts under a fenced epoch", bound(node_epoch=2), ABSENT, LIVE,
     Verdict(Acknowledge(Phase.STOPPED, NEVER))),
    ("kills work whose quota was released", bound(quota_released=True), RUNNING, LIVE, Verdict(Stop(0.0, "NodeLost"))),
    ("stops everything when fenced", bound(node_epoch=0), RUNNING, FENCED, Verdict(Stop(0.0, "Fenced"))),
    ("hastens every stop when fenced", bound(node_epoch=0), STOPPING, FENCED, Verdict(Stop(0.0, "Fenced"))),
    # time
    ("runs until", bound(run_until="2023-11-14T22:13:30.000000Z"), RUNNING, LIVE, Verdict(again_in_s=10.0)),
    ("ends at runUntil", bound(run_until="2023-11-14T22:13:20.000000Z"), RUNNING, LIVE,
     Verdict(Stop(0.0, "ProvisionalEnded"))),
    ("starts nothing past runUntil", bound(run_until="2023-11-14T22:13:19.000000Z"), ABSENT, LIVE,
     Verdict(Acknowledge(Phase.STOPPED, NEVER))),
    ("exclusive looks again before the lease's end", ONLY, RUNNING, LIVE, Verdict(again_in_s=8.0)),
    ("scope Global starts only under a tenure", ANYWHERE, ABSENT, LIVE, Verdict()),
    ("scope Global starts under a tenure", ANYWHERE, ABSENT, tenured(30.0), Verdict(Start(1))),
    ("scope Global does not start as its tenure ends", ANYWHERE, ABSENT, tenured(1.0), Verdict()),
    ("scope Global looks again before its tenure's end", ANYWHERE, RUNNING, tenured(6.0), Verdict(again_in_s=4.0)),
    ("scope Global ends with its tenure", ANYWHERE, RUNNING, tenured(-1.0), Verdict(Stop(0.0, "LeaseLapsed"))),
    ("scope Global that was found runs on until the region speaks", ANYWHERE, RUNNING, LIVE, Verdict(again_in_s=8.0)),
    ("exclusive ends with the lease", ONLY, RUNNING, LAPSED, Verdict(Stop(0.0, "LeaseLapsed"))),
    # probes
    ("unwell work is restarted", bound(), msgspec.structs.replace(RUNNING, unwell="LivenessFailed"), LIVE,
     Verdict(Stop(10.0, "LivenessFailed"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("binding", "local", "lease", "expected"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_decide_for_each_case_returns_expected_action(
    binding: Binding | None, local: Local, lease: Lease, expected: Verdict | None
) -> None:
    found = decide(binding, local, lease, NOW)
    if expected is None:
        assert not isinstance(found.action, Start)
    else:
        assert found == expected


@pytest.mark.parametrize("local", [ABSENT, STARTING, RUNNING, STOPPING, ended()])
@pytest.mark.parametrize("binding", [None, bound(), STOP, BATCH, ONCE, bound(exclusive=Exclusivity())])
@pytest.mark.parametrize("lease", [LIVE, LAPSED, FENCED, Lease()])
def test_decide_never_starts_without_lease_nor_acknowledges_while_running(
    binding: Binding | None, local: Local, lease: Lease
) -> None:
    action = decide(binding, local, lease, NOW).action
    if isinstance(action, Start):
        assert lease is LIVE and binding is not None and local.state in (State.ABSENT, State.ENDED)
    if isinstance(action, Acknowledge | Forget):
        assert local.state in (State.ABSENT, State.ENDED), "a task that may run is never acknowledged as ended"


@pytest.mark.parametrize(
    ("exclusive", "local", "lease", "expected"),
    [
        (False, RUNNING, Lease(), Verdict()),
        (True, RUNNING, LIVE, Verdict(again_in_s=8.0)),
        (True, RUNNING, LAPSED, Verdict(Stop(0.0, "LeaseLapsed"))),
        (False, RUNNING, FENCED, Verdict(Stop(0.0, "Fenced"))),
        (True, ended(), LAPSED, Verdict()),
    ],
)
def test_decide_before_first_list_keeps_tasks_running_while_lease_allows(
    exclusive: bool, local: Local, lease: Lease, expected: Verdict
) -> None:
    assert decide_unlisted(exclusive, local, lease, NOW) == expected


def test_restart_backoff_doubles_up_to_its_maximum() -> None:
    assert [restart_pause_s(n) for n in (0, 1, 2, 3, 4)] == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert restart_pause_s(10_000) == limits.RESTART_BACKOFF_MAX_S


def test_failure_count_after_long_run_or_stop_is_reset() -> None:
    exit_ = Exit(code=1, reason="Exited")
    soon = Local(state=State.RUNNING, failures=4, started_mono_s=NOW.mono_s - 5)
    late = Local(state=State.RUNNING, failures=4, started_mono_s=NOW.mono_s - limits.RESTART_BACKOFF_RESET_S)
    assert failures_after(soon, exit_, "", NOW) == 5
    assert failures_after(late, exit_, "", NOW) == 1
    assert failures_after(soon, exit_, "LivenessFailed", NOW) == 5
    assert failures_after(soon, exit_, "LeaseLapsed", NOW) == 0
    assert failures_after(soon, Exit(reason="NeverStarted"), "", NOW) == 4
    assert failures_after(soon, Exit(code=143, reason="StoppedAsAsked"), "", NOW) == 0


CONFIG = AgentConfig(name="n1", region="us-east", zone="us-east-a", state_dir="/x", address="10.0.0.7")


def test_environment_contains_ports_and_identity_overriding_template() -> None:
    made = template(ports=(Port(name="http"), Port(name="admin-ui")), env={"A": "1", "HOLDFAST_NODE": "lie"})
    spec = msgspec.structs.replace(
        bound().spec, template=made, ports={"http": 20001, "admin-ui": 20002}, workload="api", epoch=7,
        devices=(DeviceClaim(id="gpu-0"), DeviceClaim(id="gpu-1", milli=300)),
    )  # fmt: skip
    binding = msgspec.structs.replace(bound(), spec=spec)
    env = environment(binding, CONFIG)
    assert env["PORT"] == env["PORT_HTTP"] == "20001" and env["PORT_ADMIN_UI"] == "20002"
    assert env["HOLDFAST_NODE"] == "n1" and env["HOLDFAST_EPOCH"] == "7" and env["A"] == "1"
    assert env["HOLDFAST_DEVICES"] == "gpu-0,gpu-1" and env["HOLDFAST_TENANT"] == "acme"
    assert task_id(binding) == "acme_a.1_b"


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
def test_execution_block_for_each_task_state_has_expected_phase(local: Local, phase: Phase, ready: bool) -> None:
    block = execution_of(bound(), local, CONFIG)
    assert block is not None
    assert (block.phase, block.ready, block.address) == (phase, ready, "10.0.0.7")


def test_execution_block_of_adopted_task_before_first_probe_is_none() -> None:
    assert execution_of(bound(), msgspec.structs.replace(RUNNING, ready=None), CONFIG) is None
    assert execution_of(bound(), ABSENT, CONFIG) is None


def test_failure_count_after_lost_shim_is_unchanged() -> None:
    lost = Exit(reason="Killed", message="ended without evidence")
    local = msgspec.structs.replace(RUNNING, failures=5, started_mono_s=999.0)
    assert failures_after(local, lost, "", NOW) == 5
    assert failures_after(msgspec.structs.replace(local, failures=0), lost, "", NOW) == 1
    assert failures_after(local, Exit(reason="Killed", code=137, signal="SIGKILL"), "", NOW) == 6
    assert failures_adopted(200, RestartPolicy.ALWAYS) == 3
    assert failures_adopted(5, RestartPolicy.ON_FAILURE) == 4
