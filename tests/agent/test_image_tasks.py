"""Tasks that run images, with a real registry, a real runtime and the real driver."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import eventually
from tests.agent.image_registry import Registry, running_registry, shell_layer
from tests.agent.test_images import image_task
from tests.agent.test_oci_driver import runc, text
from tests.requirements import skip_or_fail

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.images import ImageCache
from holdfast.agent.drivers.local_volumes import VolumeStore
from holdfast.agent.drivers.oci import OciDriver
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.volumes import TaskVolumes
from holdfast.agent.task_users import RuntimeUser, TaskUsers
from holdfast.foundation.ports import SystemClock
from holdfast.model.task_programs import InitTask, Sidecar
from holdfast.model.template_volume import ScratchVolume, TemplateVolume

LOOP = "while true; do sleep 0.05; done"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def new_driver(
    tmp_path: Path,
    registry: Registry,
    *,
    layers: bool = True,
    volumes: bool = False,
    runtime: str = "",
    store: VolumeStore | None = None,
) -> OciDriver:
    if not runc() or os.geteuid() != 0:
        skip_or_fail("runc is missing, or this is not root; next: make tools")
    as_runtime = RuntimeUser()
    users = TaskUsers(tmp_path / "oci", registry=tmp_path / "registry")
    mounted = TaskVolumes(can_mount=True, in_view=False, owner=users.identify, store=store) if volumes else None
    inner = ProcessDriver(tmp_path / "oci" / "tasks", SystemClock(), users=as_runtime, volumes=mounted)
    cache = ImageCache(tmp_path / "images", registry.allowed())
    as_layers = as_runtime if layers else None
    binary = runtime or runc()
    return OciDriver(inner, tmp_path / "oci", binary, users, (), images=cache, runtime_user=as_layers, volumes=mounted)


@pytest.fixture
async def driver(tmp_path: Path, registry: Registry) -> AsyncIterator[OciDriver]:
    made = new_driver(tmp_path, registry)
    yield made
    for name in ("a", "b"):
        await made.stop(name, 0.0)
    await made.close()


@pytest.fixture(scope="module")
def shell(registry: Registry) -> str:
    """Digest of an image with busybox, a command and a user of its own."""
    return registry.push(
        "shell:1",
        [shell_layer()],
        Entrypoint=["/bin/sh", "-c"],
        Cmd=[f"echo image $FROM in $(pwd); {LOOP}"],
        Env=["FROM=image", "PATH=/bin"],
        WorkingDir="/srv",
        User="app",
    )


def shell_task(name: str, registry: Registry, digest: str, **more: Any) -> Task:
    return image_task(name, registry.reference("shell:1"), digest, **more)


async def run(driver: OciDriver, wanted: Task) -> None:
    await driver.fetch(wanted)
    await driver.start(wanted)


async def shown(driver: OciDriver, name: str, expected: str) -> str:
    return str(await eventually(lambda: (t := text(driver, name)).count(expected) and t))


async def test_image_runs_with_its_own_configuration(driver: OciDriver, registry: Registry, shell: str) -> None:
    await run(driver, shell_task("a", registry, shell))
    assert "image image in /srv" in await shown(driver, "a", "in /srv")
    inside = await driver.execute("a", ("cat", "own.txt"), 10.0)
    assert (inside.code, inside.output) == (0, "own"), "the task may read what the image's user may read"
    denied = await driver.execute("a", ("cat", "root.txt"), 10.0)
    assert denied.code != 0 and "denied" in denied.output.lower()
    uid = int((await driver.execute("a", ("id", "-u"), 10.0)).output)
    assert uid >= 20_000, "never root and never the image's user"


async def test_template_overrides_command_environment_and_directory(
    driver: OciDriver, registry: Registry, shell: str
) -> None:
    script = ("sh", "-c", f"echo template $FROM in $(pwd); {LOOP}")
    wanted = shell_task("a", registry, shell, command=script, working_dir="/tmp")
    await run(driver, msgspec.structs.replace(wanted, env={"FROM": "template"}))
    assert "template template in /tmp" in await shown(driver, "a", "in /tmp")
    args = shell_task("b", registry, shell, args=(f"echo only args; {LOOP}",))
    await run(driver, args)
    assert "only args" in await shown(driver, "b", "only args")


async def test_tasks_share_the_image_and_write_only_to_their_own_bounded_layer(
    driver: OciDriver, registry: Registry, shell: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        wanted = shell_task(name, registry, shell, args=(LOOP,))
        await run(driver, msgspec.structs.replace(wanted, resources={"disk": 4 << 20}))
    assert (await driver.execute("a", ("sh", "-c", "echo mine > /srv/new && cat /srv/new"), 10.0)).output == "mine"
    assert (await driver.execute("b", ("cat", "/srv/new"), 10.0)).code != 0
    full = await driver.execute("a", ("dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=16"), 10.0)
    assert full.code != 0 and "space" in full.output
    (root,) = (tmp_path / "images").glob("sha256-*/rootfs")
    assert not (root / "srv/new").exists() and not (root / "tmp/big").exists()
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(tmp_path) not in mounts, "the mounts end with the container"


async def test_init_task_and_sidecar_run_in_containers_of_the_image_and_share_volumes(
    registry: Registry, shell: str, tmp_path: Path
) -> None:
    driver = new_driver(tmp_path, registry, volumes=True)
    wanted = shell_task(
        "a",
        registry,
        shell,
        args=(f"until [ -e /shared/beside ]; do sleep 0.05; done; cat /shared/made; {LOOP}",),
        volumes=(TemplateVolume(name="shared", mount_path="/shared", scratch=ScratchVolume(size_limit="1Mi")),),
        init_tasks=(InitTask(name="make", command=("sh", "-c", "echo by the init task > /shared/made")),),
        sidecars=(Sidecar(name="beside", command=("sh", "-c", f"touch /shared/beside; {LOOP}")),),
    )
    try:
        await run(driver, wanted)
        await shown(driver, "a", "by the init task")
    finally:
        await driver.stop("a", 0.0)
        await driver.close()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


async def test_root_is_read_only_where_the_kernel_has_no_overlays(
    registry: Registry, shell: str, tmp_path: Path
) -> None:
    driver = new_driver(tmp_path, registry, layers=False)
    await run(driver, shell_task("a", registry, shell, args=(f"echo ready; {LOOP}",)))
    try:
        await shown(driver, "a", "ready")
        refused = await driver.execute("a", ("touch", "/srv/new"), 10.0)
        assert refused.code != 0 and "read-only" in refused.output.lower()
        assert (await driver.execute("a", ("touch", "/tmp/new"), 10.0)).code == 0
    finally:
        await driver.stop("a", 0.0)
        await driver.close()
    (root,) = (tmp_path / "images").glob("sha256-*/rootfs")
    assert not (root / "tmp/new").exists()


async def test_read_only_root_is_read_only_and_leaves_the_shared_image_as_it_was(
    registry: Registry, shell: str, tmp_path: Path
) -> None:
    driver = new_driver(tmp_path, registry, volumes=True)
    volume = TemplateVolume("data", mount_path="/made/here", scratch=ScratchVolume(size_limit="1Mi"))
    script = f"echo ready; {LOOP}"
    await run(driver, shell_task("a", registry, shell, args=(script,), read_only_root=True, volumes=(volume,)))
    try:
        await shown(driver, "a", "ready")
        refused = await driver.execute("a", ("touch", "/etc/new"), 10.0)
        assert refused.code != 0 and "read-only" in refused.output.lower()
        for place in ("/tmp/new", "/run/new", "/made/here/new"):
            assert (await driver.execute("a", ("touch", place), 10.0)).code == 0, place
    finally:
        await driver.stop("a", 0.0)
        await driver.close()
    (root,) = (tmp_path / "images").glob("sha256-*/rootfs")
    assert not (root / "made").exists() and not (root / "tmp/new").exists()


async def test_command_in_a_container_that_is_still_made_waits_for_it(
    registry: Registry, shell: str, tmp_path: Path
) -> None:
    slow = tmp_path / "runc"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *" run "*) sleep 1 ;; esac\nexec {runc()} "$@"\n')
    slow.chmod(0o755)
    driver = new_driver(tmp_path, registry, runtime=str(slow))
    await run(driver, shell_task("a", registry, shell, args=(LOOP,)))
    try:
        found = await driver.execute("a", ("id", "-u"), 10.0)
        assert found.code == 0, found.output
    finally:
        await driver.stop("a", 0.0)
        await driver.close()


async def test_limits_of_a_container_are_enforced(driver: OciDriver, registry: Registry, shell: str) -> None:
    """Also the writable layer counts as memory of the task."""
    wanted = shell_task("a", registry, shell, command=("dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=128"))
    await run(driver, msgspec.structs.replace(wanted, resources={"memory": 32 << 20, "disk": 256 << 20}))
    ended = await driver.next_exit()
    assert ended.exit.code == 137 or ended.exit.signal == "SIGKILL"
    wanted = shell_task("b", registry, shell, command=("dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=16"))
    await run(driver, msgspec.structs.replace(wanted, resources={"memory": 64 << 20, "disk": 256 << 20}))
    assert (await driver.next_exit()).exit.code == 0


async def test_task_of_an_image_is_adopted_and_its_image_kept(
    driver: OciDriver, registry: Registry, shell: str, tmp_path: Path
) -> None:
    await run(driver, shell_task("a", registry, shell))
    await shown(driver, "a", "image")
    await driver.close()
    second = new_driver(tmp_path, registry)
    (found,) = await second.inspect()
    assert found.exit is None and found.task.template.image_digest == shell
    assert second._images is not None and second._images._in_use == {"a": shell}
    assert (await second.execute("a", ("id", "-u"), 10.0)).code == 0
    assert (await second.stop("a", 0.0)).signal == "SIGKILL"
    await second.forget("a")
    assert second._images._in_use == {}
    await second.close()


async def test_node_without_images_refuses_them(tmp_path: Path, registry: Registry, shell: str) -> None:
    users = TaskUsers(tmp_path / "oci", registry=tmp_path / "registry")
    driver = OciDriver(ProcessDriver(tmp_path / "tasks", SystemClock()), tmp_path, "/bin/false", users, ())
    with pytest.raises(StartFailed) as failure:
        await driver.fetch(shell_task("a", registry, shell))
    assert failure.value.reason == "DriverMissing" and "images.registries" in failure.value.message
    await driver.close()


async def test_image_without_a_command_is_refused(driver: OciDriver, registry: Registry) -> None:
    digest = registry.push("nothing:1", [shell_layer()])
    with pytest.raises(StartFailed) as failure:
        await run(driver, image_task("a", registry.reference("nothing:1"), digest))
    assert failure.value.reason == "TemplateUnusable" and "command" in failure.value.message
