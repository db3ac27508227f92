"""What is known of a task after each step of its way: the real supervisor and the hollow one take the same steps. Pure.

Only these make the next `Local` out of the last one; carrying a step out, and telling the region, is the supervisors'.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.decide import Lease, Local, Now, State, Stop, failures_after, wish
from holdfast.model.binding import Binding
from holdfast.model.reasons import Reason
from holdfast.model.replica import Exit

BUSY = (State.STARTING, State.RUNNING, State.STOPPING)


def starting(local: Local, run: int) -> Local:
    """A new run knows nothing of the probes and the stop of the last one; its exit stays as evidence."""
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
    """Work that runs though its claim is over: a node that returns late ends it before anything else."""
    if local.state not in BUSY:
        return False
    if binding is None:
        return True
    return wish(binding, lease, now, local.until_mono_s).reason in (Reason.FENCED, Reason.NODE_LOST)
