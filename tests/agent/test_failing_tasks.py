"""Misbehaving tasks: each failure has its reason, and the agent keeps working."""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import eventually, task
from tests.requirements import skip_or_fail

from holdfast.agent import logs
from holdfast.agent.cgroups import (
    TASK_PROCESSES_MAX,
    CgroupV1,
    CgroupV2,
    RlimitIsolation,
    choose_isolation,
    group_of_agent,
)
from holdfast.agent.drivers.artifact_sources import ArtifactSources
from holdfast.agent.drivers.artifacts import ArtifactCache
from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.task_users import TaskUsers
from holdfast.foundation.ports import SystemClock
from holdfast.model.artifact import Artifact

# A concurrent fork bomb would fail other tests, so these run alone.
pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
HOG = "x = []\nwhile True: x.append(bytearray(4 << 20))"
BOMB = """
import os, sys, time
n = 0
while n < 2000:
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(300)
        os._exit(0)
    n += 1
print("forked", n, flush=True)
time.sleep(300)
"""


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    held = choose_isolation(f"test-{os.getpid()}")
    if isinstance(held, RlimitIsolation):
        skip_or_fail(f"{held.limitation}; next: run as root, or delegate memory and pids")
    artifacts = ArtifactCache(tmp_path / "artifacts", ArtifactSources(directories=(str(tmp_path),)))
    made = ProcessDriver(tmp_path / "tasks", SystemClock(), confinement=held, artifacts=artifacts)
    yield made
    await end_all(made, tmp_path / "tasks")
    held.close()


async def end_all(driver: ProcessDriver, root: Path) -> None:
    for path in root.iterdir():
        if path.is_dir():
            await driver.stop(path.name, 0.0)
            await driver.forget(path.name)
    await driver.close()


def _interpreter() -> str:
    """A Python that a task's own uid may execute: a virtual environment may be in a private home directory."""
    system = Path("/usr/bin/python3")
    return str(system) if system.exists() else sys.executable


def python(name: str, script: str, *, memory_bytes: int = 0, run: int = 1, **more: Any) -> Task:
    made = task(name, _interpreter(), "-S", "-c", script, run=run, **more)
    resources = {"cpu": 500, **({"memory": memory_bytes} if memory_bytes else {})}
    return msgspec.structs.replace(made, resources=resources)


async def assert_healthy(driver: ProcessDriver, name: str = "well") -> None:
    """The driver still starts and stops tasks."""
    await driver.start(python(name, "print('well')"))
    assert (await driver.next_exit()).exit.code == 0


def text(driver: ProcessDriver, name: str) -> str:
    path = driver.logs(name)
    return "\n".join(line.text for line in logs.tail(path, 1000)) if path is not None else ""


# --- control groups --------------------------------------------------------------------------------------------


async def test_task_above_memory_limit_exits_as_out_of_memory(driver: ProcessDriver) -> None:
    await driver.start(python("hog", HOG, memory_bytes=64 * MIB))
    ended = await driver.next_exit()
    assert (ended.exit.reason, ended.exit.signal) == ("OutOfMemory", "SIGKILL")
    assert "exceeded its memory limit" in ended.exit.message
    await assert_healthy(driver)


async def test_child_above_memory_limit_exits_as_out_of_memory(driver: ProcessDriver) -> None:
    script = f"import os, sys\npid = os.fork()\nif pid == 0:\n    exec({HOG!r})\n_, s = os.waitpid(pid, 0)\nsys.exit(3)"
    await driver.start(python("hog", script, memory_bytes=64 * MIB))
    assert (await driver.next_exit()).exit.reason == "OutOfMemory"


async def test_fork_bomb_is_stopped_at_process_limit(driver: ProcessDriver) -> None:
    await driver.start(python("bomb", BOMB))
    await eventually(lambda: "forked" in text(driver, "bomb"), within_s=20)
    forked = int(text(driver, "bomb").split("forked ")[1])
    used = driver.usage("bomb")
    assert forked < TASK_PROCESSES_MAX and used is not None
    assert used.processes <= TASK_PROCESSES_MAX and used.refused_forks > 0 and used.memory_bytes > 0
    await assert_healthy(driver)
    await driver.stop("bomb", 0.0)
    assert not [p for p in Path("/proc").glob("[0-9]*/environ") if marked(p, b"HOLDFAST_TASK=bomb")]


def marked(path: Path, mark: bytes) -> bool:
    try:
        return mark in path.read_bytes().split(b"\0")
    except OSError:
        return False


async def test_task_failing_at_process_limit_exits_as_too_many_processes(driver: ProcessDriver) -> None:
    script = BOMB.replace("time.sleep(300)\n", "sys.exit(9)\n", 2).replace("sys.exit(9)", "time.sleep(300)", 1)
    await driver.start(python("bomb", script))
    assert (await driver.next_exit()).exit.reason == "TooManyProcesses"


async def test_usage_of_running_task_is_measured(driver: ProcessDriver) -> None:
    await driver.start(python("busy", "x = bytearray(32 << 20)\nwhile True: pass"))
    await eventually(lambda: (used := driver.usage("busy")) and used.cpu_s > 0.2 and used.memory_bytes > 30 * MIB)
    assert driver.usage("unknown") is None


def test_cgroup_v2_is_used_when_available(tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.write_text("0::/system.slice/agent.service\n")
    home = tmp_path / "fs" / "system.slice" / "agent.service"
    home.mkdir(parents=True)
    for folder in (tmp_path / "fs", home):
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    found = choose_isolation("n1", root=tmp_path / "fs", own=own)
    assert isinstance(found, CgroupV2) and not found.limitation
    ((key, group),) = found.prepare("t", {"cpu": 1500, "memory": 64 * MIB})
    assert key == "group" and Path(str(group)) == home / "holdfast" / "n1" / "t"
    assert (Path(str(group)) / "memory.max").read_text() == str(64 * MIB)
    assert (Path(str(group)) / "pids.max").read_text() == str(TASK_PROCESSES_MAX)
    assert (home / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_agent_that_ends_leaves_groups_of_another_agent_with_its_name(tmp_path: Path) -> None:
    """Two platforms on one machine have nodes of the same names. A group is empty until its task has entered it."""
    name = f"test-{os.getpid()}"
    ending, starting = (choose_isolation(group_of_agent(name, str(tmp_path / state))) for state in "ab")
    if not isinstance(starting, CgroupV1 | CgroupV2):
        skip_or_fail(f"no control groups: {starting.limitation}")
    try:
        groups = [Path(str(group)) for _, group in starting.prepare("t", {"memory": 64 * MIB})]
        ending.close()
        assert groups and all(group.is_dir() for group in groups)
    finally:
        starting.forget("t")
        starting.close()


def test_missing_cgroups_fall_back_to_rlimits_and_report_the_limitation(tmp_path: Path) -> None:
    found = choose_isolation("n1", root=tmp_path / "nowhere", own=tmp_path / "missing")
    assert (
        isinstance(found, RlimitIsolation)
        and "missing" in found.limitation
        and "usage is not measured" in found.limitation
    )


async def test_rlimits_hold_each_task_by_its_own_uid(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip_or_fail("only root can give tasks users of their own; next: run as root")
    users = TaskUsers(tmp_path / "state", registry=tmp_path / "registry")
    held = choose_isolation("n1", "rlimits")
    driver = ProcessDriver(tmp_path / "state" / "tasks", SystemClock(), confinement=held, users=users)
    try:
        await driver.start(python("bomb", BOMB))
        await driver.start(python("hog", HOG, memory_bytes=64 * MIB))
        ended = await driver.next_exit()
        assert ended.task_id == "hog" and ended.exit.code == 1 and "MemoryError" in text(driver, "hog")
        await eventually(lambda: "forked" in text(driver, "bomb"), within_s=20)
        assert int(text(driver, "bomb").split("forked ")[1]) <= TASK_PROCESSES_MAX
        await assert_healthy(driver)
    finally:
        await end_all(driver, tmp_path / "state" / "tasks")


# --- disks -----------------------------------------------------------------------------------------------------


async def test_full_disk_loses_log_lines_but_not_the_task(small_disk: Path) -> None:
    driver = ProcessDriver(small_disk / "tasks", SystemClock())
    script = (
        "import sys\nfor i in range(40000): print('x' * 99)\nsys.stdout.flush()\nprint('end', flush=True)\nsys.exit(5)"
    )
    await driver.start(python("loud", script))
    ended = await driver.next_exit()
    assert ended.exit.code == 5, "the exit is recorded although the disk is full"
    assert "bytes of its output were lost (No space left" in ended.exit.message
    with pytest.raises(StartFailed) as failure:
        await driver.start(python("next", "pass"))
    assert failure.value.reason == "DiskFull"
    for part in (small_disk / "tasks" / "loud").glob("output.log*"):
        part.unlink()
    await assert_healthy(driver)
    await driver.close()


# --- artifacts -------------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


async def test_artifact_is_fetched_once_verified_and_cached(driver: ProcessDriver, tmp_path: Path) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(b"weights" * 1000)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "run.py").write_text("print('unpacked and run')")
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "bundle" / "run.py", "run.py")
    wanted = (
        Artifact(name="model.bin", source=str(model), digest=digest(model)),
        Artifact(name="app", source=f"file://{tmp_path / 'bundle.tar.gz'}"),
    )
    script = "import runpy; print(len(open('model.bin','rb').read())); runpy.run_path('app/run.py')"
    await driver.start(python("a", script, artifacts=wanted))
    assert (await driver.next_exit()).exit.code == 0
    assert text(driver, "a") == "7000\nunpacked and run"
    cached = ArtifactCache(tmp_path / "artifacts", ArtifactSources()).cached_digests()
    assert set(cached) == {digest(model), digest(tmp_path / "bundle.tar.gz")}
    model.unlink()  # cached by digest: the source is not needed again
    await driver.start(python("b", "print(len(open('model.bin','rb').read()))", artifacts=wanted[:1]))
    assert (await driver.next_exit()).exit.code == 0


@pytest.mark.parametrize(
    ("source", "claimed", "reason"),
    [
        ("missing.bin", "", "ArtifactMissing"),
        ("http://127.0.0.1:9/nobody-listens", "", "ArtifactMissing"),
        ("there.bin", "sha256:" + "0" * 64, "ArtifactMismatch"),
        ("there.tar.gz", "", "ArtifactMismatch"),
    ],
)
async def test_unusable_artifact_fails_start_with_reason(
    driver: ProcessDriver, tmp_path: Path, source: str, claimed: str, reason: str
) -> None:
    (tmp_path / "there.bin").write_bytes(b"other bytes")
    (tmp_path / "there.tar.gz").write_bytes(b"no archive")
    where = source if "://" in source else str(tmp_path / source)
    with pytest.raises(StartFailed) as failure:
        await driver.start(python("a", "pass", artifacts=(Artifact(name="x", source=where, digest=claimed),)))
    assert failure.value.reason == reason
    assert where in failure.value.message or "unpack" in failure.value.message
    await assert_healthy(driver)
