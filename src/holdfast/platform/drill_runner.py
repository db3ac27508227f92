"""Runs the drills that operators start in the console, one at a time, as `holdfast drill run` would in a terminal.

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

from holdfast.console.drill_desk import DrillDesk, DrillRequest, DrillState
from holdfast.platform.layout import Layout, Platform

# Time for a drill to undo its changes when the platform stops. After that, it is killed.
DRILL_STOP_S = 10.0


def drill_runner(layout: Layout, platform: Platform, say: Callable[[str], None]) -> DrillRunner:
    regions = frozenset(region.name for region in platform.regions)
    return DrillRunner(DrillDesk(layout.drill_desk), layout.root, regions, say)


class DrillRunner:
    """`regions` are those of the platform, whose directory is `root`."""

    def __init__(self, desk: DrillDesk, root: Path, regions: frozenset[str], say: Callable[[str], None]) -> None:
        self._desk, self._root, self._regions, self._say = desk, root, regions, say
        self._running: subprocess.Popen[bytes] | None = None
        self._listing: subprocess.Popen[bytes] | None = None
        self._state: DrillState | None = None
        self._handle: int | None = None

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
            self._end(self._state, "Passed" if code == 0 else "Failed")
        request = self._desk.take()
        if request is not None:
            self._start(request)

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
        arguments = ("drill", "run", request.name, "--region", request.region, "--state", str(self._root))
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

    def _end(self, state: DrillState, phase: str) -> None:
        self._desk.record(DrillState(state.request, phase, state.started_at, time.time()))
        self._say(f"drill {state.request.name} in {state.request.region}: {phase.lower()}")
