"""What an agent does about one Binding: a pure function of what is wanted, what really runs, and the lease.

The supervisor carries the answer out and asks again. Always: no start without a live lease and a live Binding of an
epoch that is not fenced; no acknowledgement of a stop while anything runs; work nobody wants is ended.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model import limits, times
from holdfast.model.binding import Binding, Desired
from holdfast.model.placement import RenewItem
from holdfast.model.reasons import Reason
from holdfast.model.replica import Exit, Phase
from holdfast.model.template import RestartPolicy
from holdfast.model.tenure import needs_tenure


class State(enum.StrEnum):
    """What the driver has of a task. STARTING and STOPPING last while a call to it is under way."""

    ABSENT = "Absent"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    ENDED = "Ended"


class Local(msgspec.Struct, frozen=True):
    """What the agent knows of one task. Times ending in `_mono_s` are of the monotonic clock."""

    state: State = State.ABSENT
    run: int = 0
    failures: int = 0
    pid: int = 0
    started_at_s: float = 0.0
    started_mono_s: float = 0.0
    ended_mono_s: float = 0.0
    exit: Exit | None = None
    stop_by_mono_s: float = 0.0
    stop_reason: str = ""
    startup_passed: bool = False
    ready: bool | None = False
    ready_since_s: float = 0.0
    unwell: str = ""
    probe_message: str = ""
    until_mono_s: float | None = None
    """`until_mono_s` is `runUntil`, counted since it was first seen: no step of the wall clock moves it.

    `ready` is None for adopted work until a probe has spoken: nothing is reported of it before.

    `unwell` is the reason a probe gives to end this run: StartupFailed or LivenessFailed.
    """


class Lease(msgspec.Struct, frozen=True):
    """Counted from the sending of the renewal that was answered. `fenced`: this epoch is over, everything must stop.

    `tenures` says until when exclusive work of scope Global may run, by the binding's uid; None before any answer.
    """

    epoch: int = 0
    until_mono_s: float = 0.0
    fenced_epoch: int = 0
    fenced: bool = False
    tenures: dict[str, float] | None = None

    def is_over(self, epoch: int) -> bool:
        """Whether the agent knows that this epoch was fenced: nothing is ever run under it again."""
        return 0 < epoch <= self.fenced_epoch

    def renewal(self, node: str) -> RenewItem:
        return RenewItem(node=node, epoch=self.epoch, above=0 if self.epoch else self.fenced_epoch)

    def with_tenures(self, answered: dict[str, float], sent_mono_s: float) -> Lease:
        """An answer that does not name a binding takes nothing back: what was given lasts until its time."""
        kept = {uid: end_s for uid, end_s in (self.tenures or {}).items() if end_s > sent_mono_s}
        for uid, seconds in answered.items():
            kept[uid] = max(kept.get(uid, 0.0), sent_mono_s + seconds)
        return msgspec.structs.replace(self, tenures=kept)

    def run_until_mono_s(self, binding: Binding) -> float:
        """Until when exclusive work may run: the node's lease, and where its scope is Global the region's tenure."""
        if not needs_tenure(binding.spec.exclusive):
            return self.until_mono_s
        return min(self.until_mono_s, (self.tenures or {}).get(binding.uid, 0.0))


class Now(msgspec.Struct, frozen=True):
    wall_s: float
    mono_s: float


class Start(msgspec.Struct, frozen=True):
    run: int


class Stop(msgspec.Struct, frozen=True):
    grace_s: float
    reason: str


class Acknowledge(msgspec.Struct, frozen=True):
    """The work is over, or never was: the node holds nothing of this Binding any more."""

    phase: Phase
    exit: Exit


class Forget(msgspec.Struct, frozen=True):
    pass


Action = Start | Stop | Acknowledge | Forget


class Verdict(msgspec.Struct, frozen=True):
    action: Action | None = None
    again_in_s: float | None = None


_NOTHING = Verdict()
ADOPTED_FAILURES_MAX = 3

# Ends the work did not bring about. An agent that died in the middle of a stop leaves the second kind behind.
_NOT_ITS_OWN = (Reason.NEVER_STARTED, Reason.STOPPED_AS_ASKED, Reason.LEASE_LAPSED, Reason.PROVISIONAL_ENDED)


class Wish(msgspec.Struct, frozen=True):
    """`run` False means that the work must not run; with `keeps_binding` its end is then acknowledged."""

    run: bool
    keeps_binding: bool = True
    grace_s: float = 0.0
    reason: str = ""
    again_in_s: float | None = None


def wish(binding: Binding | None, lease: Lease, now: Now, until_mono_s: float | None = None) -> Wish:
    """What is wanted of the work now, all rules considered, the most urgent first."""
    if binding is None:
        return Wish(run=False, keeps_binding=False, reason=Reason.DELETED)
    spec = binding.spec
    if 0 < spec.node_epoch <= lease.fenced_epoch:
        return Wish(run=False, reason=Reason.FENCED)
    if spec.quota_released:
        return Wish(run=False, reason=Reason.NODE_LOST)
    if spec.desired is Desired.STOP:
        grace_s = spec.stop_grace_seconds or spec.template.termination_grace_seconds
        return Wish(run=False, grace_s=grace_s, reason=spec.stop_reason or Reason.STOPPED_AS_ASKED)
    if spec.run_until:
        end_mono_s = until_mono_s if until_mono_s is not None else run_until_mono_s(binding, now)
        left_s = end_mono_s - now.mono_s
        if left_s <= 0:
            return Wish(run=False, reason=Reason.PROVISIONAL_ENDED)
        return Wish(run=True, again_in_s=left_s)
    return Wish(run=True)


def run_until_mono_s(binding: Binding, now: Now) -> float:
    """The moment of `runUntil` on the monotonic clock, as the two clocks stand now."""
    return now.mono_s + times.parse_time(binding.spec.run_until) - now.wall_s


def _may_start(binding: Binding, lease: Lease, now: Now) -> bool:
    """Exclusive work is started only with time to spare: its watchdog ends it some seconds before the lease does."""
    spare_s = 2 * limits.WATCHDOG_LEAD_S if binding.spec.exclusive is not None else 0.0
    until_mono_s = lease.run_until_mono_s(binding) if binding.spec.exclusive is not None else lease.until_mono_s
    return until_mono_s > now.mono_s + spare_s


def decide(binding: Binding | None, local: Local, lease: Lease, now: Now) -> Verdict:
    wanted = wish(binding, lease, now, local.until_mono_s)
    if local.state is State.STARTING:
        return _NOTHING  # the driver's answer asks again
    if local.state is State.STOPPING:
        return _hasten(wanted, local, lease, now)
    if binding is None:
        if local.state is State.RUNNING:
            return Verdict(Stop(0.0, wanted.reason))
        return Verdict(Forget())
    if not wanted.run:
        return _unwanted(binding, wanted, local)
    if local.state is State.RUNNING:
        return _running(binding, wanted, local, lease, now)
    if binding.status.acknowledged_at:
        return _NOTHING  # it ended for good, and the region knows
    if local.state is State.ABSENT:
        return Verdict(Start(run=1)) if _may_start(binding, lease, now) else _NOTHING
    return _ended(binding, local, lease, now)


def decide_unlisted(exclusive: bool, local: Local, lease: Lease, now: Now) -> Verdict:
    """Before the region has said what is bound here: found work runs on, except where even that is not safe."""
    if local.state is not State.RUNNING:
        return _NOTHING
    if lease.fenced:
        return Verdict(Stop(0.0, Reason.FENCED))
    return _while_leased(lease, now, None) if exclusive else _NOTHING


def _hasten(wanted: Wish, local: Local, lease: Lease, now: Now) -> Verdict:
    """A stop under way may become more urgent, never less."""
    if lease.fenced and now.mono_s < local.stop_by_mono_s:
        return Verdict(Stop(0.0, Reason.FENCED))
    if not wanted.run and now.mono_s + wanted.grace_s < local.stop_by_mono_s:
        return Verdict(Stop(wanted.grace_s, wanted.reason))
    return _NOTHING


def _unwanted(binding: Binding, wanted: Wish, local: Local) -> Verdict:
    if local.state is State.RUNNING:
        return Verdict(Stop(wanted.grace_s, wanted.reason))
    if binding.status.acknowledged_at:
        return _NOTHING
    if local.exit is None or (local.run <= 1 and local.exit.reason == Reason.NEVER_STARTED):
        message = "the work was withdrawn before it was started"
        return Verdict(Acknowledge(Phase.STOPPED, Exit(reason=Reason.NEVER_STARTED, message=message)))
    return Verdict(Acknowledge(outcome(binding, local) or Phase.STOPPED, local.exit))


def _running(binding: Binding, wanted: Wish, local: Local, lease: Lease, now: Now) -> Verdict:
    if lease.fenced:
        return Verdict(Stop(0.0, Reason.FENCED))
    if local.unwell:
        return Verdict(Stop(binding.spec.template.termination_grace_seconds, local.unwell))
    if binding.spec.exclusive is None:
        return Verdict(again_in_s=wanted.again_in_s)
    if lease.tenures is not None:
        # Until the first answer its watchdog keeps the tenure that was given to the agent before this one.
        lease = msgspec.structs.replace(lease, until_mono_s=lease.run_until_mono_s(binding))
    return _while_leased(lease, now, wanted.again_in_s)


def _while_leased(lease: Lease, now: Now, again_in_s: float | None) -> Verdict:
    """Exclusive work ends before the lease does; its driver's watchdog sees to it should this agent not be able to."""
    left_s = lease.until_mono_s - limits.WATCHDOG_LEAD_S - now.mono_s
    if left_s <= 0:
        return Verdict(Stop(max(0.0, left_s + limits.WATCHDOG_LEAD_S - limits.WATCHDOG_FORCE_S), Reason.LEASE_LAPSED))
    return Verdict(again_in_s=left_s if again_in_s is None else min(left_s, again_in_s))


def _ended(binding: Binding, local: Local, lease: Lease, now: Now) -> Verdict:
    finished = outcome(binding, local)
    if finished is not None:
        return Verdict(Acknowledge(finished, local.exit or Exit()))
    wait_s = local.ended_mono_s + restart_pause_s(local.failures) - now.mono_s
    if wait_s > 0:
        return Verdict(again_in_s=wait_s)
    return Verdict(Start(run=local.run + 1)) if _may_start(binding, lease, now) else _NOTHING


def outcome(binding: Binding, local: Local) -> Phase | None:
    """Succeeded or Failed when the ended run was the last; None when it is to be started again, or was stopped."""
    if local.state is not State.ENDED or local.exit is None or not _own_end(local):
        return None
    policy = binding.spec.template.restart_policy
    if policy is RestartPolicy.ALWAYS:
        return None
    if local.exit.code == 0 and not local.stop_reason:
        return Phase.SUCCEEDED
    if policy is RestartPolicy.NEVER or local.failures > limits.RESTARTS_ON_FAILURE_MAX:
        return Phase.FAILED
    return None


def _own_end(local: Local) -> bool:
    """Whether the run ended by itself or by its probes, not because it was asked to or never began."""
    asked = local.stop_reason not in ("", Reason.STARTUP_FAILED, Reason.LIVENESS_FAILED)
    return not asked and local.exit is not None and local.exit.reason not in _NOT_ITS_OWN


def failures_after(local: Local, exit_: Exit, stop_reason: str, now: Now) -> int:
    """How many runs in a row have ended too soon. A long run starts the count anew; our own stops do not count."""
    if exit_.reason == Reason.NEVER_STARTED:
        return local.failures
    if exit_.reason == Reason.KILLED and exit_.code is None:
        return max(1, local.failures)  # its shim or the node went down: not the work's doing, but no hot loop either
    if stop_reason not in ("", Reason.STARTUP_FAILED, Reason.LIVENESS_FAILED) or exit_.reason in _NOT_ITS_OWN:
        return 0
    ran_s = now.mono_s - local.started_mono_s if local.started_mono_s else 0.0
    return 1 if ran_s >= limits.RESTART_BACKOFF_RESET_S else local.failures + 1


def failures_adopted(run: int, policy: RestartPolicy) -> int:
    """How many failures to assume of work found running: they are not remembered, only its runs are.

    Work that is always restarted may have had its runs over months, so few are assumed; for work that may fail for
    good the runs are the count.
    """
    return min(run - 1, ADOPTED_FAILURES_MAX) if policy is RestartPolicy.ALWAYS else run - 1


def restart_pause_s(failures: int) -> float:
    """1, 2, 4, … seconds, bounded. Without chance: one node's restarts are no herd."""
    if failures <= 0:
        return 0.0
    doublings = min(failures - 1, 32)
    return min(limits.RESTART_BACKOFF_MAX_S, limits.RESTART_BACKOFF_FIRST_S * 2.0**doublings)
