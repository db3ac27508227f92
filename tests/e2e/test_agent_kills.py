"""Agents, watchdogs and cells are killed, stopped and partitioned while tasks run. The tasks record when they ran.

`HOLDFAST_KILL_ROUNDS` is the number of kills (200 in `make prove`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.joined_agent import joined_agent
from tests.platforms import TENANCY, RunningPlatform, holdfast, running_platform, wait_until
from tests.witness_intervals import intervals, overlaps

from holdfast.agent.drivers.records import TaskDir
from holdfast.drills import outage
from holdfast.platform.layout import Layout
from holdfast.samples import witness

ROUNDS = int(os.environ.get("HOLDFAST_KILL_ROUNDS") or 15)

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(400 + 20 * ROUNDS)]

EXCLUSIVE, PLAIN = 3, 4
MOVED_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("kills") / "state"
    with running_platform(state, "--regions", "us-east", "--no-samples") as running:
        witness_folder(running).mkdir()
        witness_folder(running).chmod(0o1777)
        running.apply(
            *TENANCY,
            workload("only", running, EXCLUSIVE, exclusive={"scope": "Region"}),
            workload("many", running, PLAIN),
        )
        wait_until(lambda: len(running_replicas(running)) == EXCLUSIVE + PLAIN, within_s=90, what="all of it runs")
        yield running


def workload(name: str, running: RunningPlatform, replicas: int, **spec: Any) -> dict[str, Any]:
    template = {
        "command": ["python3", "-m", "holdfast.samples.witness"],
        "env": {"WITNESS_DIR": str(witness_folder(running)), "WITNESS_FORK": "1" if spec else ""},
        "resources": {"cpu": "10m", "memory": "64Mi"},
        "terminationGraceSeconds": 1,
    }
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "acme"},
        "spec": {"replicas": replicas, "template": template, **spec},
    }


def witness_folder(running: RunningPlatform) -> Path:
    return running.state / "shared"


def running_replicas(running: RunningPlatform) -> dict[str, list[int]]:
    """Replica → its running processes, from the witness files and /proc."""
    found: dict[str, list[int]] = {}
    for path in sorted(witness_folder(running).iterdir()) if witness_folder(running).exists() else ():
        replica, pid, *_ = path.name.rsplit(".", 3)
        if replica.endswith("-child"):
            continue
        with contextlib.suppress(OSError):
            if b"holdfast.samples.witness" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.setdefault(replica, []).append(int(pid))
    return found


def tasks(running: RunningPlatform) -> list[TaskDir]:
    return [TaskDir(path) for path in sorted(running.state.glob("agents/*/tasks/*")) if path.is_dir()]


def shims(running: RunningPlatform) -> list[int]:
    return [pid for folder in tasks(running) if (pid := folder.shim_pid())]


def guards(running: RunningPlatform) -> list[int]:
    """Watchdogs: the children of shims that are not tasks."""
    return [guard for shim in shims(running) for guard in guards_of(shim)]


def guards_of(shim: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{shim}/task/{shim}/children").read_text().split():
            if b"shim.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def guarded_shims(running: RunningPlatform) -> list[int]:
    return [shim for shim in shims(running) if guards_of(shim)]


def processes(running: RunningPlatform, kind: str) -> list[int]:
    return [p["pid"] for p in running.status()["processes"] if p["name"].startswith(kind) and p["pid"]]


def all_run_once(running: RunningPlatform) -> bool:
    replicas = running_replicas(running)
    return len(replicas) == EXCLUSIVE + PLAIN and all(len(pids) == 1 for pids in replicas.values())


def test_killed_processes_lose_and_duplicate_nothing(platform: RunningPlatform) -> None:
    rng = random.Random(5)
    targets: dict[str, Callable[[], list[int]]] = {
        "agent": lambda: processes(platform, "agent-"),
        "shim": lambda: shims(platform),
        "guard": lambda: guards(platform),
        "shim and guard": lambda: guarded_shims(platform),
        "cell": lambda: processes(platform, "cell-us-east"),
    }
    killed: dict[str, int] = {}
    for index in range(ROUNDS):
        # The supervisor restarts agents and cells with a growing backoff, so they are killed less often.
        kind = ("shim", "guard", "agent", "shim and guard", "guard", "cell")[index % 6]
        pids = wait_until(targets[kind], within_s=120, what=f"there is a {kind} to kill")
        with contextlib.suppress(ProcessLookupError):
            pid = rng.choice(pids)
            for other in guards_of(pid) if kind == "shim and guard" else ():
                os.kill(pid, signal.SIGSTOP)  # neither sees the death of the other
                os.kill(other, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            killed[kind] = killed.get(kind, 0) + 1
        time.sleep(rng.uniform(0.1, 1.5))
        doubled = {replica: pids for replica, pids in running_replicas(platform).items() if len(pids) > 1}
        assert not doubled, f"round {index}, after {kind}"
        assert not overlaps(str(witness_folder(platform))), f"round {index}, after {kind}"
    wait_until(lambda: all_run_once(platform), within_s=120, what=f"everything runs once: {running_replicas(platform)}")
    assert not overlaps(str(witness_folder(platform)))
    assert set(killed) == set(targets), killed
    print(f"killed {killed}; {sum(len(runs) for runs in intervals(str(witness_folder(platform))).values())} runs")


def exclusive_overlaps(running: RunningPlatform) -> list[str]:
    """Overlapping runs of exclusive replicas. Others may overlap briefly after a node is fenced."""
    return [text for text in overlaps(str(witness_folder(running))) if text.startswith("only-")]


def has_moved(running: RunningPlatform, replica: str, before: tuple[int, ...]) -> bool:
    return bool([pid for pid in running_replicas(running).get(replica, []) if pid not in before])


def exclusive_on(running: RunningPlatform, agent: str) -> tuple[str, int]:
    """An exclusive replica on the agent's node, and its process. Read from the process environment, because the records
    of an agent that was down may be stale."""
    for replica, (pid, *_) in running_replicas(running).items():
        if not replica.startswith("only-"):
            continue
        with contextlib.suppress(OSError):
            if f"HOLDFAST_NODE={agent}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return replica, pid
    return "", 0


def any_exclusive(running: RunningPlatform) -> tuple[str, str, int]:
    for name in ("us-east-1", "us-east-2"):
        replica, pid = exclusive_on(running, name)
        if replica:
            return name, replica, pid
    raise AssertionError("no exclusive work runs")


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "dead"])
def test_exclusive_task_of_an_unresponsive_agent_stops_before_its_successor_runs(
    platform: RunningPlatform, how: signal.Signals
) -> None:
    wait_until(lambda: all_run_once(platform), within_s=150, what="everything runs")
    name, replica, pid = any_exclusive(platform)
    layout, process = Layout(str(platform.state)), f"agent-{name}"
    agent = platform.pid(process)
    silent_at = witness.boottime_s()
    if how is signal.SIGKILL:
        outage.hold_down(layout, [process])  # prevents its restart
    os.kill(agent, how)
    try:
        wait_until(lambda: has_moved(platform, replica, (pid,)), within_s=MOVED_WITHIN_S, what="it runs elsewhere")
    finally:
        outage.allow_restart(layout, [process])
        if how is signal.SIGSTOP:
            os.kill(agent, signal.SIGCONT)
    first = intervals(str(witness_folder(platform)))[replica]
    assert any(silent_at < end < silent_at + 15 for _, end in first), "it ended before the lease expired"
    assert not exclusive_overlaps(platform)
    plain = [other for other in running_replicas(platform) if other.startswith("many-")]
    assert len(plain) == PLAIN, "other tasks keep running"
    wait_until(lambda: all_run_once(platform), within_s=90, what="the zombies of the node are gone")
    assert not exclusive_overlaps(platform)


class Proxy:
    """A TCP proxy. While `cut` is set it forwards nothing."""

    def __init__(self, port: int) -> None:
        self.target, self.cut, self.port = port, False, 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(
            self._pump(reader, upstream_writer), self._pump(upstream_reader, writer), return_exceptions=True
        )

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            while self.cut:
                await asyncio.sleep(0.05)
            sink.write(data)
            await sink.drain()
        sink.close()


def test_partitioned_agent_stops_exclusive_tasks_and_returns(platform: RunningPlatform) -> None:
    """A third agent reaches its region only through a proxy. The proxy is cut while the agent runs exclusive tasks."""
    proxy = Proxy(Layout(str(platform.state)).load().regions[0].port)
    name = "us-east-9"
    with joined_agent(platform, "us-east", name, port=proxy.port), contextlib.ExitStack() as stack:
        stack.callback(setattr, proxy, "cut", False)
        wait_until(
            lambda: any(n["name"] == name and n["schedulable"] for n in platform.status()["nodes"]),
            within_s=30,
            what="the agent registers",
        )
        for other in ("us-east-1", "us-east-2"):
            holdfast("node", "cordon", other, "--state", str(platform.state))
        old = any_exclusive(platform)
        platform.kubectl("--context", "us-east", "delete", "replica", "-n", "acme", old[1], "--wait=false")
        wait_until(lambda: exclusive_on(platform, name)[0], within_s=60, what="exclusive work runs behind the proxy")
        for other in ("us-east-1", "us-east-2"):
            holdfast("node", "uncordon", other, "--state", str(platform.state))
        replica, pid = exclusive_on(platform, name)
        proxy.cut = True
        cut_at = witness.boottime_s()
        wait_until(lambda: has_moved(platform, replica, (pid,)), within_s=MOVED_WITHIN_S, what="it runs elsewhere")
        ends = [end for _, end in intervals(str(witness_folder(platform)))[replica]]
        assert any(cut_at < end < cut_at + 15 for end in ends), "it ended before the lease expired"
        assert not exclusive_overlaps(platform)
        proxy.cut = False
        wait_until(
            lambda: any(n["name"] == name and n["schedulable"] for n in platform.status()["nodes"]),
            within_s=60,
            what="the agent is taken back under a new epoch",
        )
        assert not exclusive_overlaps(platform)
