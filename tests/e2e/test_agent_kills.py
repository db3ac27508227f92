"""Agents, watchdogs and cells are killed, stopped and cut off under running work; the work itself says what it lived.

`HOLDFAST_KILL_ROUNDS` is how often (`make prove` asks for 200).
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
from joined_agent import joined_agent
from tests.platforms import TENANCY, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.agent.drivers.records import TaskDir
from holdfast.drills import outage
from holdfast.platform.layout import Layout
from holdfast.samples import witness
from witness_intervals import intervals, overlaps

ROUNDS = int(os.environ.get("HOLDFAST_KILL_ROUNDS") or 15)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.waits,
    pytest.mark.timeout(400 + 20 * ROUNDS),
]

EXCLUSIVE, PLAIN = 3, 4
MOVED_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("kills") / "state"
    with running_platform(state, "--regions", "us-east", "--no-samples") as up:
        up.apply(*TENANCY, workload("only", up, EXCLUSIVE, exclusive={"scope": "Region"}), workload("many", up, PLAIN))
        wait_until(lambda: len(alive(up)) == EXCLUSIVE + PLAIN, within_s=90, what="all of it runs")
        yield up


def workload(name: str, up: RunningPlatform, replicas: int, **spec: Any) -> dict[str, Any]:
    template = {
        "command": ["python3", "-m", "holdfast.samples.witness"],
        "env": {"WITNESS_DIR": str(seen(up)), "WITNESS_FORK": "1" if spec else ""},
        "resources": {"cpu": "10m", "memory": "64Mi"}, "terminationGraceSeconds": 1,
    }  # fmt: skip
    return {
        "apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": name, "namespace": "acme"},
        "spec": {"replicas": replicas, "template": template, **spec},
    }  # fmt: skip


def seen(up: RunningPlatform) -> Path:
    return up.state / "seen"


def alive(up: RunningPlatform) -> dict[str, list[int]]:
    """Replica → the processes that beat right now, by the word of the kernel and of the files they write."""
    found: dict[str, list[int]] = {}
    for path in sorted(seen(up).iterdir()) if seen(up).exists() else ():
        replica, pid, *_ = path.name.rsplit(".", 3)
        if replica.endswith("-child"):
            continue
        with contextlib.suppress(OSError):
            if b"holdfast.samples.witness" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.setdefault(replica, []).append(int(pid))
    return found


def tasks(up: RunningPlatform) -> list[TaskDir]:
    return [TaskDir(path) for path in sorted(up.state.glob("agents/*/tasks/*")) if path.is_dir()]


def shims(up: RunningPlatform) -> list[int]:
    return [pid for folder in tasks(up) if (pid := folder.shim_pid())]


def guards(up: RunningPlatform) -> list[int]:
    """Children of shims that are not the work."""
    found = []
    for shim in shims(up):
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{shim}/task/{shim}/children").read_text().split():
                if b"shim.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def processes(up: RunningPlatform, kind: str) -> list[int]:
    return [p["pid"] for p in up.status()["processes"] if p["name"].startswith(kind) and p["pid"]]


def settled(up: RunningPlatform) -> bool:
    running = alive(up)
    return len(running) == EXCLUSIVE + PLAIN and all(len(pids) == 1 for pids in running.values())


def test_whatever_is_killed_nothing_is_lost_and_nothing_doubled(platform: RunningPlatform) -> None:
    chance = random.Random(5)
    targets: dict[str, Callable[[], list[int]]] = {
        "agent": lambda: processes(platform, "agent-"), "shim": lambda: shims(platform),
        "guard": lambda: guards(platform), "cell": lambda: processes(platform, "cell-us-east"),
    }  # fmt: skip
    killed: dict[str, int] = {}
    for index in range(ROUNDS):
        # What the platform's supervisor must start again, after a pause that grows, is killed less often.
        kind = ("shim", "guard", "agent", "shim", "guard", "cell")[index % 6]
        pids = wait_until(targets[kind], within_s=120, what=f"there is a {kind} to kill")
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(pids), signal.SIGKILL)
            killed[kind] = killed.get(kind, 0) + 1
        time.sleep(chance.uniform(0.1, 1.5))
        doubled = {replica: pids for replica, pids in alive(platform).items() if len(pids) > 1}
        assert not doubled, f"round {index}, after {kind}"
        assert not overlaps(str(seen(platform))), f"round {index}, after {kind}"
    wait_until(lambda: settled(platform), within_s=120, what=f"everything runs once: {alive(platform)}")
    assert not overlaps(str(seen(platform)))
    assert set(killed) == set(targets), killed
    print(f"killed {killed}; {sum(len(runs) for runs in intervals(str(seen(platform))).values())} runs")


def breaches(up: RunningPlatform) -> list[str]:
    """Overlaps of exclusive work. Other work may be doubled for a moment once a node is fenced: that is the deal."""
    return [words for words in overlaps(str(seen(up))) if words.startswith("only-")]


def moved(up: RunningPlatform, replica: str, before: tuple[int, ...]) -> bool:
    return bool([pid for pid in alive(up).get(replica, []) if pid not in before])


def one_of(up: RunningPlatform, agent: str) -> tuple[str, int]:
    """An exclusive replica that runs on an agent, and its process; by the word of the process itself, as an agent
    that was away has records of what runs elsewhere by now."""
    for replica, (pid, *_) in alive(up).items():
        if not replica.startswith("only-"):
            continue
        with contextlib.suppress(OSError):
            if f"HOLDFAST_NODE={agent}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return replica, pid
    return "", 0


def busiest(up: RunningPlatform) -> tuple[str, str, int]:
    for name in ("us-east-1", "us-east-2"):
        replica, pid = one_of(up, name)
        if replica:
            return name, replica, pid
    raise AssertionError("no exclusive work runs")


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "dead"])
def test_an_agent_that_is_away_loses_its_exclusive_work_before_it_runs_elsewhere(
    platform: RunningPlatform, how: signal.Signals
) -> None:
    wait_until(lambda: settled(platform), within_s=150, what="everything runs")
    name, replica, pid = busiest(platform)
    layout, process = Layout(str(platform.state)), f"agent-{name}"
    agent = platform.pid(process)
    gone_at = witness.boottime_s()
    if how is signal.SIGKILL:
        outage.hold_down(layout, [process])  # nobody starts it again
    os.kill(agent, how)
    try:
        wait_until(lambda: moved(platform, replica, (pid,)), within_s=MOVED_WITHIN_S, what="it runs elsewhere")
    finally:
        outage.allow_restart(layout, [process])
        if how is signal.SIGSTOP:
            os.kill(agent, signal.SIGCONT)
    first = intervals(str(seen(platform)))[replica]
    assert any(gone_at < end < gone_at + 15 for _, end in first), "it ended before the lease could"
    assert not breaches(platform)
    plain = [other for other in alive(platform) if other.startswith("many-")]
    assert len(plain) == PLAIN, "work that is not exclusive does not notice"
    wait_until(lambda: settled(platform), within_s=90, what="the zombies of the node are gone")
    assert not breaches(platform)


class Proxy:
    """A TCP proxy that can be cut: what is open stays silent, what is new is not answered."""

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
        there_r, there_w = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pump(reader, there_w), self._pump(there_r, writer), return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            while self.cut:
                await asyncio.sleep(0.05)
            sink.write(data)
            await sink.drain()
        sink.close()


def test_a_cut_off_agent_ends_its_exclusive_work_and_returns(platform: RunningPlatform) -> None:
    """A third agent, which reaches its region only through a proxy, takes the work; then the proxy is cut."""
    proxy = Proxy(Layout(str(platform.state)).load().regions[0].port)
    name = "us-east-9"
    with joined_agent(platform, "us-east", name, port=proxy.port), contextlib.ExitStack() as mended:
        mended.callback(setattr, proxy, "cut", False)
        wait_until(lambda: any(n["name"] == name and n["schedulable"] for n in platform.status()["nodes"]), within_s=30,
              what="the agent registers")  # fmt: skip
        for other in ("us-east-1", "us-east-2"):
            holdfast("node", "cordon", other, "--state", str(platform.state))
        old = busiest(platform)
        platform.kubectl("--context", "us-east", "delete", "replica", "-n", "acme", old[1], "--wait=false")
        wait_until(lambda: one_of(platform, name)[0], within_s=60, what="exclusive work runs behind the proxy")
        for other in ("us-east-1", "us-east-2"):
            holdfast("node", "uncordon", other, "--state", str(platform.state))
        replica, pid = one_of(platform, name)
        proxy.cut = True
        cut_at = witness.boottime_s()
        wait_until(lambda: moved(platform, replica, (pid,)), within_s=MOVED_WITHIN_S, what="it runs elsewhere")
        ends = [end for _, end in intervals(str(seen(platform)))[replica]]
        assert any(cut_at < end < cut_at + 15 for end in ends), "it ended before the lease could"
        assert not breaches(platform)
        proxy.cut = False
        wait_until(lambda: any(n["name"] == name and n["schedulable"] for n in platform.status()["nodes"]), within_s=60,
              what="the agent is taken back under a new epoch")  # fmt: skip
        assert not breaches(platform)
