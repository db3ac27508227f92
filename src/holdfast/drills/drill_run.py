"""Common frame of all drills: records changes, times the stages, checks invariants, undoes changes and reports.

- All changes of a drill are undone in reverse order, however the drill ends. The cleanup check runs last.
- The answers of the report are computed only from recorded data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec

from holdfast.client.sync_api import ApiRefusal
from holdfast.drills import audited_writers, counters, history_checks, incident_questions
from holdfast.drills.change_recorder import ChangeRecorder, RecordedChange
from holdfast.drills.outage import region_plan
from holdfast.drills.platform_observer import Item, PlatformObserver, UsedBefore, regional_violations, violations
from holdfast.drills.recovery_path import recovery_path
from holdfast.drills.report import DrillReport, HistoryJudgement, IncidentAnswers, not_reached_text
from holdfast.drills.shortfalls import service_shortfall, shortfalls
from holdfast.drills.unreturned_resources import unreturned_resources
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.times import micro_text, parse_time
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
# Time for the override controller to record a revocation before an override is deleted.
OVERRIDE_END_WITHIN_S = 10.0
ENDED_OVERRIDE_PHASES = ("Expired", "Revoked")


class DrillRun:
    """One running drill."""

    def __init__(
        self,
        layout: Layout,
        region: str,
        *,
        timeout_s: float,
        say: Callable[[str], None],
        judge: Callable[[float, float], HistoryJudgement],
    ) -> None:
        """`judge` checks the recorded history of all cells since a wall-clock time, at rest at another."""
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
        self.global_cell_down = False
        """Whether the drill has stopped the global cell, so that only the regions can be checked."""
        self._recorder = ChangeRecorder(layout, self.platform)
        self._undoing: list[tuple[str, Callable[[], None]]] = []
        self._before: counters.CounterReadings = {}
        self._judge = judge
        self._undone_s = 0.0
        self._undone: list[str] = []
        self._increases: counters.CounterReadings = {}
        self._events_seen: list[tuple[str, Item]] = []
        self._checks = 0
        self._used: UsedBefore = {}
        self._checked_mono_s = 0.0

    # While it runs

    def start(self) -> None:
        self.require_healthy_platform()
        self._recorder.start()
        self._before = counters.read_counters(self.observer)

    def require_healthy_platform(self) -> None:
        """Raises unless all services serve and all resources of earlier incidents are returned."""
        short = self._workloads_not_serving()
        if short:
            raise CommandError(
                f"workload {short[0]}; a drill needs a healthy platform",
                next_step=f"holdfast explain {short[0].partition(':')[0]}",
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
                late = not_reached_text(stage, within_s or self.timeout_s)
                self.failures.append("; ".join((late, *self._shortfalls())))
                return False
            if every_s == POLL_EVERY_S and time.monotonic() - self._checked_mono_s >= CHECK_EVERY_S:
                self.check()
            time.sleep(every_s)

    def _shortfalls(self) -> list[str]:
        """The workloads that lack replicas now; none if the global cell does not answer."""
        try:
            healthy = self.observer.get("regions", self.region)["status"].get("health", {}).get("state") == "Healthy"
            return shortfalls(
                self.observer.list("workloads"),
                self.observer.list("recoveries"),
                lost_region="" if healthy else self.region,
            )
        except CommandError as stop:
            return [f"workloads unknown: {stop.message}"]

    def check(self) -> None:
        """Checks invariants S1 to S3 on the stored objects of all reachable cells."""
        self._checked_mono_s = time.monotonic()
        try:
            judge = regional_violations if self.global_cell_down else violations
            found = judge(self.observer, self._used)
        except CommandError:
            found = regional_violations(self.observer, self._used)
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

    def remove_override(self, name: str) -> None:
        """Revokes an override that is in force, and deletes it once it has ended."""
        api, path = self.observer.api(), f"/apis/holdfast.dev/v1/overrides/{name}"
        try:
            found = api.get(path)
            if found.get("status", {}).get("phase", "") not in ENDED_OVERRIDE_PHASES:
                api.request("PATCH", path, {"spec": {"revoked": True}}, content_type="application/merge-patch+json")
            deadline = time.monotonic() + OVERRIDE_END_WITHIN_S
            while api.get(path).get("status", {}).get("phase", "") not in ENDED_OVERRIDE_PHASES:
                if time.monotonic() >= deadline:
                    return  # it is revoked; the override controller deletes it later
                time.sleep(0.2)
            api.request("DELETE", path)
        except ApiRefusal as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND:
                raise

    # The end

    def undo(self) -> None:
        time.sleep(WATCH_DELAY_S)
        self._undone_s = self._recorder.now_s() - self.failure_s
        self._increases, self._events_seen = self.counter_increases(), self._events()
        while self._undoing:
            subject, undo = self._undoing.pop()
            self._undone.append(subject)
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
        return [text for workload in self.observer.list("workloads") for text in service_shortfall(workload)]

    def report(self, name: str, left: list[str]) -> DrillReport:
        time.sleep(WATCH_DELAY_S)
        self.check()
        began_at = self._recorder.began_at
        authors = audited_writers.read_authors(self.layout, self.platform, since_s=began_at)
        every = audited_writers.with_authors(self._recorder.changes(), authors, began_at=began_at)
        steps = [_since(step, self.failure_s) for step in every if step.at_s >= self.failure_s]
        before_undo = [step for step in steps if step.at_s <= self._undone_s]
        self._check_history(steps, left)
        started_at = began_at + self.failure_s
        return DrillReport(
            drill=name,
            passed=not self.failures and not self.violations and not left,
            started_at=micro_text(started_at),
            undone_at=micro_text(started_at + self._undone_s),
            clock=self.clock,
            violations=self.violations,
            failures=self.failures,
            unreturned=left,
            facts={**self.facts, "recordedChanges": len(steps), "omittedChanges": self._recorder.omitted},
            answers=IncidentAnswers(
                desired_state_changed=incident_questions.desired_state_changes(before_undo),
                acted_first=incident_questions.first_controllers(before_undo),
                partial_progress=incident_questions.partial_progress(before_undo),
                invariant_held=self.invariants_held,
                telemetry=incident_questions.telemetry_lines(self._increases, self._events_seen, before_undo),
                recovery_path=recovery_path(before_undo, self._increases, self._undone, left),
            ),
        )

    def _check_history(self, steps: list[RecordedChange], left: list[str]) -> None:
        """Checks every invariant that the stores' histories show, and those that the watches showed."""
        own = list(self.invariants_held)
        self.invariants_held.clear()
        at_rest_s = 0.0 if left else time.time()
        judgement = self._judge(self._recorder.began_at + self.failure_s, at_rest_s)
        self.violations += [v for v in judgement.violations if v not in self.violations]
        self.invariants_held += judgement.lines()
        now = f"S1, S2 and S3 on the stored objects of every cell, {self._checks} time(s)"
        self.invariants_held.append(f"{now}: {len(self.violations)} violation(s) in all")
        for invariant, found in (
            ("S1, one live binding per replica", history_checks.check_unique_bindings(steps)),
            ("S10, decisions are immutable", history_checks.check_immutable_decisions(steps)),
            ("attempts only increase", history_checks.check_attempts_increase(steps)),
        ):
            self.record_invariant(invariant, *found)
        self.invariants_held += own

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
