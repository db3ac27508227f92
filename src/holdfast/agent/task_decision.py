"""Next action for one Binding: a pure function of the desired state, the observed task and the lease.

The supervisor executes the action and calls `decide` again.
- A task starts only with a live lease and a live Binding whose epoch is not fenced.
- A stop is acknowledged only when nothing of the task runs.
- A task whose Binding was deleted is stopped. A task whose Binding is only missing keeps running: the region deletes a
  Binding after the agent has acknowledged the end of its task, so a missing one was lost with the region's records.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model import times
from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.placement_api import RenewItem
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus, Phase
from holdfast.model.task_programs import ProgramStatus
from holdfast.model.template import RestartPolicy
from holdfast.model.tenure import needs_tenure

# First pause before a task is restarted. Doubles with every failure.
RESTART_BACKOFF_FIRST_S = 1.0
# Longest pause before a task is restarted. The kubelet's default.
RESTART_BACKOFF_MAX_S = 300.0
# Run time after which the failure count of a task starts at one again. The kubelet's default.
RESTART_BACKOFF_RESET_S = 600.0
# Restarts with `restartPolicy: OnFailure`. After them, the replica has failed. The default backoffLimit of a Job.
RESTARTS_ON_FAILURE_MAX = 6
# Failures assumed while a task waits for a Secret or ConfigMap: it is tried again every 4 s.
CONFIG_RETRY_FAILURES = 3
# Time before the end of the lease at which exclusive work receives the request to stop.
WATCHDOG_LEAD_S = 2.0
# Time before the end of the lease at which exclusive work is killed.
WATCHDOG_KILL_LEAD_S = 0.5


class TaskState(enum.StrEnum):
    """State of a task in its driver. STARTING and STOPPING last while a driver call is in flight."""

    ABSENT = "Absent"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    ENDED = "Ended"


class TaskObservation(msgspec.Struct, frozen=True):
    """What the agent knows of one task. Fields ending in `_mono_s` are on the monotonic clock."""

    state: TaskState = TaskState.ABSENT
    run: int = 0
    failures: int = 0
    pid: int = 0
    started_at_s: float = 0.0
    started_mono_s: float = 0.0
    ended_mono_s: float = 0.0
    exit: ExitStatus | None = None
    stop_by_mono_s: float = 0.0
    stop_reason: str = ""
    startup_passed: bool = False
    ready: bool | None = False
    ready_since_s: float = 0.0
    failed_probe: str = ""
    probe_message: str = ""
    run_until_mono_s: float | None = None
    fetching: bool = False
    fetch_message: str = ""
    programs: tuple[ProgramStatus, ...] = ()
    """`programs` are the states of a task with init tasks, sidecars or hooks.
    `fetching`: the start waits for the task's artifacts or image, `fetch_message` says how far they are.
    `run_until_mono_s` is `runUntil`, converted once when first observed, so wall-clock steps do not move it.
    `ready` is None for an adopted task until its first probe result; until then nothing is reported.
    `failed_probe` is the reason to restart the task, StartupFailed or LivenessFailed; else empty.
    """


class LeaseState(msgspec.Struct, frozen=True):
    """The agent's view of its lease, measured from when the last acknowledged renewal was sent.

    `fenced`: this epoch is revoked, and all its tasks must stop. `tenures` maps the uid of a Binding (exclusive work of
    scope Global) to the end of its tenure; None before the first response.
    """

    epoch: int = 0
    expires_mono_s: float = 0.0
    fenced_epoch: int = 0
    fenced: bool = False
    tenures: dict[str, float] | None = None

    def is_fenced_epoch(self, epoch: int) -> bool:
        """Whether the agent knows that this epoch was fenced. No task ever runs under it again."""
        return 0 < epoch <= self.fenced_epoch

    def renewal(self, node: str) -> RenewItem:
        return RenewItem(node=node, epoch=self.epoch, fenced_epoch=0 if self.epoch else self.fenced_epoch)

    def with_tenures(self, granted: dict[str, float], sent_mono_s: float) -> LeaseState:
        """Adds granted tenures. A response that omits a Binding revokes nothing: its tenure lasts until it expires."""
        kept = {uid: end_s for uid, end_s in (self.tenures or {}).items() if end_s > sent_mono_s}
        for uid, seconds in granted.items():
            kept[uid] = max(kept.get(uid, 0.0), sent_mono_s + seconds)
        return msgspec.structs.replace(self, tenures=kept)

    def exclusive_deadline_mono_s(self, binding: Binding) -> float:
        """Deadline of exclusive work: the node's lease and, for scope Global, also the region's tenure."""
        if not needs_tenure(binding.spec.exclusive):
            return self.expires_mono_s
        return min(self.expires_mono_s, (self.tenures or {}).get(binding.uid, 0.0))


class Now(msgspec.Struct, frozen=True):
    wall_s: float
    mono_s: float


class StartTask(msgspec.Struct, frozen=True):
    run: int


class StopTask(msgspec.Struct, frozen=True):
    grace_s: float
    reason: str


class Acknowledge(msgspec.Struct, frozen=True):
    """The task has ended or never started: nothing of this Binding is left on the node."""

    phase: Phase
    exit: ExitStatus


class ForgetTask(msgspec.Struct, frozen=True):
    pass


Action = StartTask | StopTask | Acknowledge | ForgetTask


class TaskDecision(msgspec.Struct, frozen=True):
    action: Action | None = None
    recheck_in_s: float | None = None


_NO_ACTION = TaskDecision()
# Failures assumed for an adopted task with `restartPolicy: Always`, so that its next restart does not wait long.
ADOPTED_FAILURES_MAX = 3

# A missing Secret or ConfigMap is nobody's failure: the task has not run, and starts soon after it appears.
_WAITS_FOR_CONFIG = (Reason.SECRET_MISSING, Reason.CONFIG_MISSING, Reason.CONFIG_UNREACHABLE)
# Exits that the task did not cause itself. An agent that crashed during a stop leaves StoppedOnRequest behind.
_EXTERNAL_EXITS = (Reason.NEVER_STARTED, Reason.STOPPED_ON_REQUEST, Reason.LEASE_EXPIRED, Reason.PROVISIONAL_EXPIRED)


class DesiredState(msgspec.Struct, frozen=True):
    """Desired state of a task. If `run` is False, the task must stop. If `keeps_binding` is True, the agent
    acknowledges the stop on the Binding; False means that the Binding no longer exists.
    """

    run: bool
    keeps_binding: bool = True
    grace_s: float = 0.0
    reason: str = ""
    recheck_in_s: float | None = None


def desired_state(
    binding: Binding | None, lease: LeaseState, now: Now, until_mono_s: float | None = None
) -> DesiredState:
    """The desired state of the task now. The most urgent rule wins."""
    if binding is None:
        return DesiredState(run=False, keeps_binding=False, reason=Reason.DELETED)
    spec = binding.spec
    if 0 < spec.node_epoch <= lease.fenced_epoch:
        return DesiredState(run=False, reason=Reason.FENCED)
    if spec.quota_released:
        return DesiredState(run=False, reason=Reason.NODE_LOST)
    if spec.desired is DesiredRunState.STOP:
        grace_s = spec.stop_grace_seconds or spec.template.termination_grace_seconds
        return DesiredState(run=False, grace_s=grace_s, reason=spec.stop_reason or Reason.STOPPED_ON_REQUEST)
    if spec.run_until:
        end_mono_s = until_mono_s if until_mono_s is not None else run_until_mono_s(binding, now)
        left_s = end_mono_s - now.mono_s
        if left_s <= 0:
            return DesiredState(run=False, reason=Reason.PROVISIONAL_EXPIRED)
        return DesiredState(run=True, recheck_in_s=left_s)
    return DesiredState(run=True)


def run_until_mono_s(binding: Binding, now: Now) -> float:
    """`runUntil` on the monotonic clock, converted with the current offset of the two clocks."""
    return now.mono_s + times.parse_time(binding.spec.run_until) - now.wall_s


def _can_start(binding: Binding, lease: LeaseState, now: Now) -> bool:
    """Exclusive work starts only with time to spare: its watchdog kills it some seconds before the lease expires."""
    spare_s = 2 * WATCHDOG_LEAD_S if binding.spec.exclusive is not None else 0.0
    until_mono_s = (
        lease.exclusive_deadline_mono_s(binding) if binding.spec.exclusive is not None else lease.expires_mono_s
    )
    return until_mono_s > now.mono_s + spare_s


def decide(binding: Binding | None, local: TaskObservation, lease: LeaseState, now: Now) -> TaskDecision:
    wanted = desired_state(binding, lease, now, local.run_until_mono_s)
    if local.state is TaskState.STARTING:
        return _NO_ACTION  # decided again when the driver call returns
    if local.state is TaskState.STOPPING:
        return _escalate_stop(wanted, local, lease, now)
    if binding is None:
        if local.state is TaskState.RUNNING:
            return TaskDecision(StopTask(0.0, wanted.reason))
        return TaskDecision(ForgetTask())
    if not wanted.run:
        return _decide_unwanted(binding, wanted, local)
    if local.state is TaskState.RUNNING:
        return _decide_running(binding, wanted, local, lease, now)
    if binding.status.acknowledged_at:
        return _NO_ACTION  # it ended and the end is acknowledged
    if local.state is TaskState.ABSENT:
        return TaskDecision(StartTask(run=1)) if _can_start(binding, lease, now) else _NO_ACTION
    return _decide_ended(binding, local, lease, now)


def decide_without_binding(exclusive: bool, local: TaskObservation, lease: LeaseState, now: Now) -> TaskDecision:
    """Decision before the first list of Bindings, and for a task that the list does not contain: tasks keep running,
    unless the lease forbids it. A stop in progress becomes more urgent only by a fence."""
    if local.state not in (TaskState.RUNNING, TaskState.STOPPING):
        return _NO_ACTION
    if lease.fenced and (local.state is TaskState.RUNNING or now.mono_s < local.stop_by_mono_s):
        return TaskDecision(StopTask(0.0, Reason.FENCED))
    if local.state is TaskState.STOPPING:
        return _NO_ACTION
    return _decide_leased(lease, now, None) if exclusive else _NO_ACTION


def _escalate_stop(wanted: DesiredState, local: TaskObservation, lease: LeaseState, now: Now) -> TaskDecision:
    """A stop in progress may become more urgent, never less."""
    if lease.fenced and now.mono_s < local.stop_by_mono_s:
        return TaskDecision(StopTask(0.0, Reason.FENCED))
    if not wanted.run and now.mono_s + wanted.grace_s < local.stop_by_mono_s:
        return TaskDecision(StopTask(wanted.grace_s, wanted.reason))
    return _NO_ACTION


def _decide_unwanted(binding: Binding, wanted: DesiredState, local: TaskObservation) -> TaskDecision:
    if local.state is TaskState.RUNNING:
        return TaskDecision(StopTask(wanted.grace_s, wanted.reason))
    if binding.status.acknowledged_at:
        return _NO_ACTION
    if local.exit is None or (local.run <= 1 and local.exit.reason == Reason.NEVER_STARTED):
        message = "stopped before the task was started"
        return TaskDecision(Acknowledge(Phase.STOPPED, ExitStatus(reason=Reason.NEVER_STARTED, message=message)))
    return TaskDecision(Acknowledge(final_phase(binding, local) or Phase.STOPPED, local.exit))


def _decide_running(
    binding: Binding, wanted: DesiredState, local: TaskObservation, lease: LeaseState, now: Now
) -> TaskDecision:
    if lease.fenced:
        return TaskDecision(StopTask(0.0, Reason.FENCED))
    if local.failed_probe:
        return TaskDecision(StopTask(binding.spec.template.termination_grace_seconds, local.failed_probe))
    if binding.spec.exclusive is None:
        return TaskDecision(recheck_in_s=wanted.recheck_in_s)
    if lease.tenures is not None:
        # Until the first response, the watchdog applies the tenure granted to the previous agent process.
        lease = msgspec.structs.replace(lease, expires_mono_s=lease.exclusive_deadline_mono_s(binding))
    return _decide_leased(lease, now, wanted.recheck_in_s)


def _decide_leased(lease: LeaseState, now: Now, again_in_s: float | None) -> TaskDecision:
    """Exclusive work is killed before its lease ends. The driver's watchdog enforces this even if the agent is dead."""
    left_s = lease.expires_mono_s - WATCHDOG_LEAD_S - now.mono_s
    if left_s <= 0:
        return TaskDecision(StopTask(max(0.0, left_s + WATCHDOG_LEAD_S - WATCHDOG_KILL_LEAD_S), Reason.LEASE_EXPIRED))
    return TaskDecision(recheck_in_s=left_s if again_in_s is None else min(left_s, again_in_s))


def _decide_ended(binding: Binding, local: TaskObservation, lease: LeaseState, now: Now) -> TaskDecision:
    finished = final_phase(binding, local)
    if finished is not None:
        return TaskDecision(Acknowledge(finished, local.exit or ExitStatus()))
    wait_s = local.ended_mono_s + restart_backoff_s(local.failures) - now.mono_s
    if wait_s > 0:
        return TaskDecision(recheck_in_s=wait_s)
    return TaskDecision(StartTask(run=local.run + 1)) if _can_start(binding, lease, now) else _NO_ACTION


def final_phase(binding: Binding, local: TaskObservation) -> Phase | None:
    """Succeeded or Failed if the ended run was the last one; None if it is to be restarted or was stopped."""
    if local.state is not TaskState.ENDED or local.exit is None or not _ended_by_itself(local, local.exit):
        return None
    policy = binding.spec.template.restart_policy
    if policy is RestartPolicy.ALWAYS or local.exit.reason in _WAITS_FOR_CONFIG:
        return None
    if local.exit.code == 0 and not local.stop_reason:
        return Phase.SUCCEEDED
    if policy is RestartPolicy.NEVER or local.failures > RESTARTS_ON_FAILURE_MAX:
        return Phase.FAILED
    return None


def _ended_by_itself(local: TaskObservation, exit_: ExitStatus) -> bool:
    """Whether the run ended by itself or by a failed probe, rather than by a stop or before it started."""
    stop_requested = local.stop_reason not in ("", Reason.STARTUP_FAILED, Reason.LIVENESS_FAILED)
    return not stop_requested and exit_.reason not in _EXTERNAL_EXITS


def failures_after_exit(local: TaskObservation, exit_: ExitStatus, stop_reason: str, now: Now) -> int:
    """Consecutive runs that ended too soon. A long run resets the count; stops by the agent do not count."""
    if exit_.reason == Reason.NEVER_STARTED:
        return local.failures
    if exit_.reason in _WAITS_FOR_CONFIG:
        return CONFIG_RETRY_FAILURES
    if exit_.reason == Reason.KILLED and exit_.code is None:
        return max(1, local.failures)  # the shim or the node failed, not the task; still no hot restart loop
    if stop_reason not in ("", Reason.STARTUP_FAILED, Reason.LIVENESS_FAILED) or exit_.reason in _EXTERNAL_EXITS:
        return 0
    ran_s = now.mono_s - local.started_mono_s if local.started_mono_s else 0.0
    return 1 if ran_s >= RESTART_BACKOFF_RESET_S else local.failures + 1


def assumed_failures(run: int, policy: RestartPolicy) -> int:
    """Failures to assume for a discovered task: the agent persists the number of runs, not of failures.

    A task that always restarts may have collected its runs over months, so few failures are assumed. A task that may
    fail permanently must not get extra attempts, so every earlier run counts as a failure.
    """
    return min(run - 1, ADOPTED_FAILURES_MAX) if policy is RestartPolicy.ALWAYS else run - 1


def restart_backoff_s(failures: int) -> float:
    """1, 2, 4, … seconds, bounded. Without jitter: the tasks of one node are too few for a thundering herd."""
    if failures <= 0:
        return 0.0
    doublings = min(failures - 1, 32)
    return min(RESTART_BACKOFF_MAX_S, RESTART_BACKOFF_FIRST_S * 2.0**doublings)
