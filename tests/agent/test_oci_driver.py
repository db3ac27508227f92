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
from holdfast.agent.drivers.volumes import TaskVolumes
from holdfast.agent.task_users import RuntimeUser, TaskUsers
from holdfast.foundation.ports import SystemClock
from holdfast.model.pod_session import Channel
from holdfast.model.probe import ExecProbe, Hook
from holdfast.model.task_programs import InitTask, Lifecycle, Sidecar
from holdfast.model.template_volume import Medium, ScratchVolume, TemplateVolume

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


def users(tmp_path: Path) -> TaskUsers:
    return TaskUsers(tmp_path / "oci", registry=tmp_path / "registry")


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[OciDriver]:
    program = runc()
    if not program or os.geteuid() != 0:
        skip_or_fail("runc is missing, or this is not root; next: make tools")
    inner = ProcessDriver(tmp_path / "oci" / "tasks", SystemClock(), users=RuntimeUser())
    driver = OciDriver(inner, tmp_path / "oci", program, users(tmp_path), (str(tmp_path / "bundles"),))
    yield driver
    for name in ("a", "b"):
        await driver.stop(name, 0.0)
    await driver.close()


def text(driver: OciDriver, name: str) -> str:
    path = driver.logs(name)
    return "\n".join(line.text for line in logs.tail(path, 100)) if path is not None else ""


async def test_container_starts_executes_commands_and_stops_gracefully(driver: OciDriver, tmp_path: Path) -> None:
    await driver.start(made("a", bundle(tmp_path / "bundles" / "sh")))
    await eventually(lambda: "of hello" in text(driver, "a"))
    assert text(driver, "a").startswith("pid 1 "), "it has its own PID namespace"
    inside = await driver.execute("a", ("cat", "/proc/1/comm"), 10.0)
    assert (inside.code, inside.output) == (0, "sh")
    exit_ = await driver.stop("a", 10.0)
    assert exit_.code == 5 and exit_.reason == "StoppedOnRequest" and "asked" in text(driver, "a")


async def test_session_runs_inside_the_container_and_ends_with_it(driver: OciDriver, tmp_path: Path) -> None:
    await driver.start(made("a", bundle(tmp_path / "bundles" / "sh")))
    await eventually(lambda: "of hello" in text(driver, "a"))
    session = driver.open_command("a", ("sh", "-c", "cat /proc/1/comm; exit 6"), tty=False)
    output = b""
    while data := await session.read(Channel.STDOUT):
        output += data
    assert (output, await session.wait()) == (b"sh\n", 6)
    session.close()
    left = driver.open_command("a", ("sh", "-c", "echo begun; sleep 60"), tty=False)
    assert b"begun" in await left.read(Channel.STDOUT)
    await driver.stop("a", 0.0)
    assert await left.wait() != 0
    left.close()


async def test_container_survives_agent_restart_and_is_adopted(driver: OciDriver, tmp_path: Path) -> None:
    await driver.start(made("a", bundle(tmp_path / "bundles" / "sh")))
    await eventually(lambda: "of hello" in text(driver, "a"))
    await driver.close()
    inner = ProcessDriver(tmp_path / "oci" / "tasks", SystemClock(), users=RuntimeUser())
    second = OciDriver(inner, tmp_path / "oci", runc(), users(tmp_path), ())
    (found,) = await second.inspect()
    assert found.exit is None and found.task.template.bundle
    assert (await second.stop("a", 0.0)).signal == "SIGKILL"
    await second.forget("a")
    await second.close()


async def test_container_exit_code_is_reported(driver: OciDriver, tmp_path: Path) -> None:
    await driver.start(made("b", bundle(tmp_path / "bundles" / "sh"), command=("sh", "-c", "exit 3")))
    ended = await driver.next_exit()
    assert (ended.task_id, ended.exit.code) == ("b", 3)


async def test_container_has_own_user_whatever_its_bundle_says(driver: OciDriver, tmp_path: Path) -> None:
    where = bundle(tmp_path / "bundles" / "sh")
    script = ("sh", "-c", "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; sleep 60")
    await driver.start(made("a", where, command=script))
    shown = await eventually(lambda: (t := text(driver, "a")).count("\n") == 2 and t)
    uid, capabilities, privileges = shown.splitlines()
    assert int(uid) >= 20_000 and capabilities.split()[1] == "0" * 16 and privileges.split()[1] == "1"
    assert (await driver.execute("a", ("id", "-u"), 10.0)).output == uid
    with pytest.raises(StartFailed) as failure:
        await driver.start(made("b", where, user="root"))
    assert failure.value.reason == "UserNotAllowed"


async def test_bundle_that_a_task_can_write_is_refused(driver: OciDriver, tmp_path: Path) -> None:
    """A tenant that wrote a bundle into its working directory could mount the root of the node."""
    where = bundle(tmp_path / "bundles" / "sh")
    os.chown(tmp_path / "bundles" / "sh", 20_007, 20_007)
    with pytest.raises(StartFailed) as failure:
        await driver.start(made("a", where))
    assert failure.value.reason == "TemplateUnusable" and "operator" in failure.value.message


async def test_missing_bundle_is_the_fault_of_the_template(driver: OciDriver, tmp_path: Path) -> None:
    with pytest.raises(StartFailed) as failure:
        await driver.start(made("a", str(tmp_path / "bundles" / "nothing")))
    assert failure.value.reason == "TemplateUnusable" and "nothing" in failure.value.message


async def test_oci_driver_without_runtime_fails_with_driver_missing(tmp_path: Path) -> None:
    driver = OciDriver(ProcessDriver(tmp_path / "tasks", SystemClock()), tmp_path, "", users(tmp_path), ())
    with pytest.raises(StartFailed) as failure:
        await driver.start(made("a", "/bundle"))
    assert failure.value.reason == "DriverMissing" and "crun, runc" in failure.value.message
    await driver.close()


async def test_bundle_that_a_tenant_may_have_written_is_refused(tmp_path: Path) -> None:
    """A bundle from an artifact could mount the node's root directory."""
    named = tmp_path / "bundles"
    named.mkdir()
    written = tmp_path / "oci" / "tasks" / "b" / "work" / "bundle"
    bundle(written)
    (named / "link").symlink_to(written)
    inner = ProcessDriver(tmp_path / "tasks", SystemClock())
    driver = OciDriver(inner, tmp_path / "oci", "/usr/bin/false", users(tmp_path), (str(named),))
    for where in (
        str(written),
        str(named / "link"),
        str(named),
        str(named / ".." / written.relative_to(tmp_path)),
        "bundle",
        "/",
    ):
        with pytest.raises(StartFailed) as failure:
            await driver.start(made("a", where))
        assert failure.value.reason == "DriverMissing" and "bundle_dirs" in failure.value.message
    await driver.close()


async def test_programs_around_a_container_share_its_volume(tmp_path: Path) -> None:
    program = runc()
    if not program or os.geteuid() != 0:
        skip_or_fail("runc is missing, or this is not root; next: make tools")
    who = users(tmp_path)
    volumes = TaskVolumes(can_mount=True, in_view=False, owner=who.identify)
    inner = ProcessDriver(tmp_path / "oci" / "tasks", SystemClock(), users=RuntimeUser(), volumes=volumes)
    driver = OciDriver(inner, tmp_path / "oci", program, who, (str(tmp_path / "bundles"),), volumes=volumes)
    shared = TemplateVolume(name="data", mount_path="/data", scratch=ScratchVolume("4Mi", Medium.MEMORY))
    started = made(
        "a",
        bundle(tmp_path / "bundles" / "sh"),
        command=("sh", "-c", "cat /data/f; trap 'exit 0' TERM; while :; do sleep 0.05; done"),
        init_tasks=(InitTask(name="prepare", command=("sh", "-c", "echo made by $(id -u) > /data/f")),),
        sidecars=(Sidecar(name="beside", command=("sh", "-c", "echo beside; exec sleep 300")),),
        lifecycle=Lifecycle(pre_stop=Hook(exec=ExecProbe(("sh", "-c", "echo stopping >> /data/f")))),
        volumes=(shared,),
    )
    try:
        await driver.start(started)
        await eventually(lambda: "made by" in text(driver, "a"))
        assert "made by 0" not in text(driver, "a"), "every program has the user of the task"
        exit_ = await driver.stop("a", 10.0)
        assert exit_.reason == "StoppedOnRequest"
        await driver.forget("a")
        assert not (tmp_path / "oci" / "tasks" / "a" / "volumes").exists()
    finally:
        await driver.stop("a", 0.0)
        await driver.close()
