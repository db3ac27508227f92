"""Runs the drills that operators start in the console, and those on a schedule, one at a time, as `holdfast drill run`
would in a terminal.

Owned by the supervisor: a drill may kill every other process of the platform. Only drills of the catalog and regions of
this platform are run, whatever a request names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from holdfast.console.drill_desk import DrillDesk, DrillRequest, DrillResult, DrillState
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.drill_schedule import (
    LATE_MAX_S,
    HandledTick,
    due_tick,
    read_handled,
    read_schedules,
    write_handled,
)
from holdfast.platform.layout import Layout, Platform

# Time for a drill to undo its changes when the platform stops. After that, it is killed.
DRILL_STOP_S = 10.0
# Interval at which due schedules are looked for.
SCHEDULE_LOOK_EVERY_S = 5.0


def drill_runner(layout: Layout, platform: Platform, say: Callable[[str], None]) -> DrillRunner:
    regions = frozenset(region.name for region in platform.regions)
    return DrillRunner(DrillDesk(layout.drill_desk), layout, regions, say)


class DrillRunner:
    """`regions` are those of the platform of `layout`."""

    def __init__(self, desk: DrillDesk, layout: Layout, regions: frozenset[str], say: Callable[[str], None]) -> None:
        self._desk, self._layout, self._regions, self._say = desk, layout, regions, say
        self._root: Path = layout.root
        self._next_look_s = 0.0
        self._running: subprocess.Popen[bytes] | None = None
        self._listing: subprocess.Popen[bytes] | None = None
        self._state: DrillState | None = None
        self._handle: int | None = None
        self._schedule = ""
        """Name of the schedule that started the running drill."""

    def start(self) -> None:
        self._handle = self._desk.attend()
        before = self._desk.state()
        if before is not None and before.phase == "Running":
            self._end(before, "Interrupted")  # the supervisor that ran it is gone, and its drill with it
        with self._desk.catalog_file.open("wb") as catalog:
            self._listing = self._spawn(("drill", "list", "-o", "json"), catalog, subprocess.DEVNULL)

    def tick(self) -> None:
        """Notices the end of the running drill, and starts the one that was asked for."""
        if self._listing is not None and self._listing.poll() is not None:
            self._listing = None
        if self._running is not None and self._state is not None:
            code = self._running.poll()
            if code is None:
                return
            self._running = None
            self._end(self._state, "Passed" if code == 0 else "Failed", code)
        request = self._desk.take() or self._scheduled()
        if request is not None:
            self._start(request)

    def _scheduled(self) -> DrillRequest | None:
        """The drill that is due by its schedule. Its tick is noted first: a supervisor that is killed right after it
        leaves the drill out, rather than start it twice."""
        if time.monotonic() < self._next_look_s:
            return None
        self._next_look_s = time.monotonic() + SCHEDULE_LOOK_EVERY_S
        try:
            entries = read_schedules(self._layout)
        except CommandError as stop:
            self._say(stop.message)
            return None
        handled, now = read_handled(self._layout), time.time()
        for entry in entries:
            tick = due_tick(entry, handled.get(entry.name), now)
            if tick is None:
                continue
            late = now - tick > LATE_MAX_S
            handled[entry.name] = HandledTick(tick, "Missed" if late else "Started")
            write_handled(self._layout, {e.name: handled[e.name] for e in entries if e.name in handled})
            if late:
                self._say(f"drill schedule {entry.name}: missed its time by {now - tick:.0f} s")
                continue
            self._schedule = entry.name
            return DrillRequest(f"{entry.name}-{tick:.0f}", entry.drill, entry.region, "schedule", scheduled=True)
        return None

    def _note_outcome(self, state: DrillState, phase: str, code: int | None) -> None:
        """Records the end of a drill by its schedule, and the failure of one that kept no report."""
        request = state.request
        results = self._desk.results()
        kept = [r for r in results if r.drill == request.name and r.region == request.region]
        kept = [result for result in kept if result.ended_at_s >= state.started_at]
        if phase != "Passed" and not kept:
            text = f"{phase.lower()} without a report" + (f" (exit code {code})" if code is not None else "")
            self._desk.add_result(
                DrillResult(f"run-{request.id}", request.name, request.region, False, time.time(), text)
            )
        if request.scheduled:
            handled = read_handled(self._layout)
            if (before := handled.get(self._schedule)) is not None:
                outcome = "NotStarted" if code == ExitCode.CONFLICT else phase
                write_handled(self._layout, {**handled, self._schedule: HandledTick(before.at_s, outcome)})

    def stop(self) -> None:
        if self._running is not None and self._state is not None:
            self._running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running.wait(DRILL_STOP_S)
            self._running.kill()
            self._running.wait()
            self._end(self._state, "Interrupted")
        if self._listing is not None:
            self._listing.wait()
        if self._handle is not None:
            os.close(self._handle)

    def _start(self, request: DrillRequest) -> None:
        known = {entry.name for entry in self._desk.catalog()}
        if request.name not in known or request.region not in self._regions:
            self._say(f"drill {request.name[:60]} in {request.region[:60]}: not started (unknown drill or region)")
            return
        only_if = ("--if-healthy",) if request.scheduled else ()
        arguments = ("drill", "run", request.name, "--region", request.region, "--state", str(self._root), *only_if)
        self._state = DrillState(request, "Running", time.time())
        with self._desk.report_file.open("wb") as report, self._desk.progress_file.open("wb") as progress:
            self._running = self._spawn(arguments, report, progress)
        self._desk.record(self._state)
        self._say(f"drill {request.name} in {request.region}: started for {request.user} (pid {self._running.pid})")

    def _spawn(self, arguments: tuple[str, ...], out: IO[bytes], errors: IO[bytes] | int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            (sys.executable, "-m", "holdfast.cli", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            cwd=self._root,
            start_new_session=True,
        )

    def _end(self, state: DrillState, phase: str, code: int | None = None) -> None:
        self._note_outcome(state, phase, code)
        self._desk.record(DrillState(state.request, phase, state.started_at, time.time()))
        self._say(f"drill {state.request.name} in {state.request.region}: {phase.lower()}")
