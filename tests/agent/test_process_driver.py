"""The process driver with real processes: start, exit, adoption, and never twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.agent_world import eventually, task
from tests.expected import present

from holdfast.agent import shim
from holdfast.agent.drivers.contract import PROBE_OUTPUT_BYTES_MAX, Driver, StartFailed
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.records import LOG_FILE_BYTES_MAX, LOG_FILES_MAX, StartedRecord, TaskDir
from holdfast.agent.drivers.shim_processes import spawn_shim
from holdfast.foundation.ports import SystemClock

HERE = Path(__file__).parent
IMPORT_PATH = [str(HERE.parents[1])]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    made = ProcessDriver(tmp_path, SystemClock())
    yield made
    for name in list(made._live):
        await made.stop(name, 0.0)
    await made.close()


def log_text(driver: Driver, name: str) -> str:
    path = driver.logs(name)
    assert path is not None
    return path.read_text()


async def test_task_starts_in_own_session_without_agent_environment(driver: ProcessDriver, tmp_path: Path) -> None:
    os.environ["AGENT_SECRET"] = "not for the work"
    try:
        started = await driver.start(task("a", "sh", "-c", "pwd; env; exec sleep 60", env={"PORT": "20001"}))
    finally:
        del os.environ["AGENT_SECRET"]
    assert os.getsid(started.pid) == os.getpgid(started.pid) == started.pid != os.getsid(0)
    text = await eventually(lambda: log_text(driver, "a") if "PORT=" in log_text(driver, "a") else "")
    assert "PORT=20001" in text and "HOLDFAST_TASK=a" in text and "AGENT_SECRET" not in text
    assert str(tmp_path / "a" / "work") in text


async def test_stop_sends_sigterm_and_returns_same_exit_again(driver: ProcessDriver) -> None:
    started = await driver.start(task("a", "sleep", "60"))
    exit_ = await driver.stop("a", 5.0)
    assert (exit_.signal, exit_.code, exit_.reason) == ("SIGTERM", 143, "StoppedOnRequest")
    assert exit_.at and not alive(started.pid)
    assert (await driver.stop("a", 5.0)) == exit_, "a second stop returns the same exit"


async def test_exit_code_and_signal_are_reported(driver: ProcessDriver) -> None:
    await driver.start(task("a", "sh", "-c", "exit 3"))
    ended = await driver.next_exit()
    assert (ended.task_id, ended.run, ended.exit.code, ended.exit.reason) == ("a", 1, 3, "Exited")
    await driver.start(task("b", "sh", "-c", "kill -SEGV $$"))
    ended = await driver.next_exit()
    assert (ended.exit.signal, ended.exit.reason) == ("SIGSEGV", "Killed")


async def test_task_ignoring_sigterm_is_killed_with_its_children_after_grace(driver: ProcessDriver) -> None:
    script = "trap '' TERM; setsid sleep 300 & echo child $!; while :; do sleep 0.1; done"
    started = await driver.start(task("a", "sh", "-c", script))
    text = await eventually(lambda: log_text(driver, "a"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    exit_ = await driver.stop("a", 0.4)
    assert 0.4 <= loop.time() - began < 3.0
    assert exit_.signal == "SIGKILL" and "0.4 s" in exit_.message
    escaped = int(text.split("child ")[1].split()[0])
    assert not alive(started.pid) and not alive(escaped), "processes in other sessions belong to the task"


async def test_second_stop_with_shorter_grace_kills_earlier(driver: ProcessDriver) -> None:
    await driver.start(task("a", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
    await eventually(lambda: "up" in log_text(driver, "a"))
    slow = asyncio.create_task(driver.stop("a", 60.0))
    await asyncio.sleep(0.1)
    quick = await driver.stop("a", 0.0)
    assert (await slow) == quick and quick.signal == "SIGKILL"


CHECKPOINTS = """
import signal, sys, time
def note(word): open(sys.argv[1], "a").write(word + "\\n")
signal.signal(signal.SIGUSR1, lambda *_: note("checkpoint") or (sys.argv[2] == "leaves" and sys.exit(0)))
signal.signal(signal.SIGTERM, lambda *_: note("asked") or (sys.argv[2] == "waits" and sys.exit(0)))
note("ready")
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("work", "expected", "signal_", "at_least_s", "at_most_s"),
    [
        ("leaves", ["ready", "checkpoint"], "", 0.0, 1.0),
        ("waits", ["ready", "checkpoint", "asked"], "", 1.0, 1.9),
        ("stays", ["ready", "checkpoint", "asked"], "SIGKILL", 2.0, 4.0),
    ],
)
async def test_stop_sends_checkpoint_signal_before_sigterm(  # noqa: PLR0917 - one row of the table
    driver: ProcessDriver,
    tmp_path: Path,
    work: str,
    expected: list[str],
    signal_: str,
    at_least_s: float,
    at_most_s: float,
) -> None:
    notes = tmp_path / "notes"
    await driver.start(task("t", sys.executable, "-c", CHECKPOINTS, str(notes), work, checkpoint_signal="SIGUSR1"))
    await eventually(lambda: notes.exists() and notes.read_text().split())
    began = time.monotonic()
    exit_ = await driver.stop("t", 2.0)
    assert notes.read_text().split() == expected and exit_.signal == signal_
    assert at_least_s <= time.monotonic() - began < at_most_s + 1.0, "half of the grace period for each signal"


async def test_orphans_of_ended_task_are_killed(driver: ProcessDriver) -> None:
    await driver.start(task("a", "sh", "-c", "setsid sleep 300 & echo child $!; exit 0"))
    ended = await driver.next_exit()
    assert ended.exit.code == 0
    child = int(log_text(driver, "a").split("child ")[1].split()[0])
    assert not alive(child)


@pytest.mark.parametrize(
    ("given", "reason", "expected"),
    [
        ({"command": ("no-such-program",)}, "CommandNotFound", "no-such-program"),
        ({"command": ("/etc",)}, "CommandNotFound", "Permission denied"),
        ({"command": ("true",), "working_dir": "/no/such/place"}, "TemplateUnusable", "/no/such/place"),
        ({"command": ("true",), "working_dir": "/etc/passwd"}, "TemplateUnusable", "Not a directory"),
        ({"command": ("true",), "user": "root"}, "UserNotAllowed", "root"),
    ],
)
async def test_failed_start_reports_reason_and_later_run_works(
    driver: ProcessDriver, given: dict[str, Any], reason: str, expected: str
) -> None:
    command = given.pop("command")
    with pytest.raises(StartFailed) as failure:
        await driver.start(task("a", *command, **given))
    assert failure.value.reason == reason and expected in failure.value.message
    # The next run works, and the failed start is not reported by next_exit.
    await driver.start(task("a", "sh", "-c", "exit 0", run=2))
    assert (await driver.next_exit()).run == 2


async def test_task_log_stays_within_size_limits(driver: ProcessDriver, tmp_path: Path) -> None:
    total = LOG_FILE_BYTES_MAX * (LOG_FILES_MAX + 2)
    script = f"import sys\nfor _ in range({total // 100}): sys.stdout.write('x' * 99 + chr(10))\nprint('the end')"
    await driver.start(task("a", sys.executable, "-S", "-c", script))
    await driver.next_exit()
    sizes = [path.stat().st_size for path in (tmp_path / "a").glob("output.log*")]
    assert len(sizes) <= LOG_FILES_MAX and max(sizes) <= LOG_FILE_BYTES_MAX
    assert log_text(driver, "a").rstrip().endswith("the end")


def shim_status(folder: TaskDir) -> str:
    """The start report of a second shim for run 1, after it has exited."""
    read, write = os.pipe()
    pid = spawn_shim(folder.path, 1, write)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, "rb") as expected:
        return expected.read().decode()


async def test_repeated_start_of_same_run_returns_running_task(driver: ProcessDriver, tmp_path: Path) -> None:
    one = task("a", "sleep", "60")
    started = await driver.start(one)
    assert await driver.start(one) == started
    with pytest.raises(StartFailed, match="is still running"):
        await driver.start(task("a", "sleep", "60", run=2))
    # A second shim for the run, as an agent without its records would start, does nothing.
    assert shim_status(TaskDir(tmp_path / "a")) == "already started"
    record = TaskDir(tmp_path / "a").started(1)
    assert record is not None and record.pid == started.pid and alive(started.pid)


async def test_recorded_start_without_shim_is_withdrawn(driver: ProcessDriver, tmp_path: Path) -> None:
    """The agent dies between recording the start and starting the shim; the shim comes late."""
    marker = tmp_path / "marker"
    folder = TaskDir(tmp_path / "tasks" / "a")
    folder.prepare(task("a", "touch", str(marker)), {"PATH": os.defpath})
    second = ProcessDriver(tmp_path / "tasks", SystemClock())
    (found,) = await second.inspect()
    assert found.exit is not None and found.exit.reason == "NeverStarted"
    assert shim_status(folder) == "withdrawn"
    assert not marker.exists()
    await second.start(task("a", "touch", str(marker), run=2))
    await second.next_exit()
    assert marker.exists()


CHILD = """
import asyncio, sys
sys.path[:0] = {path!r}
from pathlib import Path
from tests.agent.agent_world import task
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.foundation.ports import SystemClock

async def main():
    driver = ProcessDriver(Path({root!r}), SystemClock())
    for name, script in {tasks!r}:
        started = await driver.start(task(name, "sh", "-c", script))
        print(started.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def agent_that_dies(root: Path, *tasks: tuple[str, str]) -> list[int]:
    """Runs a process that starts tasks and is killed without cleanup. Returns the pids of the tasks."""
    script = textwrap.dedent(CHILD).format(path=IMPORT_PATH, root=str(root), tasks=list(tasks))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in tasks]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return pids


async def test_tasks_survive_sigkill_of_agent_and_are_adopted(driver: ProcessDriver, tmp_path: Path) -> None:
    go = tmp_path / "go"
    ticking = f"i=0; while [ ! -e {go} ]; do i=$((i+1)); echo tick $i; sleep 0.05; done; exit 7"
    ticker, sleeper, _ = agent_that_dies(
        tmp_path / "t", ("ticker", ticking), ("sleeper", "sleep 300"), ("done", "exit 4")
    )
    second = ProcessDriver(tmp_path / "t", SystemClock())
    await eventually(lambda: TaskDir(tmp_path / "t" / "done").exit(1))
    found = {f.task.id: f for f in await second.inspect()}
    assert (found["ticker"].pid, found["ticker"].exit) == (ticker, None)
    assert found["sleeper"].pid == sleeper and alive(sleeper)
    assert found["done"].exit is not None and found["done"].exit.code == 4, "the exit without an agent is recorded"

    seen = len(log_text(second, "ticker"))
    await eventually(lambda: len(log_text(second, "ticker")) > seen)  # logging continues without an agent
    go.touch()
    ended = await second.next_exit()
    assert (ended.task_id, ended.exit.code) == ("ticker", 7)
    assert (await second.stop("sleeper", 5.0)).signal == "SIGTERM" and not alive(sleeper)
    await second.close()


async def test_sigkill_of_shim_kills_its_task(driver: ProcessDriver, tmp_path: Path) -> None:
    """Without its shim a task would have no log, no exit record and no way to stop it."""
    started = await driver.start(task("a", "sh", "-c", "setsid sleep 300 & echo child $!; wait"))
    text = await eventually(lambda: log_text(driver, "a"))
    os.kill(TaskDir(tmp_path / "a").shim_pid(), signal.SIGKILL)
    ended = await driver.next_exit()
    assert ended.exit.reason == "Killed" and "no exit record" in ended.exit.message
    escaped = int(text.split("child ")[1].split()[0])
    await eventually(lambda: not alive(started.pid) and not alive(escaped))


async def test_reused_pid_is_not_mistaken_for_the_task(tmp_path: Path) -> None:
    """The record names our own pid with another start time, as after a reboot or a wrapped pid counter."""
    root = tmp_path / "t"
    folder = TaskDir(root / "a")
    folder.prepare(task("a", "sleep", "60"), {})
    own = os.getpid()
    record = {"run": "1", "pid": str(own), "ticks": str(shim.start_ticks(own) + 1), "boot": shim.boot_id(), "at": "1.0"}
    shim.write_record(str(folder.run_dir(1) / "started"), record)
    driver = ProcessDriver(root, SystemClock())
    (found,) = await driver.inspect()
    assert found.exit is not None and found.exit.reason == "Killed" and alive(own)
    assert StartedRecord(pid=own, ticks=shim.start_ticks(own), boot=shim.boot_id(), at_s=1.0).is_alive()
    assert not StartedRecord(pid=own, ticks=shim.start_ticks(own), boot="another boot", at_s=1.0).is_alive()


async def test_forgotten_tasks_keep_logs_of_newest_only(
    driver: ProcessDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agent.drivers.process.AGENT_ENDED_TASKS_MAX", 2)
    for name in ("a", "b", "c"):
        await driver.start(task(name, "echo", name))
        await driver.next_exit()
        await driver.forget(name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]
    assert await driver.inspect() == [] and "O c" in log_text(driver, "c")


async def test_execute_returns_code_and_bounded_output(driver: ProcessDriver) -> None:
    await driver.start(task("a", "sleep", "60", env={"PORT": "1"}))
    result = await driver.execute("a", ("sh", "-c", "echo port $PORT; exit 2"), 5.0)
    assert (result.code, result.output) == (2, "port 1")
    assert (await driver.execute("a", ("no-such-program",), 5.0)).code == 127
    flood = await driver.execute("a", ("sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"), 5.0)
    assert flood.code == 0 and len(flood.output) <= PROBE_OUTPUT_BYTES_MAX
    with pytest.raises(TimeoutError):
        await driver.execute("a", ("sleep", "60"), 0.1)


HASTY = """
import asyncio, sys
sys.path[:0] = {path!r}
from pathlib import Path
from tests.agent.agent_world import task
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.foundation.ports import SystemClock

async def main():
    driver = ProcessDriver(Path({root!r}), SystemClock())
    print("ready", flush=True)
    await asyncio.gather(*(driver.start(task(f"t{{i}}", "sh", "-c", {script!r})) for i in range(6)))
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_commands_run_again_after_their_helper_was_killed(driver: ProcessDriver) -> None:
    await driver.start(task("a", "sleep", "60"))
    slow = asyncio.create_task(driver.execute("a", ("sleep", "60"), 30.0))
    assert (await driver.execute("a", ("echo", "one"), 10.0)).output == "one"
    helper = driver._commands._server
    assert helper is not None
    helper.kill()
    failed = await slow
    assert failed.code == 127 and "ended" in failed.output
    assert (await driver.execute("a", ("echo", "two"), 10.0)).output == "two"
    with pytest.raises(TimeoutError):
        await driver.execute("a", ("sh", "-c", "echo $$ > pid; sleep 60"), 1.0)
    pid = int((driver._root / "a" / "work" / "pid").read_text())
    await eventually(lambda: not alive(pid))


async def test_late_shim_starts_nothing_at_any_step_of_deleting_its_run(driver: ProcessDriver, tmp_path: Path) -> None:
    """A shim of a dead agent comes late: its run was withdrawn, and the next run's preparation is deleting it.

    The records are deleted file by file. Before each deletion the late shim runs for real, to its end.
    """
    folder = TaskDir(tmp_path / "a")
    late = task("a", "sh", "-c", "echo late >> started")
    folder.prepare(late, {})
    folder.request_stop(1, 0.0)
    reports: list[str] = []
    deleting = True

    def before_each_deletion(event: str, args: tuple[object, ...]) -> None:
        nonlocal deleting
        if deleting and event == "os.remove":
            deleting = False  # what runs here deletes files too
            read, write = os.pipe()
            os.waitpid(spawn_shim(folder.path, 1, write), 0)
            os.close(write)
            reports.append(os.read(read, 4096).decode())
            os.close(read)
            deleting = True

    sys.addaudithook(before_each_deletion)
    try:
        folder.prepare(task("a", "sleep", "60", run=2), {})
    finally:
        deleting = False
    assert len(reports) >= 2 and not any(report.startswith("started") for report in reports), reports
    assert not (tmp_path / "a" / "work" / "started").exists()


@pytest.mark.slow
async def test_agent_killed_during_start_never_starts_task_twice(tmp_path: Path) -> None:
    """The agent is killed while it starts six tasks, a little later each time; the next agent finds the exact state."""
    outcomes = set()
    for step in range(14):
        root = tmp_path / f"round-{step}"
        script = "echo run >> started; exec sleep 300"
        text = HASTY.format(path=IMPORT_PATH, root=str(root), script=script)
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        await asyncio.sleep(step * 0.008)
        process.kill()
        process.wait()
        process.stdout.close()

        second = ProcessDriver(root, SystemClock())
        found = {f.task.id: f for f in await second.inspect()}
        outcomes |= {"running" if f.exit is None else str(f.exit.reason) for f in found.values()}
        for index in range(6):
            name = f"t{index}"
            if name not in found or found[name].exit is not None:
                if name in found:
                    assert present(found[name].exit).reason == "NeverStarted"
                run = 2 if name in found else 1
                await second.start(task(name, "sh", "-c", script, run=run))
        await asyncio.sleep(0.2)  # gives late shims of the dead agent time to act
        for index in range(6):
            lines = root / f"t{index}" / "work" / "started"
            await eventually(lines.exists)
            assert lines.read_text() == "run\n", "each task starts once"
            await second.stop(f"t{index}", 0.0)
        await second.close()
    assert "running" in outcomes
