"""Volumes of tasks on this node, behind a small driver contract with the four steps of a CSI node plugin.

- A volume of a task is staged at `volumes/NAME` in the task's directory. The shim of each run mounts it there, in a
  mount namespace of its own, and binds it into the view of every program (`agent.shim_mounts`).
- What a volume leaves is removed with the task. Nothing of a hostPath volume is ever removed, and nothing of a
  persistent one: that is staged where the node keeps it (`local_volumes`).
- A path of the node is mounted only if the node's configuration allows it to the tenant. Without a rule, none is.

To add a kind of volume, implement `VolumeDriver` and add it to `TaskVolumes`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.local_volumes import StagedVolume, VolumeStore
from holdfast.agent.drivers.removal import remove_tree
from holdfast.agent.drivers.volume_images import make_image
from holdfast.model.host_paths import find_host_path_rule
from holdfast.model.quantity import DISK, amount_text
from holdfast.model.reasons import Reason
from holdfast.model.template_volume import (
    Medium,
    TemplateVolume,
    host_path_error,
    mount_path_error,
    scratch_bytes,
    volume_env_name,
)
from holdfast.model.volume import BoundVolume

STAGES, IMAGES = "volumes", "volume-images"


class HostPathRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory of the node whose content the named tenants may mount. `*` is every tenant."""

    path: str
    read_only: bool = True
    tenants: tuple[str, ...] = ()


class VolumeStage(msgspec.Struct, frozen=True):
    """Where a volume of a task is made, and whom it belongs to."""

    path: Path
    image: Path
    uid: int
    gid: int


MountRequest = dict[str, object]
"""What the shim mounts: `kind` (dir, tmpfs, image, host) and what this kind needs."""


class VolumeDriver(Protocol):
    """One kind of volume. All methods run in a thread and may raise StartFailed or OSError."""

    def prepare(self, task: Task, volume: TemplateVolume, stage: VolumeStage) -> None:
        """Makes what a run needs, before each run. Nothing of the task runs meanwhile."""

    def mount(self, task: Task, volume: TemplateVolume, stage: VolumeStage) -> MountRequest:
        """What the shim mounts at the stage, as root."""

    def unmount(self, task_dir: Path, volume: TemplateVolume) -> None:
        """After a run. The mounts of a run end with its mount namespace, so most drivers inherit this."""
        return None

    def remove(self, task_dir: Path, volume: TemplateVolume) -> None:
        """The task is forgotten: removes what the volume left on the node."""


class ScratchOnDisk(VolumeDriver):
    """A file system of its own in an image (`image`), or a directory that the shim measures (`measured`)."""

    def __init__(self, limit: str) -> None:
        self._limit = limit

    def prepare(self, task: Task, volume: TemplateVolume, stage: VolumeStage) -> None:
        remove_tree(stage.path)
        stage.image.unlink(missing_ok=True)
        stage.path.mkdir(parents=True)
        if os.geteuid() == 0:
            os.chown(stage.path, stage.uid, stage.gid)
        stage.path.chmod(0o700)
        if self._limit == "image":
            assert volume.scratch is not None
            stage.image.parent.mkdir(mode=0o700, exist_ok=True)
            make_image(stage.image, scratch_bytes(volume.scratch), stage.uid, stage.gid)

    def mount(self, task: Task, volume: TemplateVolume, stage: VolumeStage) -> MountRequest:
        assert volume.scratch is not None
        size = scratch_bytes(volume.scratch)
        if self._limit == "image":
            return {"kind": "image", "image": str(stage.image), "size": size}
        return {"kind": "dir", "size": size, "limit": amount_text(DISK, size)}

    def remove(self, task_dir: Path, volume: TemplateVolume) -> None:
        remove_tree(task_dir / STAGES / volume.name)
        (task_dir / IMAGES / f"{volume.name}.img").unlink(missing_ok=True)


class ScratchInMemory(VolumeDriver):
    """A tmpfs of limited size. The kernel counts its pages as memory of the task."""

    def __init__(self, *, can_mount: bool) -> None:
        self._can_mount = can_mount

    def prepare(self, task: Task, volume: TemplateVolume, stage: VolumeStage) -> None:
        if not self._can_mount:
            message = f"volume {volume.name}: this node cannot mount a scratch volume with medium Memory"
            raise StartFailed(Reason.VOLUME_UNAVAILABLE, f"{message}; next: run the agent as root, or use medium Disk")
        stage.path.mkdir(parents=True, exist_ok=True)

    def mount(self, task: Task, volume: TemplateVolume, stage: VolumeStage) -> MountRequest:
        assert volume.scratch is not None
        return {"kind": "tmpfs", "size": scratch_bytes(volume.scratch)}

    def remove(self, task_dir: Path, volume: TemplateVolume) -> None:
        remove_tree(task_dir / STAGES / volume.name)


class HostPaths(VolumeDriver):
    """Directories and files of the node, by the rules of its configuration."""

    def __init__(self, rules: Sequence[HostPathRule], *, can_mount: bool) -> None:
        self._rules, self._can_mount = tuple(rules), can_mount

    def prepare(self, task: Task, volume: TemplateVolume, stage: VolumeStage) -> None:
        base, rest, read_only = self._resolve(task, volume)
        if not self._can_mount and read_only:
            message = f"volume {volume.name}: this node cannot mount it read-only"
            raise StartFailed(Reason.VOLUME_UNAVAILABLE, f"{message}; next: run the agent as root")
        found = Path(base) / rest if rest else Path(base)
        if not os.path.lexists(found):
            raise StartFailed(Reason.VOLUME_UNAVAILABLE, f"volume {volume.name}: {found} does not exist on this node")
        stage.path.parent.mkdir(parents=True, exist_ok=True)
        if found.is_dir():
            stage.path.mkdir(exist_ok=True)
        else:
            stage.path.touch()

    def mount(self, task: Task, volume: TemplateVolume, stage: VolumeStage) -> MountRequest:
        base, rest, read_only = self._resolve(task, volume)
        return {"kind": "host", "base": base, "rest": rest, "ro": read_only}

    def remove(self, task_dir: Path, volume: TemplateVolume) -> None:
        """Only the mount point. Its mount is gone with the run, so it is empty."""
        stage = task_dir / STAGES / volume.name
        if stage.is_dir():
            stage.rmdir()
        else:
            stage.unlink(missing_ok=True)

    def _resolve(self, task: Task, volume: TemplateVolume) -> tuple[str, str, bool]:
        """The directory of the rule, the path below it, and whether it is read-only. The longest rule wins."""
        assert volume.host_path is not None
        path = volume.host_path.path
        if rule := host_path_error(path):
            raise StartFailed(Reason.HOST_PATH_NOT_ALLOWED, f"volume {volume.name}: path {path}: {rule}")
        found = find_host_path_rule(self._rules, task.namespace, path)
        if found is None:
            message = f"volume {volume.name}: path {path} is not allowed for tenant {task.namespace} on this node"
            raise StartFailed(Reason.HOST_PATH_NOT_ALLOWED, f"{message}; next: add it to `volume_paths` of the agent")
        if found.read_only and not volume.read_only:
            message = f"volume {volume.name}: path {path} is allowed for reading only"
            raise StartFailed(Reason.HOST_PATH_NOT_ALLOWED, f"{message}; next: set `readOnly: true`")
        return os.path.realpath(found.path), path[len(found.path.rstrip("/")) :].strip("/"), volume.read_only


class TaskVolumes:
    """The volumes of the tasks of one driver. `can_mount`: the agent is root and has mount namespaces.

    `owner` tells the user of a task that its launch settings do not tell.
    `in_view`: programs of the tasks see the volumes through the view of the shim; else a container runtime mounts them.
    `hidden` are directories that no volume may cover, because code of the agent is read from them.
    """

    def __init__(
        self,
        *,
        can_mount: bool = False,
        in_view: bool = True,
        owner: Callable[[Task], Sequence[tuple[str, object]]] | None = None,
        limit: str = "measured",
        rules: Sequence[HostPathRule] = (),
        hidden: Sequence[str] = (),
        store: VolumeStore | None = None,
    ) -> None:
        """`store` has the persistent volumes; None: this node has none."""
        self.limit = limit
        self._owner = owner
        self.store = store
        self._can_mount, self._in_view, self._hidden = can_mount, in_view, tuple(hidden)
        self._drivers: Mapping[str, VolumeDriver] = {
            "scratch": ScratchOnDisk(limit),
            "memory": ScratchInMemory(can_mount=can_mount),
            "host": HostPaths(rules, can_mount=can_mount),
        }

    def _driver(self, volume: TemplateVolume) -> VolumeDriver:
        if volume.host_path is not None:
            return self._drivers["host"]
        memory = volume.scratch is not None and volume.scratch.medium is Medium.MEMORY
        return self._drivers["memory" if memory else "scratch"]

    def prepare(self, task: Task, task_dir: Path, launch: Sequence[tuple[str, object]]) -> list[tuple[str, object]]:
        """Makes the volumes of a run, for the user in the launch settings. Returns further ones. Raises StartFailed and
        OSError.
        """
        settings: list[tuple[str, object]] = []
        if not task.template.volumes:
            return settings
        who = dict(self._owner(task) if self._owner is not None else launch)
        uid, gid = int(str(who.get("uid", 0))), int(str(who.get("gid", 0)))
        (task_dir / STAGES).mkdir(parents=True, exist_ok=True)
        (task_dir / STAGES).chmod(0o711)
        for volume in task.template.volumes:
            self._check_place(volume)
            if volume.claim is not None:
                staged = self._stage_claim(task, volume, uid, gid)
                settings.append(self._setting(volume, staged.path, uid, gid, staged.request))
                continue
            stage = VolumeStage(task_dir / STAGES / volume.name, task_dir / IMAGES / f"{volume.name}.img", uid, gid)
            driver = self._driver(volume)
            driver.prepare(task, volume, stage)
            request = driver.mount(task, volume, stage)
            if request["kind"] == "host" and not self._can_mount:
                continue  # the program uses the path itself, which its environment names
            settings.append(self._setting(volume, stage.path, uid, gid, request))
        return settings

    def _setting(
        self, volume: TemplateVolume, stage: Path, uid: int, gid: int, request: MountRequest
    ) -> tuple[str, object]:
        place = volume.mount_path if self._can_mount and self._in_view else ""
        common = {"name": volume.name, "stage": str(stage), "place": place, "ro": volume.read_only}
        return ("volume", json.dumps({**common, "uid": uid, "gid": gid, **request}))

    def _stage_claim(self, task: Task, volume: TemplateVolume, uid: int, gid: int) -> StagedVolume:
        bound = _bound_volume(task, volume)
        if self.store is None or bound is None:
            message = f"volume {volume.name}: this node keeps no persistent volumes"
            raise StartFailed(Reason.VOLUME_UNAVAILABLE, f"{message}; next: set `volumes` of the agent")
        return self.store.stage(task.namespace, bound, uid, gid)

    def _check_place(self, volume: TemplateVolume) -> None:
        """Stored objects may be older than a rule of admission, and only the node knows where its code is."""
        why = mount_path_error(volume.mount_path)
        for path in self._hidden if not why else ():
            if f"{path}/".startswith(f"{volume.mount_path}/") or volume.mount_path.startswith(f"{path}/"):
                why = f"must not cover {path}, which the agent of this node needs"
        if why:
            message = f"volume {volume.name}: mountPath {volume.mount_path}: {why}"
            raise StartFailed(Reason.VOLUME_UNAVAILABLE, message)

    def environment(self, task: Task, task_dir: Path) -> dict[str, str]:
        """Where each volume is, for programs that do not rely on the mount path."""
        return {volume_env_name(volume.name): self._path(task, volume, task_dir) for volume in task.template.volumes}

    def _path(self, task: Task, volume: TemplateVolume, task_dir: Path) -> str:
        if self._can_mount:
            return volume.mount_path
        if volume.claim is not None:
            return str(self._kept_path(task, volume))
        return volume.host_path.path if volume.host_path is not None else str(task_dir / STAGES / volume.name)

    def oci_mounts(self, task: Task, task_dir: Path) -> list[dict[str, object]]:
        """Mounts for the configuration of a container. The shim has staged the volumes by then."""
        return [
            {
                "destination": volume.mount_path,
                "type": "none",
                "source": str(
                    self._kept_path(task, volume) if volume.claim is not None else task_dir / STAGES / volume.name
                ),
                "options": ["bind", "nosuid", "nodev", *(("ro",) if volume.read_only else ())],
            }
            for volume in task.template.volumes
        ]

    def _kept_path(self, task: Task, volume: TemplateVolume) -> Path:
        bound = _bound_volume(task, volume)
        return self.store.path(bound) if self.store is not None and bound is not None else Path(volume.mount_path)

    def remove(self, task: Task, task_dir: Path) -> bool:
        """Removes what the volumes left. Returns whether nothing is left."""
        for volume in task.template.volumes:
            if volume.claim is not None:
                continue
            driver = self._driver(volume)
            driver.unmount(task_dir, volume)
            driver.remove(task_dir, volume)
        for folder in (task_dir / STAGES, task_dir / IMAGES):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        return not (task_dir / STAGES).exists()


def _bound_volume(task: Task, volume: TemplateVolume) -> BoundVolume | None:
    name = volume.claim.name if volume.claim is not None else ""
    return next((bound for bound in task.volumes if bound.claim == name), None)
