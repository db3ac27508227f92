"""The metrics of a node's shims, with real shims."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.agent_world import eventually, task

from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.records import TaskDir
from holdfast.agent.shim_metrics import ShimUsage
from holdfast.foundation.metrics_text import agent_metrics, cell_metrics
from holdfast.foundation.ports import SystemClock


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    made = ProcessDriver(tmp_path, SystemClock())
    yield made
    for name in list(made._live):
        await made.stop(name, 0.0)
    await made.close()


def value(name: str) -> float:
    found = REGISTRY.get_sample_value(name)
    assert found is not None, name
    return found


async def test_shims_are_counted_with_their_memory_while_they_run(driver: ProcessDriver, tmp_path: Path) -> None:
    usage = ShimUsage((tmp_path, tmp_path / "missing"))
    await driver.start(task("a", "sleep", "60"))
    await driver.start(task("b", "sleep", "60"))
    usage.update()
    assert value("holdfast_shim_processes") == 2
    assert 2 * 1024 * 1024 < value("holdfast_shim_resident_bytes") < 200 * 1024 * 1024
    await driver.stop("a", 5.0)
    usage.update()
    assert value("holdfast_shim_processes") == 1


async def test_cpu_time_counts_from_the_first_reading_and_never_falls(driver: ProcessDriver, tmp_path: Path) -> None:
    noisy = ("sh", "-c", "while :; do echo a line of output; done")
    await driver.start(task("a", *noisy))
    usage, before = ShimUsage((tmp_path,)), value("holdfast_shim_cpu_seconds_total")
    usage.update()
    assert value("holdfast_shim_cpu_seconds_total") == before, "CPU time of before the first reading was counted"

    def grows() -> bool:
        usage.update()
        return value("holdfast_shim_cpu_seconds_total") > before

    await eventually(grows)
    most = value("holdfast_shim_cpu_seconds_total")
    await driver.stop("a", 0.0)
    usage.update()
    assert value("holdfast_shim_cpu_seconds_total") >= most


async def test_killed_shim_is_counted(driver: ProcessDriver, tmp_path: Path) -> None:
    before = value("holdfast_shim_deaths_total")
    await driver.start(task("a", "sleep", "60"))
    await driver.start(task("b", "true"))
    await driver.next_exit()
    assert value("holdfast_shim_deaths_total") == before, "an ordinary exit counts as none"
    os.kill(TaskDir(tmp_path / "a").shim_pid(), signal.SIGKILL)
    await driver.next_exit()
    assert value("holdfast_shim_deaths_total") == before + 1


async def test_lost_output_is_counted_when_the_task_ends(driver: ProcessDriver, tmp_path: Path) -> None:
    before = value("holdfast_shim_lost_output_bytes_total")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "output.log").symlink_to("/dev/full")
    await driver.start(task("a", "sh", "-c", "echo lost; exit 3"))
    ended = await driver.next_exit()
    assert "bytes of its output were lost" in ended.exit.message
    lost = value("holdfast_shim_lost_output_bytes_total") - before
    assert lost >= len("lost\n") and f"; {lost:.0f} bytes" in ended.exit.message


def test_shim_metrics_are_the_nodes_and_not_the_cells() -> None:
    def names(text: str) -> set[str]:
        return {family.name for family in text_string_to_metric_families(text)}

    assert "holdfast_shim_processes" in names(agent_metrics())
    assert not {name for name in names(cell_metrics().decode()) if name.startswith("holdfast_shim_")}
