"""Exclusive tasks end before their lease, even if the agent or the shim is dead or suspended. The task itself
records it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import eventually, task
from tests.requirements import skip_or_fail
from tests.witness_intervals import intervals

from holdfast.agent.cgroups import NoIsolation, RlimitIsolation, TaskIsolation, choose_isolation
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.records import TaskDir
from holdfast.agent.task_decision import WATCHDOG_KILL_LEAD_S, WATCHDOG_LEAD_S
from holdfast.agent.task_users import TaskUsers
from holdfast.foundation.ports import SystemClock
from holdfast.samples import witness

# These compare seconds with leases, so they run alone.
pytestmark = pytest.mark.e2e

LEASE_S = WATCHDOG_LEAD_S + 2.0


@pytest.fixture(params=["groups", "plain"])
def held(request: pytest.FixtureRequest) -> TaskIsolation:
    found = choose_isolation(f"test-{os.getpid()}") if request.param == "groups" else NoIsolation()
    if isinstance(found, RlimitIsolation):
        skip_or_fail(f"{found.limitation}; next: run as root, or delegate memory and pids")
    return found


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """Where witnesses write: tasks have users of their own, so it is open to all."""
    folder = tmp_path / "seen"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
async def driver(tmp_path: Path, held: TaskIsolation, seen: Path) -> AsyncIterator[ProcessDriver]:
    users = TaskUsers(tmp_path, registry=tmp_path / "registry", host_paths=(str(seen),))
    made = ProcessDriver(tmp_path / "tasks", SystemClock(), confinement=held, users=users)
    yield made
    for path in (tmp_path / "tasks").iterdir():
        if path.is_dir():
            await made.stop(path.name, 0.0)
    await made.close()
    held.close()


def now() -> float:
    return witness.boottime_s()


def exclusive(tmp_path: Path, name: str = "only", **env: str) -> Any:
    made = task(
        name,
        sys.executable,
        "-m",
        "holdfast.samples.witness",
        env={"WITNESS_DIR": str(tmp_path / "seen"), "HOLDFAST_REPLICA": name, **env},
    )
    return msgspec.structs.replace(made, exclusive=True, node_epoch=7)


def last_seen(tmp_path: Path) -> float:
    seen = intervals(str(tmp_path / "seen"))
    return max((end for runs in seen.values() for _, end in runs), default=0.0)


async def running(tmp_path: Path, count: int = 1) -> None:
    await eventually(lambda: (tmp_path / "seen").exists() and len(list((tmp_path / "seen").iterdir())) >= count)


def guard_of(driver: ProcessDriver, folder: TaskDir) -> int:
    """The guard process of a shim."""
    shim = folder.shim_pid()
    children = Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
    own = (int(pid) for pid in children if b"shim.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return next(own, 0)


async def test_exclusive_task_without_renewal_ends_before_lease_expiry(driver: ProcessDriver, tmp_path: Path) -> None:
    end = now() + LEASE_S
    driver.set_lease(7, end)
    await driver.start(exclusive(tmp_path))
    ended = await driver.next_exit()
    assert ended.exit.reason == "LeaseExpired" and ended.exit.signal == "SIGTERM"
    assert last_seen(tmp_path) < end - WATCHDOG_KILL_LEAD_S


async def test_exclusive_task_runs_until_end_of_renewed_lease(driver: ProcessDriver, tmp_path: Path) -> None:
    first = now() + LEASE_S
    driver.set_lease(7, first)
    started = await driver.start(exclusive(tmp_path))
    driver.set_lease(7, first + 1.5)
    ended = await driver.next_exit()
    assert ended.exit.reason == "LeaseExpired" and started.pid
    assert first - WATCHDOG_LEAD_S < last_seen(tmp_path) < first + 1.5


async def test_start_under_lease_of_other_epoch_is_refused(driver: ProcessDriver, tmp_path: Path) -> None:
    driver.set_lease(7, now() + 600)
    await driver.start(exclusive(tmp_path))
    await running(tmp_path)
    driver.set_lease(8, now() + 600)
    # Nothing wakes the watchdog early: an agent that changes its epoch has stopped all tasks before.
    with pytest.raises(StartFailed) as late:
        await driver.start(exclusive(tmp_path, "late"))
    assert late.value.reason == "NeverStarted"


async def test_exclusive_task_ignoring_sigterm_is_killed_before_lease_expiry(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    end = now() + LEASE_S
    driver.set_lease(7, end)
    await driver.start(exclusive(tmp_path, WITNESS_STUBBORN="1"))
    ended = await driver.next_exit()
    assert (ended.exit.reason, ended.exit.signal) == ("LeaseExpired", "SIGKILL")
    assert end - WATCHDOG_LEAD_S < last_seen(tmp_path) < end


async def test_start_after_lease_expiry_is_refused(driver: ProcessDriver, tmp_path: Path) -> None:
    """An agent suspended between decision and start must not start a task under an expired lease."""
    driver.set_lease(7, now() - 1)
    with pytest.raises(StartFailed) as failure:
        await driver.start(exclusive(tmp_path))
    assert failure.value.reason == "NeverStarted" and "LeaseExpired" in failure.value.message
    assert not list((tmp_path / "seen").iterdir())


async def test_exclusive_task_with_suspended_shim_ends_before_lease_expiry(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    end = now() + LEASE_S
    driver.set_lease(7, end)
    await driver.start(exclusive(tmp_path, WITNESS_FORK="1"))
    await running(tmp_path, 2)
    shim = TaskDir(tmp_path / "tasks" / "only").shim_pid()
    os.kill(shim, signal.SIGSTOP)
    await eventually(lambda: now() > end + 0.3)
    assert last_seen(tmp_path) < end
    os.kill(shim, signal.SIGCONT)
    assert (await driver.next_exit()).exit.reason in ("LeaseExpired", "Killed")


async def test_work_of_a_node_paused_beyond_its_lease_is_killed_when_the_node_goes_on(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    """Shim, guard and work are paused together, and the work resumes first: the worst order."""
    end = now() + LEASE_S
    driver.set_lease(7, end)
    started = await driver.start(exclusive(tmp_path))
    await running(tmp_path)
    folder = TaskDir(tmp_path / "tasks" / "only")
    paused = [started.pid, guard_of(driver, folder), folder.shim_pid()]
    for pid in reversed(paused):
        os.kill(pid, signal.SIGSTOP)
    await eventually(lambda: now() > end + 1.0)
    assert last_seen(tmp_path) < end
    resumed = now()
    for pid in paused:
        os.kill(pid, signal.SIGCONT)
    assert (await driver.next_exit()).exit.reason == "LeaseExpired"
    assert last_seen(tmp_path) < resumed + 1.0, "a node that resumes ends the work of its expired lease at once"


async def test_sigkill_of_shim_kills_processes_in_other_sessions(driver: ProcessDriver, tmp_path: Path) -> None:
    """Only the guard can do it: the driver does not run until long after."""
    driver.set_lease(7, now() + 600)
    await driver.start(exclusive(tmp_path, WITNESS_FORK="1"))
    await running(tmp_path, 2)
    folder = TaskDir(tmp_path / "tasks" / "only")
    killed = now()
    subprocess.run(["kill", "-9", str(folder.shim_pid())], check=True)
    time.sleep(1.0)  # blocks the event loop, and with it the driver
    assert last_seen(tmp_path) < killed + 0.9
    assert (await driver.next_exit()).exit.reason == "Killed"


async def test_killed_guard_is_restarted(driver: ProcessDriver, tmp_path: Path) -> None:
    driver.set_lease(7, now() + 600)
    await driver.start(exclusive(tmp_path))
    await running(tmp_path)
    folder = TaskDir(tmp_path / "tasks" / "only")

    def is_replaced(guard: int) -> bool:
        return guard_of(driver, folder) not in (0, guard)

    for _ in range(3):
        guard = guard_of(driver, folder)
        os.kill(guard, signal.SIGKILL)
        await eventually(partial(is_replaced, guard))
    exit_ = await driver.stop("only", 5.0)
    assert exit_.reason == "StoppedOnRequest" and not folder.shim_pid()


async def test_provisional_task_ends_at_extended_deadline(driver: ProcessDriver, tmp_path: Path) -> None:
    end = now() + LEASE_S
    provisional = msgspec.structs.replace(exclusive(tmp_path), exclusive=False, run_until_mono_s=end)
    await driver.start(provisional)
    driver.set_run_until("only", end + 1.0)
    ended = await driver.next_exit()
    assert ended.exit.reason == "ProvisionalExpired"
    assert end - WATCHDOG_LEAD_S < last_seen(tmp_path) < end + 1.0


async def test_full_disk_prevents_neither_renewal_nor_stop(small_disk: Path, tmp_path: Path) -> None:
    """The space for lease renewals and stop requests is reserved in advance."""
    driver = ProcessDriver(small_disk / "tasks", SystemClock())
    try:
        driver.set_lease(7, now() + LEASE_S)
        both = msgspec.structs.replace(exclusive(tmp_path), run_until_mono_s=now() + LEASE_S)
        await driver.start(both)
        (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "more").write_bytes(bytes(4096))
        begun = now()
        while now() < begun + LEASE_S + 1.0:
            driver.set_lease(7, now() + LEASE_S)
            driver.set_run_until("only", now() + LEASE_S)
            await asyncio.sleep(0.2)
        assert last_seen(tmp_path) > now() - 1.0, "it runs past its first deadline"
        assert (await driver.stop("only", 5.0)).reason == "StoppedOnRequest"
    finally:
        await driver.stop("only", 0.0)
        await driver.close()


async def test_unreadable_deadline_counts_as_passed(driver: ProcessDriver, tmp_path: Path) -> None:
    end = now() + LEASE_S
    await driver.start(msgspec.structs.replace(exclusive(tmp_path), exclusive=False, run_until_mono_s=end))
    await running(tmp_path)
    driver.set_run_until("only", now() + 600)
    (tmp_path / "tasks" / "only" / "run-1" / "until").write_bytes(b"9999999")
    assert (await driver.next_exit()).exit.reason == "ProvisionalExpired"
    assert last_seen(tmp_path) < end


@pytest.mark.parametrize("step", ["+3600s", "-3600s"])
async def test_wall_clock_step_does_not_move_the_deadline(tmp_path: Path, step: str) -> None:
    """Shim, guard and task all see a wall clock that is an hour off."""
    library = Path(__file__).parents[2] / ".tools" / "bin" / "libfaketime"
    if not library.exists():
        skip_or_fail("libfaketime is missing; next: make tools")
    script = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.agent import test_watchdog as t
from pathlib import Path
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.foundation.ports import SystemClock
async def main():
    driver = ProcessDriver(Path({str(tmp_path / "tasks")!r}), SystemClock())
    driver.set_lease(7, t.now() + t.LEASE_S)
    print(t.now() + t.LEASE_S, flush=True)
    await driver.start(t.exclusive(Path({str(tmp_path)!r})))
    print((await driver.next_exit()).exit.reason, flush=True)
asyncio.run(main())
"""
    env = {**os.environ, "LD_PRELOAD": str(library), "FAKETIME": step, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=30)
    end, reason = done.stdout.split()
    assert reason == "LeaseExpired", done.stderr
    assert 0 < last_seen(tmp_path) < float(end)
