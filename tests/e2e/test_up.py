"""A whole platform from the command line, as a user has it: up, served, scaled, killed, healed, down, nothing left.

One platform serves the tests of this file, in order; the last ones end it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.sim.recorded import check_platform
from needs import lacking

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.xdist_group("platform")]

ROOT = Path(__file__).resolve().parents[2]
SERVING_WITHIN_S = 60.0
HEALED_WITHIN_S = 90.0


def holdfast(*words: str, timeout_s: float = 120.0, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CI": "true"}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=timeout_s, env=env
    )
    if check:
        assert done.returncode == 0, f"holdfast {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def free_port_base() -> int:
    """A base whose ports are free, below the range the system picks from; each worker of the tests has its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    first = 11000 + worker * 5000
    for base in range(first + os.getpid() % 4 * 500, first + 5000, 500):
        with contextlib.ExitStack() as held:
            try:
                for port in (*range(base, base + 5), *range(base + 100, base + 400, 25)):
                    probe = held.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports")


def until(true: Callable[[], Any], *, within_s: float, what: str) -> Any:
    deadline = time.monotonic() + within_s
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < deadline, f"within {within_s:.0f} s: {what}"
        time.sleep(0.3)


def processes_of(state: Path) -> list[str]:
    """Every live process that has anything to do with the directory: by command line, directory or environment."""
    found = []
    me = {os.getpid(), os.getppid()}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in me:
            continue
        try:
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            command = (entry / "cmdline").read_bytes()
            about = command + (entry / "environ").read_bytes() + os.fsencode(os.readlink(entry / "cwd"))
        except OSError:
            continue
        if os.fsencode(state) in about:
            found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode(errors='replace')[:150]}")
    return found


class Up:
    """A running platform and the ways a user has to it."""

    def __init__(self, state: Path, base: int, told: dict[str, Any], took_s: float) -> None:
        self.state = state
        self.base = base
        self.told = told
        self.took_s = took_s

    def status(self) -> dict[str, Any]:
        done = holdfast("status", "--state", str(self.state), "-o", "json", check=False)
        assert done.stdout, f"holdfast status says nothing: {done.returncode}\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def workload(self, name: str) -> dict[str, Any]:
        return next((w for w in self.status()["workloads"] if w["name"] == name), {})

    def pid(self, process: str) -> int:
        """Of a process that runs. While it is between two starts it has no number, and 0 would be our own group."""

        def running() -> int:
            return next((p["pid"] for p in self.status()["processes"] if p["name"] == process), 0)

        return int(until(running, within_s=60, what=f"{process} runs"))

    def addresses(self, name: str) -> list[str]:
        told = json.loads(holdfast("endpoints", name, "--state", str(self.state), "-o", "json").stdout)
        return [f"http://{a['address']}:{a['ports']['http']}/" for a in told["addresses"]]

    def kubectl(self, *words: str, check: bool = True) -> str:
        tools = ROOT / ".tools" / "bin" / "kubectl"
        program = shutil.which("kubectl") or (str(tools) if tools.exists() else None)
        if program is None:
            lacking("kubectl is missing; next: make tools")
        done = subprocess.run(
            [program, "--kubeconfig", self.told["kubeconfig"], *words], capture_output=True, text=True, timeout=120,
            env={**os.environ, "HOME": str(self.state)},
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


def get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: dict[str, Any] = json.loads(answer.read())
    return body


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    state = tmp_path_factory.mktemp("platform") / "state"
    base = free_port_base()
    began = time.monotonic()
    try:
        done = holdfast(
            "up", "--detach", "--state", str(state), "--port-base", str(base), "--timeout", "150", "-o", "json",
            timeout_s=200, check=False,
        )  # fmt: skip
        took_s = time.monotonic() - began
        if done.returncode != 0:
            logs = "\n".join(f"== {p.name}\n{p.read_text()[-1500:]}" for p in sorted((state / "logs").glob("*.log")))
            pytest.fail(f"holdfast up: {done.returncode}\n{done.stderr}\n{logs}")
        yield Up(state, base, json.loads(done.stdout), took_s)
    finally:
        holdfast("down", "--state", str(state), check=False)


def test_everything_serves_in_time(platform: Up) -> None:
    assert platform.took_s < SERVING_WITHIN_S
    assert platform.told["serving"] is True
    assert platform.told["url"] == f"https://127.0.0.1:{platform.base}"
    status = platform.status()
    assert all(cell["ready"] for cell in status["cells"])
    assert len(status["nodes"]) == 6
    assert all(node["schedulable"] for node in status["nodes"])
    names = {w["name"] for w in status["workloads"]}
    assert names == {"risk-api", "billing-api", "search-indexer", "fraud-batch", "analytics"}
    risk = platform.workload("risk-api")
    assert risk["serving"] == 6
    assert len(risk["regions"]) >= 2
    billing = platform.workload("billing-api")
    assert set(billing["regions"]) <= {"eu-central", "eu-west"}


def test_a_request_is_answered_by_a_replica(platform: Up) -> None:
    addresses = platform.addresses("payments/risk-api")
    assert len(addresses) == 6
    answers = [get(address) for address in addresses]
    assert {answer["workload"] for answer in answers} == {"risk-api"}
    assert len({answer["replica"] for answer in answers}) == 6
    logs = holdfast("logs", "payments/risk-api", "--state", str(platform.state)).stdout
    assert "listens on" in logs


def test_a_second_up_finds_it_running(platform: Up) -> None:
    state = str(platform.state)
    again = holdfast("up", "--detach", "--state", state, "-o", "json")
    assert json.loads(again.stdout)["serving"] is True
    assert "already running" in again.stderr
    assert holdfast("up", "--state", state, check=False).returncode == 6
    assert holdfast("up", "--detach", "--state", state, "--regions", "mars", check=False).returncode == 6


def test_kubectl_scales_and_waits(platform: Up) -> None:
    assert "risk-api" in platform.kubectl("get", "workloads", "-A")
    platform.kubectl("-n", "search", "scale", "workload/search-indexer", "--replicas=4")
    until(lambda: platform.workload("search-indexer").get("serving") == 4, within_s=60, what="four replicas serve")
    assert len(platform.addresses("search/search-indexer")) == 4
    platform.kubectl("-n", "search", "scale", "workload/search-indexer", "--replicas=1")
    until(lambda: len(platform.addresses("search/search-indexer")) == 1, within_s=60, what="one replica is left")
    until(
        lambda: sum(platform.workload("search-indexer").get("stages", {}).values()) == 1,
        within_s=60,
        what="the others are gone",
    )


def test_kubectl_deletes_and_nothing_of_it_runs(platform: Up) -> None:
    address = platform.addresses("analytics/analytics")[0]
    assert get(address)["workload"] == "analytics"
    platform.kubectl("-n", "analytics", "delete", "workload/analytics", "--timeout=90s")
    assert platform.workload("analytics") == {}
    left = [p for p in processes_of(platform.state) if "samples.analytics" in p]
    assert left == []


def test_a_killed_agent_comes_back_and_its_work_never_stopped(platform: Up) -> None:
    before = {a["replica"]: a["pid"] for a in map(get, platform.addresses("payments/risk-api"))}
    killed = platform.pid("agent-us-east-1")
    os.kill(killed, signal.SIGKILL)
    until(lambda: platform.pid("agent-us-east-1") != killed, within_s=30, what="the agent is started again")
    until(
        lambda: len(nodes := platform.status()["nodes"]) == 6 and all(n["schedulable"] for n in nodes),
        within_s=HEALED_WITHIN_S,
        what="its node is schedulable again",
    )
    after = {a["replica"]: a["pid"] for a in map(get, platform.addresses("payments/risk-api"))}
    assert after == before


@pytest.mark.parametrize("cell", ["cell-eu-west", "cell-global"])
def test_a_killed_cell_comes_back_with_everything(platform: Up, cell: str) -> None:
    addresses = platform.addresses("payments/risk-api")
    killed = platform.pid(cell)
    os.kill(killed, signal.SIGKILL)
    for address in addresses:
        assert get(address)["workload"] == "risk-api"  # the work does not notice
    until(lambda: platform.pid(cell) != killed, within_s=30, what="the cell is started again")
    until(
        lambda: (
            (s := platform.status()) and all(c["ready"] for c in s["cells"]) and all(w["done"] for w in s["workloads"])
        ),
        within_s=HEALED_WITHIN_S,
        what="everything serves again",
    )
    assert sorted(platform.addresses("payments/risk-api")) == sorted(addresses)


def test_killed_work_is_started_again(platform: Up) -> None:
    victim = get(platform.addresses("payments/risk-api")[0])
    os.kill(victim["pid"], signal.SIGKILL)

    def back() -> bool:
        with contextlib.suppress(OSError):
            answers = [get(address) for address in platform.addresses("payments/risk-api")]
            return len(answers) == 6 and victim["pid"] not in {a["pid"] for a in answers}
        return False

    until(back, within_s=HEALED_WITHIN_S, what="six replicas answer, none of them the killed process")


def test_a_killed_supervisor_is_followed_by_another(platform: Up) -> None:
    status = platform.status()
    os.kill(status["supervisorPid"], signal.SIGKILL)
    pids = {p["name"]: p["pid"] for p in status["processes"]}
    holdfast("up", "--detach", "--state", str(platform.state))
    after = platform.status()
    assert after["supervisorPid"] not in (0, status["supervisorPid"])
    assert {p["name"]: p["pid"] for p in after["processes"]} == pids


def test_what_all_cells_recorded_holds_every_promise(platform: Up) -> None:
    """The checkers of the simulation, over the histories of these processes, kills and all."""
    verdict = check_platform(platform.state)
    assert verdict.commits > 100
    assert not verdict.violations, "\n".join(map(str, verdict.violations[:10]))


def test_down_leaves_nothing_and_up_continues(platform: Up) -> None:
    state = str(platform.state)
    holdfast("down", "--state", state)
    assert processes_of(platform.state) == []
    assert holdfast("status", "--state", state, check=False).returncode == 8
    again = json.loads(holdfast("up", "--detach", "--state", state, "-o", "json", timeout_s=150).stdout)
    assert again["serving"] is True
    # What the user changed since the samples were applied stays changed.
    assert platform.workload("analytics") == {}
    assert platform.workload("search-indexer")["wanted"] == 1
    holdfast("down", "--state", state, "--purge")
    assert processes_of(platform.state) == []
    assert not platform.state.exists()


def test_in_the_foreground_an_interrupt_stops_everything(tmp_path: Path) -> None:
    state, base = tmp_path / "state", free_port_base()
    log = tmp_path / "up.log"
    with log.open("wb") as out:
        command = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "up", "--regions", "us-east", "--agents", "1", "--no-samples",
             "--state", str(state), "--port-base", str(base)],
            stdout=out, stderr=out, env={**os.environ, "CI": "true"}, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: "Ctrl-C stops it" in log.read_text(), within_s=60, what="the platform is up")
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 0
    finally:
        command.kill()
        command.wait()
        holdfast("down", "--state", str(state), check=False)
    assert processes_of(state) == []
