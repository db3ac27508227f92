"""The processes that a drill takes for tasks of an agent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.platforms import wait_until

from holdfast.drills.outage import task_processes
from holdfast.platform.layout import Layout
from holdfast.platform.processes import TASK_ENV, platform_processes

SLEEP = "import time; time.sleep(600)"


@contextmanager
def running_task(layout: Layout, task: str, part: str = "tasks") -> Iterator[set[int]]:
    """A task and its shim, as `/proc` shows them. `part` is `oci/tasks` for a container."""
    folder = layout.agent("n1") / part / task
    folder.mkdir(parents=True)
    marked = {**os.environ, TASK_ENV: task}
    processes = [
        subprocess.Popen([sys.executable, "-c", SLEEP], env=marked),
        subprocess.Popen([sys.executable, "-c", SLEEP, str(folder), "1"]),
    ]
    try:
        yield {process.pid for process in processes}
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_tasks_that_do_not_count_are_left_out_with_their_shims(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))

    def found(*without: str) -> set[int]:
        return {identity.pid for identity in task_processes(layout, "n1", without=set(without))}

    with running_task(layout, "acme_web.1_u", "oci/tasks") as service, running_task(layout, "acme_job.1_v") as batch:
        wait_until(lambda: found() == service | batch, "both tasks are found")
        assert found("acme_job.1_v") == service
        assert found("acme_job.1_v", "acme_web.1_u") == set()


def test_program_of_a_container_without_its_shim_belongs_to_the_platform(tmp_path: Path) -> None:
    """A container has the environment of its image, so that only the mark of its task tells whose it is."""
    layout = Layout(str(tmp_path))
    (layout.agent("n1") / "oci/tasks" / "acme_web.1_u").mkdir(parents=True)
    inside = subprocess.Popen([sys.executable, "-c", SLEEP], env={TASK_ENV: "acme_web.1_u"})
    try:
        wait_until(
            lambda: {identity.pid for identity, _ in platform_processes(tmp_path)} == {inside.pid}, "it is found"
        )
    finally:
        inside.kill()
        inside.wait()
