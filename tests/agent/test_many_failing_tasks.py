"""Many failing tasks at once on one real agent: each has its reason, and a healthy task is unaffected."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.agent.agent_world import World, config, eventually, template
from tests.agent.test_failing_tasks import BOMB, python
from tests.expected import present

from holdfast.agent.drivers.artifact_sources import ArtifactSources
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.records import LOG_FILE_BYTES_MAX, LOG_FILES_MAX
from holdfast.agent.main import run_agent
from holdfast.foundation.ports import SystemPorts
from holdfast.model.artifact import Artifact
from holdfast.model.probe import ExecProbe, Probe
from holdfast.model.replica import ExecutionBlock
from holdfast.model.template import Port, Probes, Template

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

HANGS = Probe(exec=ExecProbe(command=("sleep", "60")), timeout_seconds=0.3, period_seconds=0.2, failure_threshold=1)
DEAF = "trap '' TERM; while true; do sleep 0.1; done"
FLOOD = "while True: print('x' * 1000)"


def script(text: str) -> Template:
    return python("", text).template


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = await World(SystemPorts()).start()
    yield made
    await made.close()
    for state in (tmp_path, tmp_path / "disk"):
        driver = ProcessDriver(state / "tasks", SystemPorts().clock)
        for found in await driver.inspect():
            await driver.stop(found.task.id, 0.0)
        await driver.close()


async def test_each_failing_task_has_its_reason_and_neighbour_is_unaffected(world: World, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"good")
    wrong = "sha256:" + hashlib.sha256(b"other").hexdigest()
    bomb = BOMB.replace("time.sleep(300)\n", "sys.exit(9)\n", 2).replace("sys.exit(9)", "time.sleep(300)", 1)
    works = {
        "well": template("sleep", "600"),
        "absent": template("/no/such/program"),
        "unfetched": template("true", artifacts=(Artifact(name="data", source=str(tmp_path / "nowhere")),)),
        "forged": template("true", artifacts=(Artifact(name="data", source=str(data), digest=wrong),)),
        "stuck": template("sleep", "600", probes=Probes(liveness=HANGS)),
        "unready": template("sleep", "600", probes=Probes(readiness=HANGS)),
        "deaf": template("sh", "-c", DEAF, termination_grace_seconds=1.0),
        "late": template("sleep", "600", ports=(Port(name="http"),)),
        "flood": script(FLOOD),
        "bomb": script(bomb),
    }
    sources = ArtifactSources(directories=(str(tmp_path),))
    settings = config(state_dir=str(tmp_path), artifacts=sources)
    running = asyncio.create_task(run_agent(settings, world.agent(), world.ports))
    try:
        await eventually(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
        await world.bind("well", works["well"])
        await eventually(lambda: world.ready("well"))
        pid = present(world.replica("well").status.execution).pid
        stranger = socket.create_server(("127.0.0.1", 0))
        given = {"late": {"http": stranger.getsockname()[1]}}
        for name in list(works)[1:]:
            await world.bind(name, works[name], ports=given.get(name, {}))
        for name, reason in (
            ("absent", "CommandNotFound"),
            ("unfetched", "ArtifactMissing"),
            ("forged", "ArtifactMismatch"),
            ("stuck", "LivenessFailed"),
            ("bomb", "TooManyProcesses"),
            ("late", "AssignedPortInUse"),
        ):
            await eventually(partial(is_reported, world, name, reason), within_s=40)
        await eventually(lambda: "0.3 s" in execution_of(world, "unready").message)
        assert not execution_of(world, "unready").ready and execution_of(world, "unready").restarts == 0

        stranger.close()
        await eventually(lambda: world.ready("late"), within_s=40)  # it starts as soon as the port is free

        await eventually(lambda: world.ready("deaf"))
        await world.request_stop("deaf", stop_grace_seconds=1.0)
        await eventually(lambda: world.binding("deaf").status.acknowledged_at, within_s=20)
        ended = present(world.binding("deaf").status.last_exit)
        assert ended.signal == "SIGKILL" and "did not end within" in ended.message

        bound = LOG_FILE_BYTES_MAX * (LOG_FILES_MAX + 2)
        await eventually(lambda: len(logs_of(tmp_path, "flood")) > 1, within_s=40)
        assert sum(path.stat().st_size for path in logs_of(tmp_path, "flood")) < bound

        requests = len(world.renewal_service.requests)
        await eventually(lambda: len(world.renewal_service.requests) > requests, within_s=30)
        assert not running.done(), "the agent is healthy"
        assert present(world.node()).status.execution.quarantine is None, "the node is not quarantined"
        healthy = execution_of(world, "well")
        assert (healthy.ready, healthy.restarts, healthy.pid) == (True, 0, pid), "the healthy task was unaffected"
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 30)


def execution_of(world: World, name: str) -> ExecutionBlock:
    return present(world.replica(name).status.execution)


def reasons(world: World, name: str) -> set[str]:
    block = world.replica(name).status.execution
    if block is None:
        return set()
    return {block.reason, block.last_exit.reason if block.last_exit is not None else ""}


def is_reported(world: World, name: str, reason: str) -> bool:
    return reason in reasons(world, name)


def logs_of(state: Path, name: str) -> list[Path]:
    return [path for path in state.glob("tasks/*/output.log*") if name in path.parent.name]


async def test_agent_on_full_disk_keeps_running_and_recovers(small_disk: Path, world: World) -> None:
    """State directory, tasks and logs are all on the full disk."""
    running = asyncio.create_task(run_agent(config(state_dir=str(small_disk)), world.agent(), world.ports))
    try:
        await eventually(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
        await world.bind("well", template("sleep", "600"))
        await eventually(lambda: world.ready("well"))
        pid = execution_of(world, "well").pid
        await world.bind("flood", script(FLOOD))
        await eventually(lambda: shutil.disk_usage(small_disk).free < 4096, within_s=30)
        for name in ("next", "another"):
            await world.bind(name, template("sleep", "600"))
            await eventually(partial(is_reported, world, name, "DiskFull"), within_s=30)
        requests = len(world.renewal_service.requests)
        await eventually(lambda: len(world.renewal_service.requests) > requests + 1, within_s=30)
        assert not running.done(), "the agent still renews its lease"
        assert world.ready("flood"), "lost output is reported at the exit; the task is not stopped for it"
        healthy = execution_of(world, "well")
        assert (healthy.ready, healthy.restarts, healthy.pid) == (True, 0, pid), "the healthy task was unaffected"

        await world.request_stop("flood", stop_grace_seconds=1.0)
        await eventually(lambda: world.binding("flood").status.acknowledged_at, within_s=30)
        assert (
            "bytes of its output were lost (No space left" in present(world.binding("flood").status.last_exit).message
        )
        await world.free("flood")  # its logs are deleted with it, which frees space
        for name in ("next", "another"):
            await eventually(partial(world.ready, name), within_s=60)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 30)
