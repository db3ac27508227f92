"""Persistent volumes in containers, with a real registry, a real runtime and real mounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.agent.agent_world import eventually
from tests.agent.image_registry import Registry, running_registry, shell_layer
from tests.agent.test_image_tasks import LOOP, new_driver, run, shell_task
from tests.agent.test_oci_driver import text

from holdfast.agent.drivers.contract import Task
from holdfast.agent.drivers.local_volumes import LocalVolumes
from holdfast.agent.drivers.oci import OciDriver
from holdfast.agent.drivers.volume_images import choose_scratch_limit
from holdfast.model.task_programs import InitTask
from holdfast.model.template_volume import ClaimVolume, TemplateVolume
from holdfast.model.volume import BoundVolume

UID = "7d6c1c7e-3f0f-4c43-9a39-1f2a9a9b5e55"
DATA = TemplateVolume(name="data", mount_path="/var/lib/app", claim=ClaimVolume("orders", "16Mi"))
NEW = BoundVolume("orders", "orders.web-0", UID, "16Mi", new=True)
KNOWN = msgspec.structs.replace(NEW, new=False)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def shell(registry: Registry) -> str:
    return registry.push("shell:1", [shell_layer()], Entrypoint=["/bin/sh", "-c"], Env=["PATH=/bin"], User="app")


class VolumeNode:
    """A driver of containers with persistent volumes. Each run is a task of its own, as each attempt is."""

    def __init__(self, tmp_path: Path, registry: Registry, shell: str, limit: str) -> None:
        chosen = choose_scratch_limit("auto", can_mount=True) if limit == "auto" else limit
        self.store = LocalVolumes(tmp_path / "volumes", limit=chosen, can_mount=True)
        self.driver: OciDriver = new_driver(tmp_path, registry, volumes=True, store=self.store)
        self._registry, self._shell, self._runs = registry, shell, 0

    def task(self, script: str, volume: TemplateVolume, bound: BoundVolume, init: str = "") -> Task:
        self._runs += 1
        first = (InitTask("first", command=("/bin/sh", "-c", init)),) if init else ()
        made = shell_task(
            f"run-{self._runs}", self._registry, self._shell, args=(script,), volumes=(volume,), init_tasks=first
        )
        return msgspec.structs.replace(made, volumes=(bound,))

    async def said(self, script: str, bound: BoundVolume, volume: TemplateVolume = DATA, init: str = "") -> list[str]:
        made = self.task(f"{script}; echo over; {LOOP}", volume, bound, init)
        await run(self.driver, made)
        try:
            await eventually(lambda: "over" in text(self.driver, made.id), within_s=30)
            return text(self.driver, made.id).splitlines()
        finally:
            await self.driver.stop(made.id, 0.0)
            await self.driver.forget(made.id)


@pytest.mark.parametrize("limit", ["measured", "auto"])
async def test_data_in_a_container_is_there_for_the_next_container_whose_user_is_another(
    tmp_path: Path, registry: Registry, shell: str, limit: str
) -> None:
    here = VolumeNode(tmp_path, registry, shell, limit)
    try:
        first = await here.said(
            "cd /var/lib/app; cat init; echo kept > file; stat -c '%u %n' . file init; id -u", NEW,
            init="echo by init > /var/lib/app/init",
        )  # fmt: skip
        assert "by init" in first
        user = first[-2]
        owned = [f"{user} {name}" for name in (".", "file", "init")]
        assert first[1:4] == owned, "the volume belongs to the user of the container"
        second = await here.said("cat /var/lib/app/file; echo more >> /var/lib/app/file && echo written; id -u", KNOWN)
        assert second[:2] == ["kept", "written"]
        assert second[2] != user, "each task has a user of its own"
        assert here.store.has(UID), "a forgotten task leaves its volume"
    finally:
        await here.driver.close()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


async def test_read_only_volume_is_read_and_not_written_in_a_container(
    tmp_path: Path, registry: Registry, shell: str
) -> None:
    here = VolumeNode(tmp_path, registry, shell, "auto")
    try:
        await here.said("echo kept > /var/lib/app/file", NEW)
        read_only = msgspec.structs.replace(DATA, read_only=True)
        said = await here.said("cat /var/lib/app/file; touch /var/lib/app/new 2>&1", KNOWN, read_only)
        assert said[0] == "kept" and "Read-only file system" in said[1]
        assert "new" not in await here.said("ls /var/lib/app", KNOWN)
    finally:
        await here.driver.close()


async def test_container_cannot_write_more_than_the_size_of_its_volume(
    tmp_path: Path, registry: Registry, shell: str
) -> None:
    here = VolumeNode(tmp_path, registry, shell, "auto")
    if choose_scratch_limit("auto", can_mount=True) != "image":
        pytest.skip("this node measures volumes; tests/agent/test_local_volumes.py shows the end of such a task")
    try:
        said = await here.said("dd if=/dev/zero of=/var/lib/app/big bs=1M count=40 2>&1", NEW)
        assert any("No space left" in line for line in said)
    finally:
        await here.driver.close()
