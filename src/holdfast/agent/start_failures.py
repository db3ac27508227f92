"""Detects a node that cannot start tasks: several failures in a row, of several workloads.

Repeated failures of one workload prove nothing about the node. The quarantine expires, and one successful start ends it
at once. Pure: time is an argument.
"""

from __future__ import annotations

from collections import deque

from holdfast.model import times
from holdfast.model.node import Quarantine
from holdfast.model.reasons import Reason

# Window in which failed starts count towards quarantine.
START_FAILURES_WINDOW_S = 600.0
# Failed starts within START_FAILURES_WINDOW_S after which the node quarantines itself.
START_FAILURES_MIN = 3
# Distinct workloads among the failed starts. One workload alone proves nothing about the node.
START_FAILURES_WORKLOADS_MIN = 2
# Duration of a quarantine. After that, the node accepts new work again.
QUARANTINE_S = 300.0

# Reasons that blame the node. A failure that a template causes is not among them: otherwise a tenant with two broken
# workloads closes every node to all tenants.
NODE_FAILURE_REASONS = frozenset({Reason.START_ERROR, Reason.DISK_FULL})


class StartFailures:
    def __init__(self) -> None:
        self._failed: deque[tuple[float, str, str]] = deque(maxlen=START_FAILURES_MIN)
        self._until_mono_s = 0.0
        self._quarantine: Quarantine | None = None

    def record_failure(self, workload: str, reason: str, message: str, *, mono_s: float, wall_s: float) -> None:
        if reason not in NODE_FAILURE_REASONS:
            return
        self._failed.append((mono_s, workload, message))
        recent = [f for f in self._failed if mono_s - f[0] <= START_FAILURES_WINDOW_S]
        workloads = sorted({f[1] for f in recent})
        if len(recent) < START_FAILURES_MIN or len(workloads) < START_FAILURES_WORKLOADS_MIN:
            return
        self._until_mono_s = mono_s + QUARANTINE_S
        self._quarantine = Quarantine(
            reason=reason,
            message=f"{len(recent)} consecutive starts failed ({', '.join(workloads)}); last error: {message}"[:500],
            until=times.seconds_text(wall_s + QUARANTINE_S),
        )

    def record_success(self) -> None:
        self._failed.clear()
        self._quarantine = None

    def quarantine(self, mono_s: float) -> Quarantine | None:
        """None once it has expired: the node may try again, and is quarantined at once if it fails again."""
        if self._quarantine is not None and mono_s >= self._until_mono_s:
            self._quarantine = None
        return self._quarantine

    def recheck_in_s(self, mono_s: float) -> float | None:
        return max(0.0, self._until_mono_s - mono_s) if self._quarantine is not None else None
