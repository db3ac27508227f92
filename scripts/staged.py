"""Runs named stages one after the other and reports their results.

- A stage is a list of commands; each must exit with 0. Their output goes to one log file per stage.
- The terminal shows start, end and progress of each stage, and the end of the log if a stage fails.
- A failed stage does not stop later stages. An interrupted stage ends with all its processes.
- The summary lists all requested stages, including those that were not run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

PROGRESS_EVERY_S = 60.0
LOOK_EVERY_S = 0.2
STOP_S = 120.0
"""Time for an interrupted command to stop its processes, before SIGKILL."""
TAIL_LINES = 40
TAIL_BYTES = 64 * 1024
LINE_CHARACTERS = 110

Say = Callable[[str], None]


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """`minutes` is the typical duration on two idle cores."""

    name: str
    description: str
    commands: tuple[Command, ...]
    minutes: int


@dataclass
class Result:
    stage: Stage
    verdict: str = "not run"
    took_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"


class Interruption:
    """Counts interrupts. The second one stops at once."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Records SIGINT, SIGTERM and SIGHUP instead of raising, until the end of the block."""
    interruption = Interruption()
    before = {number: signal.signal(number, interruption) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_stages(stages: Sequence[Stage], logs: Path, say: Say) -> int:
    """Returns 0 if all stages passed, 1 if one failed, 130 if interrupted."""
    results = [Result(stage) for stage in stages]
    logs.mkdir(parents=True, exist_ok=True)
    with interruptible() as interruption:
        for number, result in enumerate(results, 1):
            if interruption.asked:
                break
            stage = result.stage
            log = logs / f"{stage.name}.log"
            say(f"[{number}/{len(results)}] {stage.name}: {stage.description}; about {stage.minutes} min, see {log}")
            _run(result, log, interruption, say)
            say(f"[{number}/{len(results)}] {stage.name}: {result.verdict} after {clock(result.took_s)}")
        for line in summary(results):
            say(line)
        if interruption.asked:
            return 130
    return 0 if all(result.ok for result in results) else 1


def summary(results: Sequence[Result]) -> list[str]:
    width = max(len(result.stage.name) for result in results)
    rows = [f"  {result.stage.name:{width}}  {clock(result.took_s):>8}  {result.verdict}" for result in results]
    passed = sum(result.ok for result in results)
    return ["", f"  {'stage':{width}}  {'time':>8}  result", *rows, f"{passed} of {len(results)} stages passed"]


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min"


def _run(result: Result, log: Path, interruption: Interruption, say: Say) -> None:
    began_s = time.monotonic()
    with log.open("wb") as file:
        for command in result.stage.commands:
            file.write(f"$ {' '.join(command.words)}\n".encode())
            file.flush()
            code = _run_command(command, file, interruption, _progress(result.stage.name, log, began_s, say))
            if interruption.asked:
                result.verdict = "interrupted"
                break
            if code != 0:
                result.verdict = f"failed: `{' '.join(command.words)[:LINE_CHARACTERS]}` exited with {code}"
                for line in tail(log, TAIL_LINES):
                    say(f"    {line}")
                break
        else:
            result.verdict = "ok"
    result.took_s = time.monotonic() - began_s


def _progress(name: str, log: Path, began_s: float, say: Say) -> Callable[[], None]:
    reported_s = time.monotonic()

    def report_progress() -> None:
        nonlocal reported_s
        if time.monotonic() - reported_s >= PROGRESS_EVERY_S:
            reported_s = time.monotonic()
            last = "".join(tail(log, 1))[-LINE_CHARACTERS:]
            say(f"    {name} after {clock(reported_s - began_s)}: {last}")

    return report_progress


def _run_command(
    command: Command, output: IO[bytes], interruption: Interruption, report_progress: Callable[[], None]
) -> int | str:
    """Runs the command in its own process group, which has ended when this returns."""
    try:
        process = subprocess.Popen(
            command.words,
            env={**os.environ, **command.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    try:
        while not _over(process) and not interruption.asked:
            time.sleep(LOOK_EVERY_S)
            report_progress()
        if not _over(process):
            _interrupt(process, interruption)
    finally:
        # Kills remaining processes of the group. The command is not reaped yet, so its pid cannot be reused.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode


def _interrupt(process: subprocess.Popen[bytes], interruption: Interruption) -> None:
    """Sends SIGINT and waits until the command ends, a second interrupt comes, or STOP_S is over."""
    os.killpg(process.pid, signal.SIGINT)
    deadline_s = time.monotonic() + STOP_S
    while not _over(process) and interruption.asked < 2 and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)


def _over(process: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def tail(path: Path, lines: int) -> list[str]:
    """The last non-empty lines of the file."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        found = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    return [line.rstrip() for line in found if line.strip()][-lines:]
