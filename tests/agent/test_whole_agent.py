"""The complete agent: real processes, probes and files against the real gate and store; and the samples."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.agent.agent_world import REGION, TENANT, World, config, eventually, task, template, unnumbered
from tests.expected import present

from holdfast.agent import logs
from holdfast.agent.config import load, merged_node, node_from_config
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.main import run_agent
from holdfast.agent.persisted_state import FileStateStore, PersistedState
from holdfast.foundation.ports import SystemPorts
from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.probe import HttpProbe, Probe
from holdfast.model.replica import Phase
from holdfast.model.template import Port, Probes


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = await World(SystemPorts()).start()
    yield made
    await made.close()


@pytest.fixture(autouse=True)
async def nothing_left(tmp_path: Path) -> AsyncIterator[None]:
    """Tasks outlive agents by design, but must not outlive tests."""
    yield
    if (tmp_path / "tasks").exists():
        driver = ProcessDriver(tmp_path / "tasks", SystemPorts().clock)
        for found in await driver.inspect():
            await driver.stop(found.task.id, 0.0)
        await driver.close()


@asynccontextmanager
async def agent(world: World, state_dir: Path, *, stop_work: bool = False) -> AsyncIterator[None]:
    settings = msgspec.structs.replace(config(state_dir=str(state_dir)), stop_work_on_exit=stop_work)
    running = asyncio.create_task(run_agent(settings, world.agent(), world.ports))
    try:
        yield
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 20)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def risk_api() -> tuple[dict[str, int], object]:
    ready = Probe(http=HttpProbe(path="/readyz"), period_seconds=0.1)
    made = template(
        sys.executable,
        "-m",
        "holdfast.samples.risk_api",
        ports=(Port(name="http"),),
        probes=Probes(readiness=ready),
        env={"WARM_UP_SECONDS": "0.1"},
    )
    return {"http": free_port()}, made


async def ask(port: int, path: str = "/") -> dict[str, object]:
    def get() -> dict[str, object]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return dict(json.load(answer))

    return await asyncio.to_thread(get)


async def test_task_serves_survives_agent_restart_and_is_stopped(world: World, tmp_path: Path) -> None:
    ports, made = risk_api()
    async with agent(world, tmp_path):
        await eventually(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
        await world.bind("a", made, ports=ports, epoch=5)  # type: ignore[arg-type]
        await eventually(lambda: world.ready("a"))
        response = await ask(ports["http"])
        assert (response["workload"], response["region"], response["node"], response["replica"], response["epoch"]) == (
            "api",
            REGION,
            "n1",
            "a",
            5,
        )
        pid = present(world.replica("a").status.execution).pid
        assert response["pid"] == pid
        # The task is killed from outside: it is reported and restarted.
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: world.ready("a") and present(world.replica("a").status.execution).restarts == 1)
        before = present(world.replica("a").status.execution)
        assert present(before.last_exit).signal == "SIGKILL" and before.pid != pid
    assert (await ask(ports["http"]))["pid"] == before.pid, "the task outlives the agent"

    async with agent(world, tmp_path):
        await eventually(lambda: world.renewal_service.requests[-1] == ("n1", 1))
        await asyncio.sleep(0.5)
        assert unnumbered(world.replica("a").status.execution) == unnumbered(before)
        (found,) = logs.find_task_logs(tmp_path / "tasks", TENANT, "a")
        assert any("risk-api listens on" in line.text for line in logs.tail(found.path, 100))
        await world.request_stop("a")
        await eventually(lambda: world.binding("a").status.acknowledged_at)
        assert world.binding("a").status.phase is Phase.STOPPED
        assert present(world.binding("a").status.last_exit).code == 0, "the sample exits cleanly on SIGTERM"


async def test_agent_with_stop_work_on_exit_stops_tasks(world: World, tmp_path: Path) -> None:
    async with agent(world, tmp_path, stop_work=True):
        await world.bind("a", template("sleep", "300"))
        await eventually(lambda: world.ready("a"))
        pid = present(world.replica("a").status.execution).pid
    assert not Path(f"/proc/{pid}").exists()
    assert world.phase("a") == Phase.STOPPED


def test_second_agent_on_state_directory_is_refused(tmp_path: Path) -> None:
    first = FileStateStore(tmp_path)
    with pytest.raises(Unavailable, match="in use by another agent"):
        FileStateStore(tmp_path)
    first.save(PersistedState(epoch=4, fenced_epoch=3, lease_until_mono_s=12.5))
    first.close()
    second = FileStateStore(tmp_path)
    assert (second.load().epoch, second.load().fenced_epoch, second.load().lease_until_mono_s) == (4, 3, 12.5)
    second.close()
    text = json.loads((tmp_path / "agent.json").read_text())
    (tmp_path / "agent.json").write_text(json.dumps({**text, "boot": "an earlier boot"}))
    third = FileStateStore(tmp_path)
    assert (third.load().epoch, third.load().lease_until_mono_s) == (4, 0.0), "a monotonic time is void after a reboot"
    third.close()


def test_configuration_is_validated_and_merged_into_stored_node(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        'name = "n1"\nregion = "us-east"\nzone = "us-east-a"\nstate_dir = "state"\nport_range = [21000, 21099]\n'
        'labels = { disk = "fast" }\n[[devices]]\nid = "gpu-0"\nmodel = "a100"\n[[taints]]\nkey = "gpu"\n'
    )
    made = load(str(file), zone="us-east-b", pool=None)
    assert (made.zone, made.pool, made.port_range) == ("us-east-b", "default", (21000, 21099))
    assert made.devices[0].model == "a100" and int(str(made.capacity["cpu"])) >= 1 and made.capacity["memory"]
    with pytest.raises(Invalid, match="zone"):
        load(str(file), zone="Not A Zone")
    with pytest.raises(Invalid, match="unknown field"):
        load(str(file), surprise=1)
    with pytest.raises(Invalid, match="cannot read it"):
        load(str(tmp_path / "absent.toml"))

    stored = node_from_config(made)
    assert merged_node(made, stored) is None
    spec = msgspec.structs.replace(stored.spec, unschedulable=True, drain=True, zone="old")
    meta = msgspec.structs.replace(stored.metadata, labels={"disk": "slow", "team": "x"})
    mended = merged_node(made, msgspec.structs.replace(stored, spec=spec, metadata=meta))
    assert mended is not None
    assert mended.spec.unschedulable and mended.spec.drain and mended.spec.zone == "us-east-b"
    assert mended.metadata.labels == {"disk": "fast", "team": "x"}


async def test_followed_log_loses_no_line_across_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.drivers.records.LOG_FILE_BYTES_MAX", 4096)
    driver = ProcessDriver(tmp_path, SystemPorts().clock)
    lines = "for i in $(seq 1 60); do echo line $i; [ $((i % 20)) = 0 ] && sleep 0.5; done"
    script = f"{lines}; echo oops >&2; printf half; sleep 30"
    await driver.start(task("a", "sh", "-c", script))
    path = driver.logs("a")
    assert path is not None
    await eventually(path.exists)
    seen: list[logs.StoredLogLine] = []
    async with asyncio.timeout(20):
        async for line in logs.follow(path, SystemPorts().clock, lines=1000):
            seen.append(line)
            if not line.complete:
                break
    await driver.stop("a", 0.0)
    assert [line.text for line in seen[:60]] == [f"line {i}" for i in range(1, 61)]
    assert (seen[60].stream, seen[60].text) == ("stderr", "oops") and seen[61].text == "half"
    assert [line.text for line in logs.tail(path, 2)] == ["oops", "half"]
    await driver.close()


def test_batch_sample_exits_successfully() -> None:
    command = [sys.executable, "-m", "holdfast.samples.fraud_batch"]
    env = {**os.environ, "FRAUD_SECONDS": "0.3"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "10/10" in done.stdout


@pytest.mark.parametrize("name", ["billing_api", "search_indexer", "analytics"])
def test_service_sample_responds_and_stops_on_sigterm(name: str, tmp_path: Path) -> None:
    port = free_port()
    env = {**os.environ, "PORT": str(port), "HOLDFAST_WORKLOAD": name, "INDEX_MEMORY_MB": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", f"holdfast.samples.{name}"], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        while "listens on" not in process.stdout.readline():
            assert process.poll() is None
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            assert json.load(answer) == {"ok": True}
        time.sleep(0.25)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            assert json.load(answer)["workload"] == name
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
    if name == "analytics":
        assert json.loads((tmp_path / "checkpoint.json").read_text())["rows"] > 0


def test_agent_main_imports_no_heavy_modules() -> None:
    heavy = ["numpy", "uvicorn", "apsw", "cryptography", "click", "yaml", "aiohttp"]
    script = f"import holdfast.agent.main, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr
