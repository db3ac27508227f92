"""A region upgraded from the last commit to this tree and back, one process at a time, while its tasks run.

Both releases are wheels in virtual environments of their own. The tasks must be the same processes throughout.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import (
    ROOT,
    TENANCY,
    V1,
    RunningPlatform,
    assert_history_valid,
    free_port_base,
    holdfast,
    wait_until,
)

import holdfast as this_tree
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
NEXT_VERSION = f"{this_tree.__version__}.post1"
"""This tree is built with a version of its own, so that the state directories show which release runs."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    completed = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, f"{command}: {completed.stdout}\n{completed.stderr}"
    return completed.stdout


def installed(source: Path, place: Path) -> Path:
    """Builds a wheel of the source and installs it. Returns the Python of its environment, with our dependencies."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place / "dist", cwd=source)
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv")
    packages = next((place / "venv" / "lib").glob("python3*/site-packages"))
    wheel = next((place / "dist").glob("*.whl"))
    shutil.unpack_archive(wheel, packages, "zip")
    # Read after the environment's own packages, and without the path file of our editable install.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "venv" / "bin" / "python"


def last_commit(place: Path) -> Path:
    source = place / "source"
    source.mkdir(parents=True)
    run("git", "archive", "-o", place / "source.tar", "HEAD")
    shutil.unpack_archive(place / "source.tar", source, filter="data")
    return source


def tree(place: Path) -> Path:
    """The files of this tree that git has or would add, with the next version."""
    source = place / "source"
    for name in run("git", "ls-files", "-co", "--exclude-standard", "src", "examples").splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    for name in ("pyproject.toml", "src/holdfast/__init__.py"):
        text = (source / name).read_text()
        assert f'version__ = "{this_tree.__version__}"' in text or f'version = "{this_tree.__version__}"' in text
        (source / name).write_text(text.replace(f'"{this_tree.__version__}"', f'"{NEXT_VERSION}"', 1))
    return source


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


def runs_last_commit(folder: Path) -> bool:
    return version_of(folder) != NEXT_VERSION


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

    def go_back(self) -> None:
        for name, process in reversed(self._started.items()):
            process.terminate()
            assert process.wait(60) == 0, f"{name} ended with {process.returncode}"
        outage.allow_restart(self._layout, list(self._started))
        self._started.clear()

    def stop(self) -> None:
        for process in self._started.values():
            process.kill()
            process.wait()


def test_rolling_upgrade_and_return_keep_every_task_running(tmp_path: Path) -> None:
    old = installed(last_commit(tmp_path / "old"), tmp_path / "old")
    new = installed(tree(tmp_path / "new"), tmp_path / "new")
    asked = "import holdfast; print(holdfast.__version__, holdfast.__file__)"
    assert str(tmp_path / "old") in run(old, "-c", asked)
    assert run(new, "-c", asked).startswith(f"{NEXT_VERSION} {tmp_path / 'new'}")
    with platform_of(old, tmp_path / "state") as platform:
        layout = Layout(platform.state)
        agents = [f"{REGION}-1", f"{REGION}-2"]
        platform.apply(*TENANCY, workload(3))
        wait_serving(platform, 3)
        tasks = [task for agent in agents for task in sleeping_tasks(layout, agent)]
        assert len(tasks) == 3
        upgrade = Upgrade(platform, new)
        try:
            for name, folder in (
                (f"cell-{REGION}", layout.cell(REGION)),
                *((f"agent-{agent}", layout.agent(agent)) for agent in agents),
                ("cell-global", layout.cell("global")),
            ):
                upgrade.replace(name, folder)
                wait_until(lambda: all(cell["ready"] for cell in platform.status()["cells"]), "all cells are ready")
                wait_serving(platform, 3)
                assert all(is_alive(task) for task in tasks), f"a task ended with the upgrade of {name}"
            platform.apply(workload(4))
            wait_serving(platform, 4)
            upgrade.go_back()
            for folder in (layout.cell(REGION), layout.cell("global"), *map(layout.agent, agents)):
                wait_until(partial(runs_last_commit, folder), f"{folder.name} runs the last commit")
            wait_until(lambda: all(cell["ready"] for cell in platform.status()["cells"]), "all cells are ready")
            wait_serving(platform, 4)
            assert all(is_alive(task) for task in tasks), "a task ended with the return"
        finally:
            upgrade.stop()
