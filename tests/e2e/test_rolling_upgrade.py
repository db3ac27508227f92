"""A platform upgraded from the previous release to this tree and back, one process at a time, while its tasks run.

In both orders: cells before agents, and agents before cells. Both releases are wheels in virtual environments of their
own. The tasks must be the same processes throughout.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.releases import NEXT_VERSION, installed, previous_release, run, tree
from tests.platforms import TENANCY, V1, RunningPlatform, assert_history_valid, free_port_base, holdfast, wait_until

from holdfast.drills import outage
from holdfast.platform.layout import Layout
from holdfast.platform.processes import ProcessIdentity, is_alive, send_signal, wait_exited
from holdfast.platform.supervisor import load_records

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.waits,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="builds two releases; set HOLDFAST_PROVE"),
]
REGION = "us-east"


@contextmanager
def platform_of(python: Path, state: Path) -> Iterator[RunningPlatform]:
    base = free_port_base()
    options = ("--regions", REGION, "--agents", "2", "--no-samples", "--port-base", str(base), "--timeout", "150")
    try:
        printed = run(python, "-m", "holdfast.cli", "up", "--detach", "--state", state, *options, "-o", "json")
        yield RunningPlatform(state, base, json.loads(printed), 0.0)
        assert_history_valid(state)
    finally:
        holdfast("down", "--state", str(state), timeout_s=300, check=False)


def workload(replicas: int) -> dict[str, Any]:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    template = {
        "command": ["sleep", "100000"],
        "resources": {"cpu": "100m", "memory": "32Mi"},
        "probes": {"readiness": probe},
    }
    meta = {"name": "web", "namespace": "acme"}
    spec = {"replicas": replicas, "template": template}
    return {"apiVersion": V1, "kind": "Workload", "metadata": meta, "spec": spec}


def wait_serving(platform: RunningPlatform, replicas: int) -> None:
    wait_until(lambda: platform.workload("web").get("serving") == replicas, f"{replicas} replicas serve", within_s=180)


def sleeping_tasks(layout: Layout, agent: str) -> list[ProcessIdentity]:
    """The programs of the workload, without shims and probes."""
    return [
        task
        for task in outage.task_processes(layout, agent)
        if Path(f"/proc/{task.pid}/cmdline").read_bytes() == b"sleep\x00100000\x00"
    ]


def version_of(folder: Path) -> str:
    found: str = json.loads((folder / "version.json").read_text())["holdfast"]
    return found


STOPS_WORK = "--stop-work-on-exit"
"""Option of the agents of `holdfast up`, which an agent on a machine of its own does not have."""


class Upgrade:
    """Replaces processes of a platform by those of another release, with the same command lines.

    An agent that would stop its tasks on SIGTERM is killed instead. Its successor ends with SIGTERM and leaves them.
    """

    def __init__(self, platform: RunningPlatform, python: Path) -> None:
        self._layout = Layout(platform.state)
        self._python = python
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def replace(self, name: str, folder: Path) -> None:
        record = next(record for record in load_records(self._layout) if record.program.name == name)
        assert record.identity is not None
        outage.hold_down(self._layout, [name])
        send_signal(record.identity, signal.SIGKILL if STOPS_WORK in record.program.argv else signal.SIGTERM)
        assert wait_exited(record.identity, 60.0), f"{name} does not end"
        with self._layout.log(name).open("ab") as log:
            self._started[name] = subprocess.Popen(
                (self._python, *(word for word in record.program.argv[1:] if word != STOPS_WORK)),
                env={**os.environ, **record.program.env},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(lambda: version_of(folder) == NEXT_VERSION, f"{name} runs the next release")

    def go_back(self, name: str, folder: Path) -> None:
        """The process of the previous release again, which the platform's supervisor starts."""
        process = self._started.pop(name)
        process.terminate()
        assert process.wait(60) == 0, f"{name} ended with {process.returncode}"
        outage.allow_restart(self._layout, [name])
        wait_until(lambda: version_of(folder) != NEXT_VERSION, f"{name} runs the previous release")

    def stop(self) -> None:
        for process in self._started.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Pythons of the previous release and of this tree."""
    place = tmp_path_factory.mktemp("releases")
    old = installed(previous_release(place / "old"), place / "old")
    new = installed(tree(place / "new"), place / "new")
    asked = "import holdfast; print(holdfast.__version__, holdfast.__file__)"
    assert str(place / "old") in run(old, "-c", asked)
    assert run(new, "-c", asked).startswith(f"{NEXT_VERSION} {place / 'new'}")
    return old, new


AGENTS = (f"{REGION}-1", f"{REGION}-2")
ORDERS = {
    "cells first": ("cell-global", f"cell-{REGION}", *(f"agent-{name}" for name in AGENTS)),
    "agents first": (*(f"agent-{name}" for name in AGENTS), f"cell-{REGION}", "cell-global"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_rolling_upgrade_and_return_keep_every_task_running(
    releases: tuple[Path, Path], order: str, tmp_path: Path
) -> None:
    old, new = releases
    with platform_of(old, tmp_path / "state") as platform:
        layout = Layout(platform.state)
        folders = {
            "cell-global": layout.cell("global"),
            f"cell-{REGION}": layout.cell(REGION),
            **{f"agent-{agent}": layout.agent(agent) for agent in AGENTS},
        }
        platform.apply(*TENANCY, workload(3))
        wait_serving(platform, 3)
        tasks = [task for agent in AGENTS for task in sleeping_tasks(layout, agent)]
        assert len(tasks) == 3
        upgrade = Upgrade(platform, new)

        def settled(replicas: int, after: str) -> None:
            wait_until(lambda: all(cell["ready"] for cell in platform.status()["cells"]), "all cells are ready")
            wait_serving(platform, replicas)
            assert all(is_alive(task) for task in tasks), f"a task ended with {after}"

        try:
            for number, name in enumerate(ORDERS[order]):
                upgrade.replace(name, folders[name])
                settled(3 + number, f"the upgrade of {name}")
                platform.apply(workload(4 + number))  # with every mix of releases
                wait_serving(platform, 4 + number)
            for name in reversed(ORDERS[order]):
                upgrade.go_back(name, folders[name])
                settled(7, f"the return of {name}")
            platform.apply(workload(8))
            wait_serving(platform, 8)
        finally:
            upgrade.stop()
