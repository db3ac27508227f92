"""Unpacks the layers of an image into a root file system. Nothing in a layer is trusted.

- Paths are walked from the root's descriptor. Links are followed only inside the root, as a container would see them.
- Files are created new. Devices, pipes, set-user-id bits, file capabilities and times are dropped.
- Owners are not applied. All files belong to the agent; `finish` gives the task what the image's own user may do.
- Bytes, entries, depth and lengths are bounded. Sizes stated in a layer are not trusted.

A caller removes the directory if anything raises. Only ArchiveRefused is raised, OSError if the node cannot write, or
what `check_disk` raises.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable
from typing import IO

from holdfast.agent.drivers.archives import (
    ARCHIVE_RATIO_EXEMPT_BYTES,
    ARCHIVE_RATIO_MAX,
    ArchiveRefused,
    ForwardReader,
    Readable,
    decompressed,
    path_components,
    read_chunks,
    write_all,
)
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.removal import remove_at

# Size of an image after unpacking. A larger one fails the start.
IMAGE_UNPACKED_BYTES_MAX = 16 * 1024**3
# Files, directories and links of all layers of an image. More fail the start.
IMAGE_ENTRIES_MAX = 262_144
# Directories above a file of an image, after links were followed. A deeper path fails the start.
IMAGE_DEPTH_MAX = 64
# Links followed on the way to one file, as in Linux.
IMAGE_LINKS_FOLLOWED_MAX = 40

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_BLOCK_BYTES = 4096
_MOUNTED_DIRECTORIES = (("proc",), ("dev",), ("sys",), ("tmp",), ("run",), ("var", "tmp"))
_MOUNTED_FILES = ("resolv.conf", "hosts")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class LayersTooLarge(ArchiveRefused):
    """The image exceeds a limit on its size or on its number of files."""


class _Padded:
    """Adds the end of the archive, which some tools leave out. The layer's digest was verified: nothing is missing."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._left = 3 * tarfile.BLOCKSIZE

    def read(self, size: int, /) -> bytes:
        if data := self._source.read(size):
            return data
        zeros = bytes(min(size, self._left))
        self._left -= len(zeros)
        return zeros


class RootTree:
    """The root file system that is filled, layer by layer, below the directory with the descriptor `root`.

    `check_disk` is called regularly. It raises if the node has too little space left.
    """

    def __init__(self, root: int, compressed_bytes: int, check_disk: Callable[[], None]) -> None:
        self._root = root
        self._check_disk = check_disk
        self._bytes_max = min(
            IMAGE_UNPACKED_BYTES_MAX, max(ARCHIVE_RATIO_EXEMPT_BYTES, ARCHIVE_RATIO_MAX * compressed_bytes)
        )
        self.bytes = 0
        self._entries = 0
        self._owners: dict[int, tuple[int, int]] = {}
        """Inode → owner and group in the image, where they are not root."""

    def apply(self, packed: IO[bytes]) -> None:
        """Adds one layer, uncompressed or compressed with gzip, bzip2 or xz."""
        magic = packed.read(4)
        packed.seek(0)
        if magic == _ZSTD_MAGIC:
            raise ArchiveRefused("a layer is compressed with zstd, which this agent cannot read")
        made: set[tuple[str, ...]] = set()
        try:
            reader = ForwardReader(_Padded(decompressed(packed)), self._bytes_max, entries_max=IMAGE_ENTRIES_MAX)
            with tarfile.open(fileobj=reader, mode="r:") as archive:  # type: ignore[call-overload]
                while (member := archive.next()) is not None:
                    archive.members.clear()  # nothing goes back to an earlier header
                    self._add(archive, member, made)
        except (ArchiveRefused, StartFailed, OSError):
            raise
        except Exception as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise ArchiveRefused(f"a layer is damaged ({why[:200]})") from error

    def _add(self, archive: tarfile.TarFile, member: tarfile.TarInfo, made: set[tuple[str, ...]]) -> None:
        path = path_components(member.name.lstrip("/"))
        if not path:
            return
        self._charge(member.name)
        parent = self._open_directory(path[:-1], member.name)
        try:
            if path[-1].startswith(_WHITEOUT):
                self._white_out(path, parent, made)
                return
            if member.issparse():
                raise ArchiveRefused(f"{member.name}: a sparse file")
            if member.isdir():
                self._add_directory(member, path[-1], parent)
            elif member.issym():
                _remove_earlier(path[-1], parent)
                os.symlink(_link_target(member), path[-1], dir_fd=parent)
            elif member.islnk():
                self._add_hard_link(member, path[-1], parent)
            elif member.isreg():
                self._add_file(archive, member, path[-1], parent)
            else:
                return  # a device or a pipe: the runtime makes those that a container may have
            made.add(path)
        finally:
            os.close(parent)

    def _charge(self, name: str, size: int = _BLOCK_BYTES, entries: int = 1) -> None:
        self.bytes += size
        self._entries += entries
        self._check_disk()
        if self._entries > IMAGE_ENTRIES_MAX:
            raise LayersTooLarge(f"{name}: the image has more than {IMAGE_ENTRIES_MAX} entries")
        if self.bytes > self._bytes_max:
            raise LayersTooLarge(f"{name}: the image is larger than {self._bytes_max} bytes when unpacked")

    # --- entries ---------------------------------------------------------------------------------------------------

    def _white_out(self, path: tuple[str, ...], parent: int, made: set[tuple[str, ...]]) -> None:
        """Removes what earlier layers have there. A whiteout does not affect entries of its own layer."""
        if path[-1] == _OPAQUE:
            for name in os.listdir(parent):
                if (*path[:-1], name) not in made:
                    remove_at(name, parent)
            return
        name = path[-1].removeprefix(_WHITEOUT)
        if name in ("", ".", "..") or name.startswith(_WHITEOUT):
            return
        if (*path[:-1], name) not in made:
            remove_at(name, parent)

    def _add_directory(self, member: tarfile.TarInfo, name: str, parent: int) -> None:
        try:
            opened = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError:
            _remove_earlier(name, parent)
            os.mkdir(name, 0o700, dir_fd=parent)
            opened = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            os.fchmod(opened, (member.mode & 0o1777) | 0o700)
            self._own(os.fstat(opened).st_ino, member)
        finally:
            os.close(opened)

    def _add_file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, parent: int) -> None:
        _remove_earlier(name, parent)
        out = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            data = archive.extractfile(member)
            assert data is not None
            for chunk in read_chunks(lambda: data):
                self._charge(member.name, len(chunk), entries=0)
                write_all(out, chunk)
            os.fchmod(out, (member.mode & 0o777) | 0o400)
            self._own(os.fstat(out).st_ino, member)
        finally:
            os.close(out)

    def _add_hard_link(self, member: tarfile.TarInfo, name: str, parent: int) -> None:
        """Links to a file of this image. Both names are inside the root, so nothing outside gains a link."""
        target = path_components(member.linkname.lstrip("/"))
        missing = ArchiveRefused(f"{member.name}: a hard link to {member.linkname[:80]}, which is not an earlier file")
        if not target:
            raise missing
        folder = self._open_directory(target[:-1], member.name)
        try:
            found = os.stat(target[-1], dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
                raise missing
            here = os.stat(name, dir_fd=parent, follow_symlinks=False) if _exists(name, parent) else None
            if here is not None and here.st_ino == found.st_ino:
                return
            _remove_earlier(name, parent)
            os.link(target[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as error:
            raise missing from error
        finally:
            os.close(folder)

    def _own(self, inode: int, member: tarfile.TarInfo) -> None:
        self._owners.pop(inode, None)  # the number may be that of a file that a layer removed
        if member.uid or member.gid:
            self._owners[inode] = (member.uid, member.gid)

    # --- paths -----------------------------------------------------------------------------------------------------

    def _open_directory(self, path: tuple[str, ...], shown: str) -> int:
        """A descriptor of the directory, which is created if it does not exist. Links lead nowhere but inside."""
        opened = [os.dup(self._root)]
        pending = list(reversed(path))
        followed = 0
        try:
            while pending:
                name = pending.pop()
                if name in ("", "."):
                    continue
                if name == "..":
                    if len(opened) > 1:
                        os.close(opened.pop())
                    continue
                inner = self._enter(name, opened[-1], shown)
                if isinstance(inner, int):
                    opened.append(inner)
                    if len(opened) > IMAGE_DEPTH_MAX + 1:
                        raise ArchiveRefused(f"{shown[:80]}: more than {IMAGE_DEPTH_MAX} directories deep")
                    continue
                followed += 1
                if followed > IMAGE_LINKS_FOLLOWED_MAX:
                    raise ArchiveRefused(f"{shown[:80]}: more than {IMAGE_LINKS_FOLLOWED_MAX} links on the way")
                if inner.startswith("/"):
                    while len(opened) > 1:
                        os.close(opened.pop())
                pending.extend(reversed(inner.split("/")))
            return os.dup(opened[-1])
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _enter(self, name: str, parent: int, shown: str) -> int | str:
        """The descriptor of a directory, or the target of a link."""
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            os.mkdir(name, 0o755, dir_fd=parent)
            self._charge(shown)
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
        try:
            return os.readlink(name, dir_fd=parent)
        except OSError as error:
            raise ArchiveRefused(f"{shown[:80]}: a file of the image has the name of a directory") from error

    def add_mount_points(self) -> None:
        """What the runtime mounts something on, where the image lacks it: a read-only root cannot get it later."""
        for path in _MOUNTED_DIRECTORIES:
            os.close(self._open_directory(path, "/".join(path)))
        folder = self._open_directory(("etc",), "etc")
        try:
            for name in _MOUNTED_FILES:
                if not _exists(name, folder):
                    os.close(os.open(name, _NEW_FILE, 0o644, dir_fd=folder))
        finally:
            os.close(folder)

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self, uid: int, gid: int) -> None:
        """Sets the modes for a task, which has a uid of its own: it may do what the image's user may do.

        The task never writes to these files: it has a layer of its own, or a read-only root.
        """
        for _, folders, files, descriptor in os.fwalk(".", dir_fd=self._root, follow_symlinks=False):
            for name in (*folders, *files):
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if not stat.S_ISLNK(found.st_mode):
                    mode = self._mode_for_task(found, uid, gid)
                    os.chmod(name, mode, dir_fd=descriptor)
        os.fchmod(self._root, self._mode_for_task(os.fstat(self._root), uid, gid))

    def _mode_for_task(self, found: os.stat_result, uid: int, gid: int) -> int:
        owner, group = self._owners.get(found.st_ino, (0, 0))
        mode = stat.S_IMODE(found.st_mode)
        allowed = mode >> 6 if owner == uid else mode >> 3 if group == gid else mode
        return (mode & 0o1770) | (allowed & 0o7)


def _exists(name: str, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove_earlier(name: str, parent: int) -> None:
    """As in a tar archive and in overlays, a later entry replaces an earlier one of the same name."""
    if _exists(name, parent):
        remove_at(name, parent)


def _link_target(member: tarfile.TarInfo) -> str:
    """The target as it is: it is followed only inside the root, and by the container."""
    target = member.linkname
    if not target or "\0" in target or len(os.fsencode(target)) > 4095:
        raise ArchiveRefused(f"{member.name[:80]}: a link without a usable target")
    return target
