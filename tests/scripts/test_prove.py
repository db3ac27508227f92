"""`make prove` runs every stage, reports its result, and leaves no process behind when interrupted."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("prove")


@pytest.fixture
def staged(prove: ModuleType) -> ModuleType:
    return sys.modules["staged"]


def python(staged: ModuleType, *texts: str, **env: str) -> tuple[object, ...]:
    return tuple(staged.Command((sys.executable, "-c", text), env) for text in texts)


def test_failed_stage_is_reported_with_last_output_and_others_run(staged: ModuleType, tmp_path: Path) -> None:
    stages = [
        staged.Stage("first", "succeeds", python(staged, "print('one')", "print('two')"), 1),
        staged.Stage("second", "fails", python(staged, "print('why'); raise SystemExit(3)", "print('never')"), 1),
        staged.Stage("third", "does not exist", (staged.Command(("no-such-program",)),), 1),
        staged.Stage("last", "reads its size", python(staged, "import os; print(os.environ['SIZE'])", SIZE="7"), 1),
    ]
    lines: list[str] = []
    assert staged.run_stages(stages, tmp_path, lines.append) == 1
    assert "    why" in lines
    assert any(
        re.fullmatch(r"\[2/4\] second: failed: `.*` exited with 3 after \d+:\d\d min", line) for line in lines
    ), lines
    ends = [line.split() for line in lines[-5:-1]]
    assert [(columns[0], columns[3].rstrip(":")) for columns in ends] == [
        ("first", "ok"),
        ("second", "failed"),
        ("third", "failed"),
        ("last", "ok"),
    ]
    assert lines[-1] == "2 of 4 stages passed"
    assert "never" not in (tmp_path / "second.log").read_text().splitlines()
    assert (tmp_path / "last.log").read_text().splitlines()[-1] == "7"


def test_success_exits_0_and_long_stage_reports_progress(
    staged: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "PROGRESS_EVERY_S", 0.1)
    go = tmp_path / "go"
    waiting = f"import os, time\nprint('half way', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    lines: list[str] = []

    def print_line(line: str) -> None:
        lines.append(line)
        if line.endswith(": half way"):
            go.touch()

    assert staged.run_stages([staged.Stage("long", "waits", python(staged, waiting), 1)], tmp_path, print_line) == 0
    assert go.exists()


DRIVER = """
import sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from staged import Command, Stage, run_stages
command = (sys.executable, "-c", {child!r})
stages = [Stage("endless", "waits", (Command(command),), 1), Stage("later", "waits too", (Command(command),), 1)]
sys.exit(run_stages(stages, Path({logs!r}), lambda line: print(line, flush=True)))
"""
# Starts a process that ignores SIGINT, and handles SIGINT itself.
CHILD = """
import signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
other = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
other.stdout.readline()
print("started", other.pid, flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("goodbye", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_stage_ends_with_all_its_processes(how: signal.Signals, tmp_path: Path) -> None:
    script = DRIVER.format(scripts=str(SCRIPTS), child=CHILD, logs=str(tmp_path))
    running = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        log = tmp_path / "endless.log"
        deadline = time.monotonic() + 60
        while not (started := re.search(r"^started (\d+)$", log.read_text() if log.exists() else "", re.MULTILINE)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(how)
        lines, _ = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130
    assert log.read_text().splitlines()[-1] == "goodbye"
    assert re.search(r"endless +\S+ min  interrupted\n +later +0:00 min  not run\n0 of 2 stages", lines), lines
    assert not (tmp_path / "later.log").exists()
    deadline = time.monotonic() + 30
    while _is_running(int(started[1])):
        assert time.monotonic() < deadline, "a process of the stage still runs"
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    """Whether the process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_files_named_by_stages_exist(prove: ModuleType) -> None:
    places = [place for places in prove.NAMED.values() for place in places]
    assert len(set(places)) == len(places)
    for place in places:
        path, _, test = place.partition("::")
        assert (ROOT / path).exists(), place
        assert not test or f"def {test}(" in (ROOT / path).read_text(), place
    known = {stage.name for stage in prove.stages(2)}
    assert len(known) == len(prove.stages(2)) and {name for name in prove.NAMED if name} <= known


def test_every_size_of_a_stage_is_read_by_tests(prove: ModuleType) -> None:
    variables = {name for stage in prove.stages(2) for command in stage.commands for name in command.env}
    texts = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    variables = {name for name in variables if name.startswith("HOLDFAST_")}
    assert len(variables) > 5 and not [name for name in variables if f'"{name}"' not in texts]


def test_stage_size_set_in_environment_overrides_default(prove: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes() -> dict[str, str]:
        (disks,) = (stage for stage in prove.stages(2) if stage.name == "disks")
        return dict(disks.commands[0].env)

    before = sizes()
    monkeypatch.setenv("HOLDFAST_KILLS", "3")
    assert sizes() == {**before, "HOLDFAST_KILLS": "3"} != before


def test_stages_are_listed_and_unknown_stage_is_refused(prove: ModuleType) -> None:
    lines: list[str] = []
    assert prove.main(["list"], lines.append) == 0
    assert len(lines) == len(prove.stages(2))
    assert prove.main(["drills,nothing"], lines.append) == 2
    assert "stage nothing: not found (expected one of simulations" in lines[-1]


def test_stages_run_in_the_given_directory(prove: ModuleType) -> None:
    """The script starts without any environment, as in the Makefile."""
    completed = subprocess.run(
        [sys.executable, str(SCRIPTS / "prove.py"), "list"], capture_output=True, text=True, cwd=os.sep, check=True
    )
    assert completed.stdout.startswith("simulations ")
