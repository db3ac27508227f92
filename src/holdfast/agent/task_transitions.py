"""Pure task state transitions, shared by the real and the hollow supervisor.

Only these functions derive the next TaskObservation from the last. The supervisors execute and report the transition.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.task_decision import (
    LeaseState,
    Now,
    StopTask,
    TaskObservation,
    TaskState,
    desired_state,
    failures_after_exit,
)
from holdfast.model.binding import Binding
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus
from holdfast.model.task_programs import ProgramState

ACTIVE_STATES = (TaskState.STARTING, TaskState.RUNNING, TaskState.STOPPING)


def to_starting(local: TaskObservation, run: int, *, fetching: bool = False) -> TaskObservation:
    """A new run starts without the times, the probe results and the stop of the last one; the last exit stays for the
    report."""
    return msgspec.structs.replace(
        local,
        state=TaskState.STARTING,
        run=run,
        stop_reason="",
        failed_probe="",
        probe_message="",
        startup_passed=False,
        ready=False,
        ready_since_s=0.0,
        started_at_s=0.0,
        pid=0,
        fetching=fetching,
        fetch_message="",
        programs=(),
    )


def to_running(local: TaskObservation, *, pid: int, started_at_s: float, now: Now) -> TaskObservation:
    return msgspec.structs.replace(
        local, state=TaskState.RUNNING, pid=pid, started_at_s=started_at_s, started_mono_s=now.mono_s
    )


def to_stopping(local: TaskObservation, stop: StopTask, now: Now) -> TaskObservation:
    return msgspec.structs.replace(
        local, state=TaskState.STOPPING, stop_by_mono_s=now.mono_s + stop.grace_s, stop_reason=stop.reason
    )


def to_ended(local: TaskObservation, exit_: ExitStatus, stop_reason: str, now: Now) -> TaskObservation:
    return msgspec.structs.replace(
        local,
        state=TaskState.ENDED,
        exit=exit_,
        ended_mono_s=now.mono_s,
        stop_reason=stop_reason,
        failures=failures_after_exit(local, exit_, stop_reason, now),
        ready=False,
        pid=0,
        programs=tuple(
            msgspec.structs.replace(one, state=ProgramState.ENDED) if one.state is ProgramState.RUNNING else one
            for one in local.programs
        ),
    )


def is_zombie(binding: Binding | None, local: TaskObservation, lease: LeaseState, now: Now) -> bool:
    """Whether the task runs although its claim has ended. A node that comes back late stops zombies first."""
    if local.state not in ACTIVE_STATES:
        return False
    if binding is None:
        return True
    return desired_state(binding, lease, now, local.run_until_mono_s).reason in (Reason.FENCED, Reason.NODE_LOST)
