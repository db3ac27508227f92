"""Shim and guard are killed together while a child of exclusive work has left its session, its parent and its
environment (`env -i`, `setsid`, double fork). Either the agent ends that child, or it never claims that none is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import eventually, task
from tests.requirements import skip_or_fail

from holdfast.agent.cgroups import NoIsolation, RlimitIsolation, choose_isolation
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.records import TaskDir
from holdfast.agent.shim_guard import boottime
from holdfast.agent.task_users import TaskUsers
from holdfast.foundation.ports import SystemClock

# The grandchild has no mark in its environment, no parent in the task and a session of its own.
SLEEP = f"{10_000_000 + os.getpid()}"
HOSTILE = f"(env -i setsid sh -c 'sleep {SLEEP} & exec sleep {SLEEP}' &) ; while :; do sleep 0.1; done"


def runs(process: Path) -> bool:
    """Whether the process with this entry in /proc runs: it exists and is no zombie."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def escaped() -> list[int]:
    """The hostile processes that run. Only this test sleeps so long."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                (entry / "cmdline").read_bytes() == f"sleep\0{SLEEP}\0".encode()
                and b"HOLDFAST" not in (entry / "environ").read_bytes()
                and runs(entry)
            ):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def exclusive(name: str, run: int = 1) -> Any:
    return msgspec.structs.replace(task(name, "sh", "-c", HOSTILE, run=run), exclusive=True, node_epoch=7)


async def kill_shim_and_guard(folder: TaskDir) -> None:
    """Both are suspended first, so that neither sees the other's death. Returns when both are dead: on a busy machine a
    killed process runs for some time."""
    shim = folder.shim_pid()
    children = [int(pid) for pid in Path(f"/proc/{shim}/task/{shim}/children").read_text().split()]
    both = [shim, *(pid for pid in children if b"shim.py" in Path(f"/proc/{pid}/cmdline").read_bytes())]
    assert len(both) == 2, "the guard of exclusive work runs"
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in both:
            os.kill(pid, number)
    await eventually(lambda: not any(runs(Path(f"/proc/{pid}")) for pid in both))


@pytest.fixture(params=["groups", "uid"])
async def sure(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    """A driver that can tell the processes of a task by their control group, or by their user."""
    held = choose_isolation(f"test-{os.getpid()}") if request.param == "groups" else NoIsolation()
    if isinstance(held, RlimitIsolation) or os.geteuid() != 0:
        skip_or_fail("control groups and users per task need root; next: run as root")
    users = TaskUsers(tmp_path) if request.param == "uid" else None
    made = ProcessDriver(tmp_path / "tasks", SystemClock(), confinement=held, users=users)
    yield made
    for name in list(made._live):
        await made.stop(name, 0.0)
        await made.forget(name)
    await made.close()
    held.close()


async def test_processes_that_outlive_shim_and_guard_are_ended_before_the_exit_is_reported(
    sure: ProcessDriver, tmp_path: Path
) -> None:
    sure.set_lease(7, boottime() + 600)
    await sure.start(exclusive("only"))
    await eventually(lambda: len(escaped()) == 2)
    await kill_shim_and_guard(TaskDir(tmp_path / "tasks" / "only"))
    ended = await asyncio.wait_for(sure.next_exit(), 20)
    assert not escaped(), "the old work runs beside its successor"
    assert ended.exit.reason == "Killed" and "no process of the task is left" in ended.exit.message


async def test_processes_that_outlive_agent_shim_and_guard_are_ended_by_the_next_agent(
    sure: ProcessDriver, tmp_path: Path
) -> None:
    sure.set_lease(7, boottime() + 600)
    await sure.start(exclusive("only"))
    await eventually(lambda: len(escaped()) == 2)
    await sure.close()
    await kill_shim_and_guard(TaskDir(tmp_path / "tasks" / "only"))
    assert len(escaped()) == 2
    (found,) = await sure.inspect()
    assert not escaped() and found.exit is not None


async def test_end_that_cannot_be_confirmed_is_not_reported_and_blocks_a_successor(tmp_path: Path) -> None:
    """Without control groups and without users per task nothing identifies the child: the task counts as running."""
    root = tmp_path / "tasks"
    driver = ProcessDriver(root, SystemClock())
    driver.set_lease(7, boottime() + 600)
    await driver.start(exclusive("only"))
    pids = await eventually(lambda: escaped() if len(escaped()) == 2 else ())
    try:
        await kill_shim_and_guard(TaskDir(root / "only"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(driver.next_exit(), 2.0)
        assert "only" in driver.unconfirmed() and len(escaped()) == 2
        with pytest.raises(StartFailed):
            await driver.start(exclusive("only", run=2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(driver.stop("only", 0.0)), 1.0)
        await driver.close()

        after = ProcessDriver(root, SystemClock())
        (found,) = await after.inspect()
        assert found.exit is None and "only" in after.unconfirmed(), "a restarted agent does not claim it either"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        (root / "only" / "run-1" / "confirmed").touch()
        ended = await asyncio.wait_for(after.next_exit(), 10)
        assert ended.exit.reason == "Killed" and "operator" in ended.exit.message and not after.unconfirmed()
        await after.close()
    finally:
        for pid in escaped():
            os.kill(pid, signal.SIGKILL)
