"""Common frame of all drills: records changes, keeps the clock, checks invariants, undoes changes and reports.

- All changes of a drill are undone in reverse order, however the drill ends. The cleanup check runs last.
- The answers of the report are computed only from recorded data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.cli.drills import answers, history_checks, meters
from holdfast.cli.drills.chronicle import Chronicle, Step
from holdfast.cli.drills.leftovers import leftovers
from holdfast.cli.drills.outage import region_of
from holdfast.cli.drills.report import Report, SixAnswers
from holdfast.cli.drills.world import Item, Watcher, violations, violations_in_regions
from holdfast.cli.exits import Exit, Stop
from holdfast.cli.platform.layout import Layout
from holdfast.model.times import parse_time

LOOK_EVERY_S = 0.25
CHECK_EVERY_S = 2.0
# Time for the platform to return all resources after a drill. Resources that remain are reported, and the drill fails.
CLEAN_WITHIN_S = 90.0
# Delay before the report, so that watches deliver the last changes.
LAST_WORDS_S = 0.5
# The failure starts after REST_S without a controller decision, at the latest after REST_WITHIN_S.
REST_S = 1.0
REST_WITHIN_S = 10.0


class Incident:
    """One running drill."""

    def __init__(self, layout: Layout, region: str, *, timeout_s: float, say: Callable[[str], None]) -> None:
        self.layout = layout
        self.platform = layout.load()
        self.plan = region_of(self.platform, region)
        self.region = region
        self.timeout_s = timeout_s
        self.say = say
        self.watcher = Watcher(layout, self.platform)
        self.clock: dict[str, float] = {}
        self.violations: list[str] = []
        self.failures: list[str] = []
        self.facts: dict[str, Any] = {"region": region}
        self.held: list[str] = []
        self.struck_s = 0.0
        self._chronicle = Chronicle(layout, self.platform)
        self._undoing: list[tuple[str, Callable[[], None]]] = []
        self._before: meters.Readings = {}
        self._undone_s = 0.0
        self._checks = 0
        self._checked_mono_s = 0.0

    # While it runs

    def begin(self) -> None:
        self.check_whole()
        self._chronicle.begin()
        self._before = meters.read(self.watcher)

    def check_whole(self) -> None:
        """Raises unless all services serve and all resources of earlier incidents are returned."""
        for workload in self.watcher.list("workloads"):
            summary = workload.get("status", {}).get("summary", {})
            service = workload["spec"].get("type", "Service") == "Service"
            if service and summary.get("serving", 0) < workload["spec"]["replicas"]:
                name = f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"
                raise Stop(
                    f"workload {name}: not fully serving; a drill needs a healthy platform (expected "
                    f"{workload['spec']['replicas']} replicas, found {summary.get('serving', 0)})",
                    next_step=f"holdfast explain {name}",
                    code=Exit.CONFLICT,
                )
        left = leftovers(self.watcher)
        if left:
            text = f"{left[0]}: not returned after an earlier incident"
            raise Stop(text, next_step="holdfast cleanup-check", code=Exit.CONFLICT)

    def struck(self, what: str) -> None:
        """Starts the clock of the failure. First waits until controllers are idle, so that later changes are reactions
        to the failure."""
        deadline = time.monotonic() + REST_WITHIN_S
        while time.monotonic() < deadline:
            recent = self._chronicle.steps(since_s=self._chronicle.now_s() - REST_S)
            if not any(answers.decided(step) for step in recent):
                break
            time.sleep(LOOK_EVERY_S)
        self.struck_s = self._chronicle.now_s()
        self.clock.clear()
        self.say(f"   0.0 s  {what}")

    def now_s(self) -> float:
        return self._chronicle.now_s() - self.struck_s

    def wall_s(self) -> float:
        """Wall-clock time, to compare with timestamps in objects."""
        return time.time()

    def mark(self, stage: str) -> None:
        if stage not in self.clock:
            self.clock[stage] = round(self.now_s(), 2)
            self.say(f"{self.clock[stage]:6.1f} s  {stage}")

    def until(
        self, stage: str, true: Callable[[], bool], *, within_s: float = 0.0, every_s: float = LOOK_EVERY_S
    ) -> bool:
        """Polls until `true()` holds and marks the stage. Records a failure on timeout. Checks invariants meanwhile."""
        deadline = time.monotonic() + (within_s or self.timeout_s)
        while True:
            try:
                if true():
                    self.mark(stage)
                    return True
            except Stop as stop:
                if stop.code is not Exit.UNREACHABLE:
                    raise
            if time.monotonic() >= deadline:
                self.failures.append(f"not reached within {within_s or self.timeout_s:.0f} s: {stage}")
                return False
            if every_s == LOOK_EVERY_S and time.monotonic() - self._checked_mono_s >= CHECK_EVERY_S:
                self.check()
            time.sleep(every_s)

    def check(self) -> None:
        """Checks invariants S1 to S3 on the stored objects of all reachable cells."""
        self._checked_mono_s = time.monotonic()
        try:
            found = violations(self.watcher)
        except Stop:
            found = violations_in_regions(self.watcher)
        self._checks += 1
        self.violations += [v for v in found if v not in self.violations]

    def expect(self, true: object, otherwise: str) -> None:
        if not true:
            self.failures.append(otherwise)

    def hold(self, promise: str, found: list[str], looked: int) -> None:
        """Records the result of an invariant check: its violations and the number of checked versions."""
        self.violations += [v for v in found if v not in self.violations]
        self.held.append(f"{promise}: {looked} recorded version(s) checked, {len(found)} violation(s)")

    def steps(self) -> list[Step]:
        """Changes recorded since the failure."""
        return self._chronicle.steps(since_s=self.struck_s)

    def moved(self) -> meters.Readings:
        return meters.moved(self._before, meters.read(self.watcher))

    def undo_with(self, what: str, undo: Callable[[], None]) -> None:
        """Registers how to undo a change. Called before the change is made."""
        self._undoing.append((what, undo))

    # The end

    def undo(self) -> None:
        self._undone_s = self._chronicle.now_s() - self.struck_s
        while self._undoing:
            what, undo = self._undoing.pop()
            try:
                undo()
            except Stop as stop:
                self.failures.append(f"undo of {what} failed: {stop.what}")
            except Exception as error:  # the remaining changes must be undone too
                self.failures.append(f"undo of {what} failed: {type(error).__name__}: {error}")

    def close(self) -> None:
        self._chronicle.end()
        self.watcher.close()

    def cleaned(self) -> list[str]:
        """Waits until all resources are returned and all services serve. Returns the ones that remain."""
        deadline = time.monotonic() + CLEAN_WITHIN_S
        left = ["not checked"]
        while left and time.monotonic() < deadline:
            try:
                left = leftovers(self.watcher) or self._not_whole()
            except Stop as stop:
                left = [stop.what]
            if left:
                time.sleep(2 * LOOK_EVERY_S)
        self.mark("all serve, all resources returned") if not left else None
        return left

    def _not_whole(self) -> list[str]:
        short = []
        for workload in self.watcher.list("workloads"):
            summary = workload.get("status", {}).get("summary", {})
            service = workload["spec"].get("type", "Service") == "Service"
            if service and summary.get("serving", 0) < workload["spec"]["replicas"]:
                short.append(f"workload/{workload['metadata']['name']}: {summary.get('serving', 0)} serving")
        return short

    def report(self, name: str, left: list[str]) -> Report:
        time.sleep(LAST_WORDS_S)
        self.check()
        steps = self.steps()
        for promise, found in (
            ("S1, one live binding per replica", history_checks.unique_bindings(steps)),
            ("S10, decisions are immutable", history_checks.kept_decisions(steps)),
            ("attempts only increase", history_checks.attempts_rise(steps)),
        ):
            self.hold(promise, *found)
        shifted = [_since(step, self.struck_s) for step in steps]
        before_undo = [step for step in shifted if step.at_s <= self._undone_s]
        now = f"S1, S2 and S3 on the stored objects of every cell, {self._checks} time(s)"
        return Report(
            drill=name,
            passed=not self.failures and not self.violations and not left,
            clock=self.clock,
            violations=self.violations,
            failures=self.failures,
            leftovers=left,
            facts={**self.facts, "recordedChanges": len(steps)},
            answers=SixAnswers(
                desired_state_changed=answers.desired_state(before_undo),
                acted_first=answers.acted_first(before_undo),
                partial_progress=answers.partial_progress(before_undo),
                invariant_held=[f"{now}: {len(self.violations)} violation(s) in all", *self.held],
                telemetry=answers.telemetry(self.moved(), self._events(), shifted),
                way_back=answers.way_back(shifted, left),
            ),
        )

    def _events(self) -> list[tuple[str, Item]]:
        since = self._chronicle.began_at + self.struck_s - 1.0
        found = []
        for cell in ("global", *self.watcher.regions):
            for event in self.watcher.events(cell):
                if event.get("lastTimestamp") and parse_time(event["lastTimestamp"]) >= since:
                    found.append((cell, event))
        return found


def _since(step: Step, struck_s: float) -> Step:
    return msgspec.structs.replace(step, at_s=step.at_s - struck_s)
