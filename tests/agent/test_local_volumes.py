"""Persistent volumes of a node with real mounts: data that stays, sizes that hold, tenants that stay apart."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from tests.agent.agent_world import task
from tests.agent.test_process_driver import log_text
from tests.agent.test_volumes import ID, Node, node

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.local_volumes import DATA, LocalVolumes
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.volume_images import choose_scratch_limit
from holdfast.agent.drivers.volumes import TaskVolumes
from holdfast.agent.shim_mounts import hand_over
from holdfast.foundation.ports import SystemClock
from holdfast.model.reasons import Reason
from holdfast.model.template_volume import ClaimVolume, TemplateVolume
from holdfast.model.volume import BoundVolume

__all__ = ["node"]
UID = "4ce30f02-0f4d-4ca9-9d33-6ff1bd5e4c8c"
VOLUME = TemplateVolume(name="data", mount_path="/data", claim=ClaimVolume("orders", "16Mi"))
NEW = BoundVolume("orders", "orders.web-0", UID, "16Mi", new=True)
KNOWN = msgspec.structs.replace(NEW, new=False)


def store(root: Path, limit: str = "measured", *, can_mount: bool = True) -> LocalVolumes:
    return LocalVolumes(root / "volumes", limit=limit, can_mount=can_mount)


class StatefulNode:
    """A process driver with persistent volumes. Each run is a task of its own, as each attempt is."""

    def __init__(self, made: Node, limit: str) -> None:
        self._node, self.store, self._runs = made, store(made.root, limit), 0
        volumes = TaskVolumes(can_mount=made.users.makes_views, limit=limit, store=self.store)
        self._driver = ProcessDriver(made.root / "state" / "tasks", SystemClock(), users=made.users, volumes=volumes)
        made.drivers.append(self._driver)

    def task(self, script: str, bound: BoundVolume) -> Task:
        self._runs += 1
        made = task(f"{ID}-{self._runs}", "sh", "-c", f"{script}; echo over", volumes=(VOLUME,))
        return msgspec.structs.replace(made, volumes=(bound,))

    async def said(self, script: str, bound: BoundVolume) -> str:
        """The output of a task that runs the script and ends; then the task is forgotten."""
        made = self.task(script, bound)
        await self._driver.start(made)
        ended = await asyncio.wait_for(self._driver.next_exit(), 60)
        text = log_text(self._driver, made.id)
        await self._driver.forget(made.id)
        assert ended.exit.reason in ("Exited", "VolumeFull"), ended
        return "\n".join([*(line.split(" ", 2)[2] for line in text.splitlines()), ended.exit.reason])


def limits(made: Node) -> str:
    return choose_scratch_limit("auto", can_mount=made.users.makes_views)


@pytest.mark.parametrize("wanted", ["measured", "auto"])
async def test_data_is_there_for_the_next_task_whose_user_is_another(node: Node, wanted: str) -> None:
    here = StatefulNode(node, wanted if wanted == "measured" else limits(node))
    assert "over" in await here.said("mkdir /data/deep; echo kept > /data/deep/file; id -u > /data/user", NEW)
    said = await here.said(
        "cat /data/deep/file; echo more >> /data/deep/file && echo written; cat /data/user; id -u", KNOWN
    )
    lines = said.splitlines()
    assert lines[:2] == ["kept", "written"]
    assert lines[2] != lines[3], "each task has a user of its own"
    assert here.store.has(UID), "a forgotten task leaves its volume"


async def test_task_cannot_write_more_than_the_size(node: Node) -> None:
    limit = limits(node)
    here = StatefulNode(node, limit)
    said = await here.said("head -c 40000000 /dev/zero > /data/big; echo $?; sleep 8", NEW)
    assert ("No space left" in said) if limit == "image" else said.endswith("VolumeFull")


async def test_missing_data_is_never_replaced_by_an_empty_volume(node: Node) -> None:
    here = StatefulNode(node, "measured")
    with pytest.raises(StartFailed) as failed:
        await here._driver.start(here.task("true", KNOWN))
    assert failed.value.reason == Reason.VOLUME_DATA_MISSING
    assert not here.store.has(UID)


async def test_node_without_a_volume_directory_refuses_the_task(node: Node) -> None:
    volumes = TaskVolumes(can_mount=node.users.makes_views)
    driver = ProcessDriver(node.root / "state" / "tasks", SystemClock(), users=node.users, volumes=volumes)
    node.drivers.append(driver)
    made = msgspec.structs.replace(task(ID, "true", volumes=(VOLUME,)), volumes=(NEW,))
    with pytest.raises(StartFailed, match="keeps no persistent volumes"):
        await driver.start(made)


def test_volume_of_another_tenant_is_refused(tmp_path: Path) -> None:
    here = store(tmp_path)
    here.stage("acme", NEW, os.getuid(), os.getgid())
    with pytest.raises(StartFailed, match="belongs to another tenant"):
        here.stage("bank", KNOWN, os.getuid(), os.getgid())


@pytest.mark.parametrize("uid", ["..", "../other", "a/b", "", ".new-x", "x" * 65])
def test_uid_that_is_no_directory_name_is_refused(tmp_path: Path, uid: str) -> None:
    here = store(tmp_path)
    with pytest.raises(StartFailed, match="not a name of a directory"):
        here.stage("acme", msgspec.structs.replace(NEW, uid=uid), 0, 0)
    with pytest.raises(StartFailed):
        here.delete(uid)


def test_deletion_removes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    here = store(tmp_path)
    folder = here.stage("acme", NEW, os.getuid(), os.getgid()).path
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (folder / "link").symlink_to(outside)
    here.delete(UID)
    assert not here.has(UID) and (outside / "precious").exists()
    assert list((tmp_path / "volumes").iterdir()) == []
    here.delete(UID)  # repeated after a lost report


def test_half_made_and_half_deleted_volumes_of_a_crash_are_removed_at_start(tmp_path: Path) -> None:
    here = store(tmp_path)
    here.stage("acme", NEW, os.getuid(), os.getgid())
    root = tmp_path / "volumes"
    (root / f".new-{UID}").mkdir()
    (root / ".deleted-x" / DATA).mkdir(parents=True)
    store(tmp_path)
    assert [path.name for path in root.iterdir()] == [UID]


def test_image_on_a_node_that_cannot_mount_is_refused(tmp_path: Path) -> None:
    here = store(tmp_path)
    here.stage("acme", NEW, os.getuid(), os.getgid())
    record = tmp_path / "volumes" / UID / "volume.json"
    record.write_text(record.read_text().replace("measured", "image"))
    with pytest.raises(StartFailed, match="cannot mount"):
        store(tmp_path, can_mount=False).stage("acme", KNOWN, 0, 0)


def test_hand_over_leaves_hard_links_to_files_of_others_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root changes owners")
    place = tmp_path / "data"
    place.mkdir()
    (place / "own").write_text("x")
    for path in (place, place / "own"):
        os.chown(path, 50_001, 50_001)
    others = tmp_path / "others"
    others.write_text("x")
    os.link(others, place / "linked")
    (place / "symbolic").symlink_to(others)
    hand_over(str(place), 50_002, 50_002)
    assert [os.lstat(place / name).st_uid for name in ("", "own", "linked")] == [50_002, 50_002, 0]
    assert others.stat().st_uid == 0
