"""Common frame of all drills: records changes, times the stages, checks invariants, undoes changes and reports.

- All changes of a drill are undone in reverse order, however the drill ends. The cleanup check runs last.
- The answers of the report are computed only from recorded data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.drills import counters, history_checks, incident_questions
from holdfast.drills.change_recorder import ChangeRecorder, RecordedChange
from holdfast.drills.outage import region_plan
from holdfast.drills.platform_observer import Item, PlatformObserver, regional_violations, violations
from holdfast.drills.report import DrillReport, IncidentAnswers
from holdfast.drills.unreturned_resources import unreturned_resources
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.times import parse_time
from holdfast.platform.layout import Layout

POLL_EVERY_S = 0.25
CHECK_EVERY_S = 2.0
# Time for the platform to return all resources after a drill. Resources that remain are reported, and the drill fails.
CLEANUP_TIMEOUT_S = 90.0
# Delay before the report, so that watches deliver the last changes.
WATCH_DELAY_S = 0.5
# The failure starts after REST_S without a controller decision, at the latest after REST_WITHIN_S.
QUIET_S = 1.0
QUIET_TIMEOUT_S = 10.0


class DrillRun:
    """One running drill."""

    def __init__(self, layout: Layout, region: str, *, timeout_s: float, say: Callable[[str], None]) -> None:
        self.layout = layout
        self.platform = layout.load()
        self.plan = region_plan(self.platform, region)
        self.region = region
        self.timeout_s = timeout_s
        self.say = say
        self.observer = PlatformObserver(layout, self.platform)
        self.clock: dict[str, float] = {}
        self.violations: list[str] = []
        self.failures: list[str] = []
        self.facts: dict[str, Any] = {"region": region}
        self.invariants_held: list[str] = []
        self.failure_s = 0.0
        self._recorder = ChangeRecorder(layout, self.platform)
        self._undoing: list[tuple[str, Callable[[], None]]] = []
        self._before: counters.CounterReadings = {}
        self._undone_s = 0.0
        self._checks = 0
        self._checked_mono_s = 0.0

    # While it runs

    def start(self) -> None:
        self.require_healthy_platform()
        self._recorder.start()
        self._before = counters.read_counters(self.observer)

    def require_healthy_platform(self) -> None:
        """Raises unless all services serve and all resources of earlier incidents are returned."""
        for workload in self.observer.list("workloads"):
            summary = workload.get("status", {}).get("summary", {})
            service = workload["spec"].get("type", "Service") == "Service"
            if service and summary.get("serving", 0) < workload["spec"]["replicas"]:
                name = f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"
                raise CommandError(
                    f"workload {name}: not fully serving; a drill needs a healthy platform (expected "
                    f"{workload['spec']['replicas']} replicas, found {summary.get('serving', 0)})",
                    next_step=f"holdfast explain {name}",
                    code=ExitCode.CONFLICT,
                )
        left = unreturned_resources(self.observer)
        if left:
            text = f"{left[0]}: not returned after an earlier incident"
            raise CommandError(text, next_step="holdfast cleanup-check", code=ExitCode.CONFLICT)

    def failure_starts(self, subject: str) -> None:
        """Starts the timing of stages. First waits until controllers are idle, so that later changes are reactions to
        the failure."""
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while time.monotonic() < deadline:
            recent = self._recorder.changes(since_s=self._recorder.now_s() - QUIET_S)
            if not any(incident_questions.is_controller_decision(step) for step in recent):
                break
            time.sleep(POLL_EVERY_S)
        self.failure_s = self._recorder.now_s()
        self.clock.clear()
        self.say(f"   0.0 s  {subject}")

    def now_s(self) -> float:
        return self._recorder.now_s() - self.failure_s

    def wall_s(self) -> float:
        """Wall-clock time, to compare with timestamps in objects."""
        return time.time()

    def mark(self, stage: str) -> None:
        if stage not in self.clock:
            self.clock[stage] = round(self.now_s(), 2)
            self.say(f"{self.clock[stage]:6.1f} s  {stage}")

    def wait_until(
        self, stage: str, true: Callable[[], bool], *, within_s: float = 0.0, every_s: float = POLL_EVERY_S
    ) -> bool:
        """Polls until `true()` holds and marks the stage. Records a failure on timeout. Checks invariants meanwhile."""
        deadline = time.monotonic() + (within_s or self.timeout_s)
        while True:
            try:
                if true():
                    self.mark(stage)
                    return True
            except CommandError as stop:
                if stop.code is not ExitCode.UNREACHABLE:
                    raise
            if time.monotonic() >= deadline:
                self.failures.append(f"not reached within {within_s or self.timeout_s:.0f} s: {stage}")
                return False
            if every_s == POLL_EVERY_S and time.monotonic() - self._checked_mono_s >= CHECK_EVERY_S:
                self.check()
            time.sleep(every_s)

    def check(self) -> None:
        """Checks invariants S1 to S3 on the stored objects of all reachable cells."""
        self._checked_mono_s = time.monotonic()
        try:
            found = violations(self.observer)
        except CommandError:
            found = regional_violations(self.observer)
        self._checks += 1
        self.violations += [v for v in found if v not in self.violations]

    def expect(self, true: object, otherwise: str) -> None:
        if not true:
            self.failures.append(otherwise)

    def record_invariant(self, invariant: str, found: list[str], checked: int) -> None:
        """Records the result of an invariant check: its violations and the number of checked versions."""
        self.violations += [v for v in found if v not in self.violations]
        self.invariants_held.append(f"{invariant}: {checked} recorded version(s) checked, {len(found)} violation(s)")

    def changes(self) -> list[RecordedChange]:
        """Changes recorded since the failure."""
        return self._recorder.changes(since_s=self.failure_s)

    def counter_increases(self) -> counters.CounterReadings:
        return counters.counter_increases(self._before, counters.read_counters(self.observer))

    def add_undo(self, subject: str, undo: Callable[[], None]) -> None:
        """Registers how to undo a change. Called before the change is made."""
        self._undoing.append((subject, undo))

    # The end

    def undo(self) -> None:
        self._undone_s = self._recorder.now_s() - self.failure_s
        while self._undoing:
            subject, undo = self._undoing.pop()
            try:
                undo()
            except CommandError as stop:
                self.failures.append(f"undo of {subject} failed: {stop.message}")
            except Exception as error:  # the remaining changes must be undone too
                self.failures.append(f"undo of {subject} failed: {type(error).__name__}: {error}")

    def close(self) -> None:
        self._recorder.stop()
        self.observer.close()

    def unreturned_after_cleanup(self) -> list[str]:
        """Waits until all resources are returned and all services serve. Returns the ones that remain."""
        deadline = time.monotonic() + CLEANUP_TIMEOUT_S
        left = ["not checked"]
        while left and time.monotonic() < deadline:
            try:
                left = unreturned_resources(self.observer) or self._workloads_not_serving()
            except CommandError as stop:
                left = [stop.message]
            if left:
                time.sleep(2 * POLL_EVERY_S)
        self.mark("all serve, all resources returned") if not left else None
        return left

    def _workloads_not_serving(self) -> list[str]:
        short = []
        for workload in self.observer.list("workloads"):
            summary = workload.get("status", {}).get("summary", {})
            service = workload["spec"].get("type", "Service") == "Service"
            if service and summary.get("serving", 0) < workload["spec"]["replicas"]:
                short.append(f"workload/{workload['metadata']['name']}: {summary.get('serving', 0)} serving")
        return short

    def report(self, name: str, left: list[str]) -> DrillReport:
        time.sleep(WATCH_DELAY_S)
        self.check()
        steps = self.changes()
        for invariant, found in (
            ("S1, one live binding per replica", history_checks.check_unique_bindings(steps)),
            ("S10, decisions are immutable", history_checks.check_immutable_decisions(steps)),
            ("attempts only increase", history_checks.check_attempts_increase(steps)),
        ):
            self.record_invariant(invariant, *found)
        shifted = [_since(step, self.failure_s) for step in steps]
        before_undo = [step for step in shifted if step.at_s <= self._undone_s]
        now = f"S1, S2 and S3 on the stored objects of every cell, {self._checks} time(s)"
        return DrillReport(
            drill=name,
            passed=not self.failures and not self.violations and not left,
            clock=self.clock,
            violations=self.violations,
            failures=self.failures,
            unreturned=left,
            facts={**self.facts, "recordedChanges": len(steps)},
            answers=IncidentAnswers(
                desired_state_changed=incident_questions.desired_state_changes(before_undo),
                acted_first=incident_questions.first_controllers(before_undo),
                partial_progress=incident_questions.partial_progress(before_undo),
                invariant_held=[f"{now}: {len(self.violations)} violation(s) in all", *self.invariants_held],
                telemetry=incident_questions.telemetry_lines(self.counter_increases(), self._events(), shifted),
                recovery_path=incident_questions.recovery_path(shifted, left),
            ),
        )

    def _events(self) -> list[tuple[str, Item]]:
        since = self._recorder.began_at + self.failure_s - 1.0
        found = []
        for cell in ("global", *self.observer.regions):
            for event in self.observer.events(cell):
                if event.get("lastTimestamp") and parse_time(event["lastTimestamp"]) >= since:
                    found.append((cell, event))
        return found


def _since(step: RecordedChange, struck_s: float) -> RecordedChange:
    return msgspec.structs.replace(step, at_s=step.at_s - struck_s)
