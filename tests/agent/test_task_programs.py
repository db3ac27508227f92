"""What runs around the main task, with real processes: orders, failures, hooks, and stops in every phase."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.agent_world import eventually, task
from tests.agent.test_process_driver import alive, log_text
from tests.expected import present

from holdfast.agent.drivers.contract import StartFailed, Task, TaskPrograms
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.records import TaskDir
from holdfast.agent.program_watch import start_progress
from holdfast.agent.shim_guard import boottime
from holdfast.foundation.ports import SystemClock
from holdfast.model.probe import ExecProbe, Hook, HttpProbe, Probe, TcpProbe
from holdfast.model.task_programs import InitTask, Lifecycle, ProgramState, Sidecar
from holdfast.model.template import Port

ID = f"t{os.getpid()}"
"""Processes without a user of their own are told by this mark, so tests that run in parallel need different ones."""
FOREVER = "trap 'echo {0} ended >> $NOTES; exit 0' TERM; echo {0} began >> $NOTES; while :; do sleep 0.05; done"


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    made = ProcessDriver(tmp_path / "tasks", SystemClock())
    yield made
    for name in list(made._live):
        await made.stop(name, 0.0)
    await made.close()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").touch()
    return tmp_path / "notes"


def forever(name: str) -> tuple[str, ...]:
    return ("sh", "-c", FOREVER.format(name))


def init(name: str, script: str = "", **more: Any) -> InitTask:
    return InitTask(name=name, command=("sh", "-c", f"echo {name} >> $NOTES; {script}"), **more)


def sidecar(name: str, **more: Any) -> Sidecar:
    return Sidecar(name=name, command=forever(name), **more)


def planned(notes: Path, *, run: int = 1, main: str = "", **more: Any) -> Task:
    return task(ID, "sh", "-c", main or FOREVER.format("main"), run=run, env={"NOTES": str(notes)}, **more)


def states(driver: ProcessDriver) -> dict[str, str]:
    found = driver.programs(ID)
    return {one.name: one.state.value for one in found.programs} if found is not None else {}


async def main_runs(driver: ProcessDriver) -> TaskPrograms:
    found = await eventually(lambda: (p := driver.programs(ID)) is not None and p.main_runs and p)
    assert isinstance(found, TaskPrograms)
    return found


async def test_programs_start_in_order_and_stop_in_reverse(driver: ProcessDriver, notes: Path) -> None:
    await driver.start(planned(notes, init_tasks=(init("one"), init("two")), sidecars=(sidecar("a"), sidecar("b"))))
    await main_runs(driver)
    await eventually(lambda: "main began" in notes.read_text() and "b began" in notes.read_text())
    said = notes.read_text().splitlines()
    assert said[:2] == ["one", "two"] and set(said[2:]) == {"a began", "b began", "main began"}
    exit_ = await driver.stop(ID, 10.0)
    assert (exit_.reason, exit_.code) == ("StoppedOnRequest", 0)
    assert notes.read_text().splitlines()[-3:] == ["main ended", "b ended", "a ended"]


async def test_failed_init_task_ends_the_run_and_is_named(driver: ProcessDriver, notes: Path) -> None:
    started = await driver.start(
        planned(notes, init_tasks=(init("one"), init("two", "exit 3")), sidecars=(sidecar("a"),))
    )
    assert started.pid > 0
    ended = await driver.next_exit()
    assert (ended.exit.reason, ended.exit.code) == ("InitTaskFailed", 3)
    assert ended.exit.message == "init task two (2 of 2) exited with code 3"
    assert notes.read_text().split() == ["one", "two"], "neither sidecar nor main task started"
    assert states(driver) == {"one": "Ended", "two": "Ended", "a": "Waiting", "work": "Waiting"}


async def test_init_task_that_hangs_is_killed_at_its_timeout(driver: ProcessDriver, notes: Path) -> None:
    script = "trap '' TERM; setsid sleep 300 & while :; do sleep 0.05; done"
    await driver.start(planned(notes, init_tasks=(init("slow", script, timeout_seconds=0.5),)))
    ended = await driver.next_exit()
    assert ended.exit.reason == "InitTaskFailed" and "did not end within 0.5 s" in ended.exit.message


async def test_missing_program_of_first_and_later_stage_is_named(driver: ProcessDriver, notes: Path) -> None:
    with pytest.raises(StartFailed) as failure:
        await driver.start(planned(notes, init_tasks=(InitTask(name="gone", command=("/no/such",)),)))
    assert failure.value.reason == "CommandNotFound" and "gone" in failure.value.message
    later = planned(notes, run=2, init_tasks=(init("one"),), sidecars=(Sidecar(name="lost", command=("/no/such",)),))
    await driver.start(later)
    ended = await driver.next_exit()
    assert ended.exit.reason == "CommandNotFound" and "sidecar lost: /no/such" in ended.exit.message
    assert ended.exit.code == 1, "the run has failed"


async def test_sidecar_that_crashes_restarts_alone(driver: ProcessDriver, notes: Path) -> None:
    crashing = Sidecar(name="a", command=("sh", "-c", "echo try >> $NOTES; exit 1"))
    started = await driver.start(planned(notes, sidecars=(crashing,)))
    assert started.pid
    found = await main_runs(driver)
    await eventually(lambda: notes.read_text().count("try") >= 2)
    await eventually(lambda: next(o for o in present(driver.programs(ID)).programs if o.name == "a").restarts >= 1)
    again = present(driver.programs(ID))
    assert again.pid == found.pid and alive(found.pid), "the main task is not affected"
    assert notes.read_text().count("try") <= 4, "restarts have a pause"


async def test_batch_task_end_ends_its_sidecars(driver: ProcessDriver, notes: Path) -> None:
    await driver.start(
        planned(notes, main="echo done >> $NOTES; sleep 0.2; exit 0", sidecars=(sidecar("a"), sidecar("b")))
    )
    ended = await driver.next_exit()
    assert (ended.exit.reason, ended.exit.code) == ("Exited", 0)
    assert notes.read_text().splitlines()[-2:] == ["b ended", "a ended"]


async def test_sidecar_that_ignores_its_end_is_killed_within_the_grace_period(
    driver: ProcessDriver, notes: Path
) -> None:
    stubborn = Sidecar(name="a", command=("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"))
    await driver.start(planned(notes, main="sleep 0.3; exit 7", sidecars=(stubborn,), termination_grace_seconds=0.6))
    began = time.monotonic()
    ended = await driver.next_exit()
    assert (ended.exit.reason, ended.exit.code) == ("Exited", 7) and time.monotonic() - began < 8


async def test_main_task_starts_when_probed_sidecar_is_ready(driver: ProcessDriver, notes: Path) -> None:
    probe = Probe(exec=ExecProbe(("sh", "-c", "test -e $NOTES.ready")), period_seconds=0.1)
    await driver.start(planned(notes, sidecars=(sidecar("a", readiness=probe),)))
    await eventually(lambda: "readiness" in start_progress(present(driver.programs(ID)).programs))
    assert states(driver)["work"] == "Waiting"
    Path(f"{notes}.ready").touch()
    await main_runs(driver)


@pytest.mark.parametrize(
    "probe", [Probe(tcp=TcpProbe(), period_seconds=0.1), Probe(http=HttpProbe("/"), period_seconds=0.1)]
)
async def test_sidecar_is_probed_by_connection_and_request(
    driver: ProcessDriver, notes: Path, probe: Probe, tmp_path: Path
) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = Sidecar(
        name="web", command=(sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"), readiness=probe
    )
    made = planned(notes, sidecars=(served,), ports=(Port("http", port),))
    import msgspec

    await driver.start(msgspec.structs.replace(made, ports={"http": port}))
    await main_runs(driver)


async def test_pre_stop_runs_before_sigterm_and_within_the_grace_period(driver: ProcessDriver, notes: Path) -> None:
    hook = Hook(exec=ExecProbe(("sh", "-c", "echo hook >> $NOTES")))
    await driver.start(planned(notes, lifecycle=Lifecycle(pre_stop=hook)))
    await eventually(lambda: "main began" in notes.read_text())
    exit_ = await driver.stop(ID, 5.0)
    assert exit_.reason == "StoppedOnRequest"
    assert notes.read_text().splitlines() == ["main began", "hook", "main ended"]


async def test_pre_stop_that_hangs_leaves_time_for_the_main_task(driver: ProcessDriver, notes: Path) -> None:
    hook = Hook(exec=ExecProbe(("sh", "-c", "trap '' TERM; echo hook >> $NOTES; sleep 300")))
    await driver.start(planned(notes, lifecycle=Lifecycle(pre_stop=hook), sidecars=(sidecar("a"),)))
    await main_runs(driver)
    await eventually(lambda: "main began" in notes.read_text() and "a began" in notes.read_text())
    began = time.monotonic()
    exit_ = await driver.stop(ID, 4.0)
    assert exit_.code == 0 and time.monotonic() - began < 6, "the hook was ended, and the task ended by itself"
    assert notes.read_text().splitlines()[-3:] == ["hook", "main ended", "a ended"]


async def test_post_start_failure_stops_the_run(driver: ProcessDriver, notes: Path) -> None:
    hook = Hook(exec=ExecProbe(("sh", "-c", "exit 1")))
    await driver.start(planned(notes, lifecycle=Lifecycle(post_start=hook)))
    ended = await driver.next_exit()
    assert ended.exit.reason == "PostStartFailed" and ended.exit.code, "never a success"


async def test_main_task_counts_as_started_when_post_start_has_succeeded(driver: ProcessDriver, notes: Path) -> None:
    hook = Hook(exec=ExecProbe(("sh", "-c", "while ! test -e $NOTES.go; do sleep 0.05; done")))
    await driver.start(planned(notes, lifecycle=Lifecycle(post_start=hook)))
    await eventually(lambda: "main began" in notes.read_text())
    found = present(driver.programs(ID))
    assert not found.main_runs and start_progress(found.programs) == "postStart is running"
    Path(f"{notes}.go").touch()
    assert start_progress((await main_runs(driver)).programs) == ""


@pytest.mark.parametrize("phase", ["init", "sidecar", "main"])
@pytest.mark.parametrize("grace_s", [0.0, 5.0])
async def test_stop_in_every_phase_leaves_no_process(
    driver: ProcessDriver, notes: Path, phase: str, grace_s: float
) -> None:
    hanging = Probe(exec=ExecProbe(("false",)), period_seconds=0.1)
    by_phase: dict[str, dict[str, Any]] = {
        "init": {"init_tasks": (InitTask(name="i", command=forever("i")),), "sidecars": (sidecar("a"),)},
        "sidecar": {"sidecars": (sidecar("a"), sidecar("b", readiness=hanging))},
        "main": {"init_tasks": (init("i"),), "sidecars": (sidecar("a"), sidecar("b"))},
    }
    await driver.start(planned(notes, **by_phase[phase]))
    awaited = {"init": "i began", "sidecar": "b began", "main": "main began"}[phase]
    await eventually(lambda: awaited in notes.read_text())
    exit_ = await driver.stop(ID, grace_s)
    assert exit_.reason == "StoppedOnRequest"
    assert processes_of(notes) == []


def processes_of(notes: Path) -> list[int]:
    """Processes with this test's notes in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and f"NOTES={notes}".encode() in Path(f"/proc/{entry}/environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(entry))
        except OSError:
            continue
    return [pid for pid in found if alive(pid)]


@pytest.mark.parametrize("phase", ["init", "main"])
async def test_killed_shim_takes_every_program_with_it(driver: ProcessDriver, notes: Path, phase: str) -> None:
    more: dict[str, Any] = {"sidecars": (sidecar("a"),)}
    if phase == "init":
        more["init_tasks"] = (InitTask(name="i", command=forever("i")),)
    await driver.start(planned(notes, **more))
    await eventually(lambda: ("i began" if phase == "init" else "main began") in notes.read_text())
    os.kill(driver._live[ID].shim_pid, signal.SIGKILL)
    ended = await driver.next_exit()
    assert ended.exit.reason == "Killed"
    await eventually(lambda: processes_of(notes) == [])


async def test_new_agent_adopts_a_run_in_its_init_phase(driver: ProcessDriver, notes: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = init("i", f"while ! test -e {gate}; do sleep 0.05; done")
    await driver.start(planned(notes, init_tasks=(waits,), sidecars=(sidecar("a"),)))
    await driver.close()
    after = ProcessDriver(tmp_path / "tasks", SystemClock())
    (found,) = await after.inspect()
    assert found.exit is None and states(after)["i"] == "Running"
    gate.touch()
    running = await main_runs(after)
    assert present(TaskDir(tmp_path / "tasks" / ID).started(1)).pid == running.pid, "the record names the main task"
    exit_ = await after.stop(ID, 5.0)
    assert exit_.reason == "StoppedOnRequest" and processes_of(notes) == []
    await after.close()


@pytest.mark.parametrize("phase", ["init", "main"])
async def test_exclusive_run_ends_before_its_lease_in_every_phase(
    driver: ProcessDriver, notes: Path, phase: str
) -> None:
    import msgspec

    more: dict[str, Any] = {
        "sidecars": (Sidecar(name="a", command=("sh", "-c", "trap '' TERM; echo a began >> $NOTES; sleep 300")),)
    }
    if phase == "init":
        more["init_tasks"] = (
            InitTask(name="i", command=("sh", "-c", "trap '' TERM; echo i began >> $NOTES; sleep 300")),
        )
    hook = Hook(exec=ExecProbe(("sleep", "300")))
    until = boottime() + 5.0
    driver.set_lease(1, until)
    made = msgspec.structs.replace(planned(notes, lifecycle=Lifecycle(pre_stop=hook), **more), exclusive=True)
    await driver.start(made)
    ended = await driver.next_exit()
    assert ended.exit.reason == "LeaseExpired" and boottime() < until
    assert processes_of(notes) == []


async def test_each_program_has_its_own_log(driver: ProcessDriver, notes: Path, tmp_path: Path) -> None:
    made = planned(
        notes,
        main="echo from main; exec sleep 60",
        init_tasks=(
            InitTask(name="i", command=("sh", "-c", "echo $GREETING $HOLDFAST_TASK"), env={"GREETING": "hello"}),
        ),
    )
    await driver.start(made)
    await main_runs(driver)
    await eventually(lambda: "from main" in log_text(driver, ID))
    assert f"hello {ID}" in (tmp_path / "tasks" / ID / "program-i.log").read_text()
    assert "hello" not in log_text(driver, ID)


async def test_programs_file_that_is_torn_is_not_read(tmp_path: Path) -> None:
    from holdfast.agent.drivers.program_launch import read_programs

    path = tmp_path / "programs"
    path.write_text("3 main\nmain\tmain\trunning\t12\t0\t\t\t1\t1.0\t0.0\t\n2".ljust(200))
    assert read_programs(path) is None
    path.write_text("3 main\nmain\tmain\trunning\t12\t0\t\t\t1\t1.0\t0.0\t\n3".ljust(200))
    found = present(read_programs(path))
    assert found.main_runs and found.programs[0].state is ProgramState.RUNNING
    await asyncio.sleep(0)
