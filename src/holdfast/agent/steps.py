"""Pure task state transitions, shared by the real and the hollow supervisor.

Only these functions derive the next TaskObservation from the last. The supervisors execute and report the transition.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.decide import Lease, Local, Now, State, Stop, failures_after, wish
from holdfast.model.binding import Binding
from holdfast.model.reasons import Reason
from holdfast.model.replica import Exit

BUSY = (State.STARTING, State.RUNNING, State.STOPPING)


def starting(local: Local, run: int) -> Local:
    """A new run starts without the probe results and the stop of the last one; the last exit stays for the report."""
    return msgspec.structs.replace(
        local, state=State.STARTING, run=run, stop_reason="", unwell="", probe_message="", startup_passed=False,
        ready=False, ready_since_s=0.0, pid=0,
    )  # fmt: skip


def running(local: Local, *, pid: int, started_at_s: float, now: Now) -> Local:
    return msgspec.structs.replace(
        local, state=State.RUNNING, pid=pid, started_at_s=started_at_s, started_mono_s=now.mono_s
    )


def stopping(local: Local, stop: Stop, now: Now) -> Local:
    return msgspec.structs.replace(
        local, state=State.STOPPING, stop_by_mono_s=now.mono_s + stop.grace_s, stop_reason=stop.reason
    )


def ended(local: Local, exit_: Exit, stop_reason: str, now: Now) -> Local:
    return msgspec.structs.replace(
        local, state=State.ENDED, exit=exit_, ended_mono_s=now.mono_s, stop_reason=stop_reason,
        failures=failures_after(local, exit_, stop_reason, now), ready=False, pid=0,
    )  # fmt: skip


def is_zombie(binding: Binding | None, local: Local, lease: Lease, now: Now) -> bool:
    """Whether the task runs although its claim has ended. A node that comes back late stops zombies first."""
    if local.state not in BUSY:
        return False
    if binding is None:
        return True
    return wish(binding, lease, now, local.until_mono_s).reason in (Reason.FENCED, Reason.NODE_LOST)
