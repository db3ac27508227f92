"""OCI containers under the same contract as processes, and the error without a runtime."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import eventually, task
from tests.requirements import skip_or_fail

from holdfast.agent import logs
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.oci import OciDriver
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.foundation.ports import SystemClock

TOOLS = Path(__file__).parents[2] / ".tools" / "bin"
SCRIPT = 'trap "echo asked; exit 5" TERM; echo pid $$ of $GREETING; while true; do sleep 0.05; done'


def runc() -> str:
    return shutil.which("runc") or (str(TOOLS / "runc") if (TOOLS / "runc").exists() else "")


def bundle(folder: Path) -> str:
    """A bundle whose root contains the node's programs."""
    (folder / "rootfs" / "usr").mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (folder / "rootfs" / name).symlink_to(f"usr/{name}")
    config = {
        "ociVersion": "1.0.0",
        "process": {
            "args": ["sh", "-c", SCRIPT],
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/usr/bin:/bin"],
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/usr", "type": "none", "source": "/usr", "options": ["rbind", "ro"]},
        ],
        "linux": {"namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount", "network")]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def made(name: str, where: str, **more: Any) -> Any:
    plain = task(name, env={"GREETING": "hello"})
    template = msgspec.structs.replace(plain.template, driver="oci", bundle=where, **{"command": (), **more})
    return msgspec.structs.replace(plain, template=template)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[OciDriver]:
    program = runc()
    if not program or os.geteuid() != 0:
        skip_or_fail("runc is missing, or this is not root; next: make tools")
    inner = ProcessDriver(tmp_path / "oci" / "tasks", SystemClock())
    driver = OciDriver(inner, tmp_path / "oci", program)
    yield driver
    for name in ("a", "b"):
        await driver.stop(name, 0.0)
    await driver.close()


def text(driver: OciDriver, name: str) -> str:
    path = driver.logs(name)
    return "\n".join(line.text for line in logs.tail(path, 100)) if path is not None else ""


async def test_container_starts_executes_commands_and_stops_gracefully(driver: OciDriver, tmp_path: Path) -> None:
    await driver.start(made("a", bundle(tmp_path / "bundle")))
    await eventually(lambda: "of hello" in text(driver, "a"))
    assert text(driver, "a").startswith("pid 1 "), "it has its own PID namespace"
    inside = await driver.execute("a", ("cat", "/proc/1/comm"), 10.0)
    assert (inside.code, inside.output) == (0, "sh")
    exit_ = await driver.stop("a", 10.0)
    assert exit_.code == 5 and exit_.reason == "StoppedOnRequest" and "asked" in text(driver, "a")


async def test_container_survives_agent_restart_and_is_adopted(driver: OciDriver, tmp_path: Path) -> None:
    await driver.start(made("a", bundle(tmp_path / "bundle")))
    await eventually(lambda: "of hello" in text(driver, "a"))
    await driver.close()
    second = OciDriver(ProcessDriver(tmp_path / "oci" / "tasks", SystemClock()), tmp_path / "oci", runc())
    (found,) = await second.inspect()
    assert found.exit is None and found.task.template.bundle
    assert (await second.stop("a", 0.0)).signal == "SIGKILL"
    await second.forget("a")
    await second.close()


async def test_container_exit_code_is_reported(driver: OciDriver, tmp_path: Path) -> None:
    await driver.start(made("b", bundle(tmp_path / "bundle"), command=("sh", "-c", "exit 3")))
    ended = await driver.next_exit()
    assert (ended.task_id, ended.exit.code) == ("b", 3)


async def test_missing_bundle_fails_with_start_error(driver: OciDriver, tmp_path: Path) -> None:
    with pytest.raises(StartFailed) as failure:
        await driver.start(made("a", str(tmp_path / "nothing")))
    assert failure.value.reason == "StartError" and "nothing" in failure.value.message


async def test_oci_driver_without_runtime_fails_with_driver_missing(tmp_path: Path) -> None:
    driver = OciDriver(ProcessDriver(tmp_path / "tasks", SystemClock()), tmp_path, "")
    with pytest.raises(StartFailed) as failure:
        await driver.start(made("a", "/bundle"))
    assert failure.value.reason == "DriverMissing" and "crun, runc" in failure.value.message
    await driver.close()
