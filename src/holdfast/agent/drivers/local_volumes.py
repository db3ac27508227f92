"""Persistent volumes in a directory of this node, behind a small contract with the steps of a CSI driver.

- `VolumeStore` is the contract: create, list and delete a volume, and say what a run mounts. To add another kind of
  storage, implement it and give it to `TaskVolumes` and `VolumeUpkeep`.
- A volume is `UID/` in the store's directory, named by the uid of its Volume object, which no tenant chooses. It
  appears with a rename when it is complete, and disappears with one, so that a crash leaves no half of one.
- Data that was there once is never replaced by an empty volume.
- A volume is used only by tasks of the tenant that it was made for.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.removal import remove_at, remove_tree
from holdfast.agent.drivers.volume_images import make_image
from holdfast.model.quantity import STORAGE, amount_text
from holdfast.model.reasons import Reason
from holdfast.model.volume import BoundVolume, volume_bytes

DATA, IMAGE, RECORD = "data", "volume.img", "volume.json"
_NEW, _DELETED = ".new-", ".deleted-"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class VolumeRecord(msgspec.Struct, frozen=True):
    """Whose volume it is, and how its size is enforced: `image` or `measured`."""

    namespace: str
    name: str
    size_bytes: int
    limit: str


class StagedVolume(msgspec.Struct, frozen=True):
    """Where the volume is on this node, and what the shim mounts there (`agent.shim_mounts`)."""

    path: Path
    request: dict[str, object]


class VolumeStore(Protocol):
    """Persistent volumes of one kind of storage. All methods run in a thread."""

    def stage(self, namespace: str, volume: BoundVolume, uid: int, gid: int) -> StagedVolume:
        """Creates the volume if it is new, and returns what a run mounts. Raises StartFailed and OSError."""

    def path(self, volume: BoundVolume) -> Path:
        """Where programs find the volume if the node cannot mount it elsewhere."""

    def has(self, uid: str) -> bool:
        """Whether the volume with this uid is there."""

    def delete(self, uid: str) -> None:
        """Deletes the volume with its data; does nothing if it is not there. Raises OSError."""


class LocalVolumes(VolumeStore):
    """`limit` is how sizes are enforced (`choose_scratch_limit`). A volume keeps the form that it was made in."""

    def __init__(self, root: Path, *, limit: str, can_mount: bool) -> None:
        self._root, self._limit, self._can_mount = root, limit, can_mount
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        for path in root.iterdir():  # left by a crash
            if path.name.startswith((_NEW, _DELETED)):
                remove_tree(path)

    def stage(self, namespace: str, volume: BoundVolume, uid: int, gid: int) -> StagedVolume:
        folder = self._folder(volume.uid)
        record = self._record(folder)
        if record is None and not volume.new:
            message = f"volume {volume.name}: its data is not on this node any more"
            raise StartFailed(
                Reason.VOLUME_DATA_MISSING, f"{message}; next: restore it, or delete the Volume to start empty"
            )
        if record is None:
            record = self._create(folder, namespace, volume, uid, gid)
        if record.namespace != namespace:
            raise StartFailed(Reason.VOLUME_UNAVAILABLE, f"volume {volume.name}: it belongs to another tenant")
        size = record.size_bytes
        if record.limit == "measured":
            return StagedVolume(
                folder / DATA, {"kind": "dir", "size": size, "limit": amount_text(STORAGE, size), "keep": True}
            )
        if not self._can_mount:
            message = f"volume {volume.name}: it is a file system in an image, which this node cannot mount"
            raise StartFailed(Reason.VOLUME_UNAVAILABLE, f"{message}; next: run the agent as root")
        return StagedVolume(folder / DATA, {"kind": "image", "image": str(folder / IMAGE), "size": size, "keep": True})

    def path(self, volume: BoundVolume) -> Path:
        return self._folder(volume.uid) / DATA

    def has(self, uid: str) -> bool:
        return (self._folder(uid) / RECORD).is_file()

    def delete(self, uid: str) -> None:
        folder = self._folder(uid)
        gone = self._root / f"{_DELETED}{uid}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone)
        held = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(held)
            if os.path.lexists(gone):
                remove_at(gone.name, held)
        finally:
            os.close(held)

    def _folder(self, uid: str) -> Path:
        if _SAFE.fullmatch(uid) is None:
            raise StartFailed(Reason.VOLUME_UNAVAILABLE, f"volume with uid {uid!r}: not a name of a directory")
        return self._root / uid

    def _record(self, folder: Path) -> VolumeRecord | None:
        try:
            return msgspec.json.decode((folder / RECORD).read_bytes(), type=VolumeRecord)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise OSError(f"volume record {folder / RECORD} is unreadable: {error}") from error

    def _create(self, folder: Path, namespace: str, volume: BoundVolume, uid: int, gid: int) -> VolumeRecord:
        new = self._root / f"{_NEW}{folder.name}"
        remove_tree(new)
        new.mkdir(mode=0o711)
        (new / DATA).mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(new / DATA, uid, gid)
        record = VolumeRecord(namespace, volume.name, volume_bytes(volume.size), self._limit)
        if self._limit == "image":
            make_image(new / IMAGE, record.size_bytes, uid, gid, journal=True)
        with (new / RECORD).open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        new.rename(folder)
        held = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(held)
        finally:
            os.close(held)
        return record
