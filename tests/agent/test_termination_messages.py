"""Termination messages: the file, the end of the output, their bounds, and files of hostile tasks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.agent.agent_world import task
from tests.agent.image_registry import Registry, running_registry, shell_layer
from tests.agent.test_image_tasks import new_driver, shell_task

from holdfast.agent.drivers.contract import Driver, Task
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.shim_termination import TERMINATION_FILE_BYTES_MAX, TERMINATION_OUTPUT_BYTES_MAX
from holdfast.foundation.ports import SystemClock
from holdfast.model.template import TerminationMessagePolicy

LOGS = TerminationMessagePolicy.FALLBACK_TO_LOGS_ON_ERROR


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    made = ProcessDriver(tmp_path, SystemClock())
    yield made
    await made.close()


async def message(driver: Driver, wanted: Task) -> str:
    await driver.fetch(wanted)
    await driver.start(wanted)
    return (await driver.next_exit()).exit.termination_message


def failing(name: str, script: str, *, run: int = 1, policy: TerminationMessagePolicy = LOGS) -> Task:
    return task(name, "sh", "-c", script, run=run, termination_message_policy=policy)


async def test_task_says_why_it_ends(driver: ProcessDriver) -> None:
    script = 'echo noise; printf "no disk left\\nat step 3\\n" > "$HOLDFAST_TERMINATION_FILE"; exit 3'
    assert await message(driver, failing("a", script)) == "no disk left\nat step 3"
    again = await driver.inspect()
    assert again[0].exit is not None and again[0].exit.termination_message == "no disk left\nat step 3"


async def test_message_of_an_earlier_run_is_not_that_of_the_next(driver: ProcessDriver) -> None:
    assert await message(driver, failing("a", 'echo one > "$HOLDFAST_TERMINATION_FILE"; exit 1')) == "one"
    assert await message(driver, failing("a", "exit 1", run=2)) == ""


async def test_end_of_the_output_is_the_message_only_on_request_and_on_failure(driver: ProcessDriver) -> None:
    script = "echo starting; echo cannot open the database >&2; exit 1"
    assert await message(driver, failing("a", script)) == "starting\ncannot open the database"
    assert await message(driver, failing("b", script, policy=TerminationMessagePolicy.FILE)) == ""
    assert await message(driver, failing("c", "echo done; exit 0")) == ""


async def test_message_is_bounded_and_printable(driver: ProcessDriver) -> None:
    flood = 'i=0; while [ $i -lt 3000 ]; do echo "line $i"; i=$((i+1)); done; echo last; exit 1'
    found = await message(driver, failing("a", flood))
    assert found.endswith("last") and len(found.encode()) <= TERMINATION_OUTPUT_BYTES_MAX
    large = 'head -c 100000 /dev/zero | tr "\\0" x > "$HOLDFAST_TERMINATION_FILE"; exit 1'
    assert await message(driver, failing("b", large)) == "x" * TERMINATION_FILE_BYTES_MAX
    odd = 'printf "a\\033[31mb\\000\\377c" > "$HOLDFAST_TERMINATION_FILE"; exit 1'
    assert await message(driver, failing("c", odd)) == "a[31mb\ufffdc"


@pytest.mark.parametrize(
    "trick",
    [
        'ln -s {other} "$HOLDFAST_TERMINATION_FILE"',
        'ln {other} "$HOLDFAST_TERMINATION_FILE"',
        'mkfifo "$HOLDFAST_TERMINATION_FILE"',
        'mkdir "$HOLDFAST_TERMINATION_FILE"',
    ],
)
async def test_file_that_is_not_the_tasks_own_is_not_read(driver: ProcessDriver, tmp_path: Path, trick: str) -> None:
    other = tmp_path / "other.txt"
    other.write_text("of somebody else\n")
    script = trick.replace("{other}", str(other)) + "; exit 1"
    assert await message(driver, failing("a", script, policy=TerminationMessagePolicy.FILE)) == ""
    assert await message(driver, failing("a", "exit 1", run=2, policy=TerminationMessagePolicy.FILE)) == ""
    assert other.read_text() == "of somebody else\n" and os.stat(other).st_nlink <= 2


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


async def test_container_writes_its_message_where_kubernetes_has_it(registry: Registry, tmp_path: Path) -> None:
    digest = registry.push("shell:1", [shell_layer()], Env=["PATH=/bin"], User="app")
    driver = new_driver(tmp_path, registry)
    script = ("sh", "-c", "echo why > /dev/termination-log; dd if=/dev/zero of=/dev/termination-log bs=1M || exit 4")
    try:
        first = ("sh", "-c", 'echo "from a container" > "$HOLDFAST_TERMINATION_FILE"; exit 3')
        assert await message(driver, shell_task("a", registry, digest, command=first)) == "from a container"
        flooded = shell_task("b", registry, digest, command=script)
        await driver.fetch(flooded)
        await driver.start(flooded)
        ended = await driver.next_exit()
        assert ended.exit.code == 4, "the file cannot grow without bound"
        assert not list((tmp_path / "oci" / "bundles").glob("*/termination/*")), "nothing is left on the disk"
    finally:
        await driver.close()
