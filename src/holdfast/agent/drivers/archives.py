"""Unpacks archives of tenants (tar, zip) into a directory. Nothing in an archive is trusted.

- Every path is walked from the directory's descriptor, one component at a time, without following links.
- Files are created new, and modes are set on their descriptors. No existing file is opened. Owners, times,
  set-user-id bits and devices of the archive are ignored.
- Links are created last, and only if they cannot lead out of the directory.
- Bytes, entries, depth, lengths and the memory of the decoder are bounded. Sizes stated in
  an archive are not trusted.

A caller removes the directory if `unpack` raises. Only ArchiveRefused is raised, or OSError if the node cannot write.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Protocol

import msgspec

# Size of everything in one archive after unpacking. A larger archive fails the start.
ARCHIVE_UNPACKED_BYTES_MAX = 8 * 1024**3
# Unpacked size relative to the packed size, beyond ARCHIVE_RATIO_EXEMPT_BYTES. Text compresses 5 to 30 times; a bomb
# 1,000 times and more.
ARCHIVE_RATIO_MAX = 100
# Unpacked size up to which the ratio does not matter.
ARCHIVE_RATIO_EXEMPT_BYTES = 32 * 1024**2
# Files, directories and links of one archive, parent directories included. More fail the start.
ARCHIVE_ENTRIES_MAX = 65_536
# Symbolic links of one archive, which are held in memory until they are created.
ARCHIVE_SYMLINKS_MAX = 8_192
# Directories above a file in an archive. A deeper path fails the start.
ARCHIVE_DEPTH_MAX = 32
# Length of a path or of a link's target in an archive. A longer one fails the start.
ARCHIVE_PATH_BYTES_MAX = 1024
# Size of one extended header of a tar archive, which is held in memory.
TAR_HEADER_BYTES_MAX = 64 * 1024
# Size of the directory of a zip archive, which is held in memory.
ZIP_DIRECTORY_BYTES_MAX = 8 * 1024**2
# Memory of the xz decoder. `xz -9` needs 65 MiB.
XZ_MEMORY_BYTES_MAX = 96 * 1024**2

_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_ZIP_SUFFIXES = (".zip",)
_CHUNK_BYTES = 64 * 1024
# Disk space that an entry takes at least, whatever its size.
_BLOCK_BYTES = 4096
_NAME_BYTES_MAX = 255
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ArchiveRefused(Exception):
    """The archive is damaged, or violates a rule. The message names the entry."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Member(msgspec.Struct, frozen=True):
    """One entry of an archive: a directory, a file with its data, or a link to `target`."""

    name: str
    kind: str
    executable: bool = False
    target: str = ""
    data: Callable[[], Readable] | None = None


def is_archive(file_name: str) -> bool:
    """Whether a file of this name is unpacked."""
    return file_name.lower().endswith((*_TAR_SUFFIXES, *_ZIP_SUFFIXES))


def unpack(file_name: str, packed: IO[bytes], directory: int, check_disk: Callable[[], None]) -> None:
    """Unpacks an archive into the empty directory with the descriptor `directory`.

    `check_disk` is called regularly. It raises if the node has too little space left.
    """
    packed_bytes = packed.seek(0, os.SEEK_END)
    packed.seek(0)
    tree = _Tree(directory, max(ARCHIVE_RATIO_EXEMPT_BYTES, ARCHIVE_RATIO_MAX * packed_bytes), check_disk)
    zipped = file_name.lower().endswith(_ZIP_SUFFIXES)
    for entry in parsed_entries(_zip_entries(packed) if zipped else _tar_entries(packed, tree.bytes_max)):
        tree.add(entry)
    tree.create_symlinks()


def parsed_entries(entries: Iterator[_Member]) -> Iterator[_Member]:
    """The entries. Whatever the decoders raise on hostile input becomes ArchiveRefused."""
    while True:
        try:
            entry = next(entries, None)
        except ArchiveRefused:
            raise
        except Exception as error:
            raise _damaged(error) from error
        if entry is None:
            return
        yield entry


def _damaged(error: Exception) -> ArchiveRefused:
    why = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
    return ArchiveRefused(f"the archive is damaged ({why[:200]})")


class _Tree:
    """The directory that is filled. Everything in it was created here."""

    def __init__(self, root: int, bytes_max: int, check_disk: Callable[[], None]) -> None:
        self._root = root
        self._check_disk = check_disk
        self.bytes_max = min(bytes_max, ARCHIVE_UNPACKED_BYTES_MAX)
        self._bytes = 0
        self._entries = 0
        self._symlinks: dict[tuple[str, ...], str] = {}

    def add(self, entry: _Member) -> None:
        path = path_components(entry.name)
        if not path:
            if entry.kind != "directory":
                raise ArchiveRefused(f"{entry.name}: has no file name")
            return
        if entry.kind == "directory":
            os.close(self._open_directory(path))
            return
        self._charge(entry.name)
        self._symlinks.pop(path, None)  # a later entry of the same name replaces it
        if entry.kind == "symlink":
            self._symlinks[path] = _inner_target(path, entry.target)
            if len(self._symlinks) > ARCHIVE_SYMLINKS_MAX:
                raise ArchiveRefused(f"{entry.name}: the archive has more than {ARCHIVE_SYMLINKS_MAX} symbolic links")
            return
        parent = self._open_directory(path[:-1])
        try:
            self._remove_earlier(path[-1], parent, entry.name)
            if entry.kind == "hardlink":
                self._add_hard_link(entry, path[-1], parent)
            else:
                self._add_file(entry, path[-1], parent)
        finally:
            os.close(parent)

    def create_symlinks(self) -> None:
        """After everything else, so that no entry was written through a link."""
        for path, target in self._symlinks.items():
            parent = self._open_directory(path[:-1])
            try:
                self._remove_earlier(path[-1], parent, "/".join(path))
                os.symlink(target, path[-1], dir_fd=parent)
            finally:
                os.close(parent)

    def _charge(self, name: str, size: int = _BLOCK_BYTES, entries: int = 1) -> None:
        self._bytes += size
        self._entries += entries
        if entries:
            self._check_disk()
        if self._entries > ARCHIVE_ENTRIES_MAX:
            raise ArchiveRefused(f"{name}: the archive has more than {ARCHIVE_ENTRIES_MAX} entries")
        if self._bytes > self.bytes_max:
            raise ArchiveRefused(f"{name}: the archive is larger than {self.bytes_max} bytes when unpacked")

    def _open_directory(self, path: tuple[str, ...]) -> int:
        """A descriptor of the directory, which is created if it does not exist. A link on the way is refused."""
        here = os.dup(self._root)
        for name in path:
            try:
                inner = self._enter(name, here, "/".join(path))
            finally:
                os.close(here)
            here = inner
        return here

    def _enter(self, name: str, parent: int, shown: str) -> int:
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            pass
        else:
            self._charge(shown)
        try:
            opened = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise ArchiveRefused(f"{shown}: a file or link of the archive has the name of a directory") from error
            raise
        os.fchmod(opened, 0o755)
        return opened

    def _remove_earlier(self, name: str, parent: int, shown: str) -> None:
        """As with tar, a later entry replaces an earlier one of the same name."""
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError) as error:
            raise ArchiveRefused(f"{shown}: the archive has a directory of the same name") from error

    def _add_file(self, entry: _Member, name: str, parent: int) -> None:
        assert entry.data is not None
        out = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            for chunk in read_chunks(entry.data):
                self._charge(entry.name, len(chunk), entries=0)
                self._check_disk()
                write_all(out, chunk)
            os.fchmod(out, 0o555 if entry.executable else 0o444)
        finally:
            os.close(out)

    def _add_hard_link(self, entry: _Member, name: str, parent: int) -> None:
        """Links to an earlier file of the archive. Both names were created here, so nothing outside gains a link."""
        target = path_components(entry.target)
        missing = ArchiveRefused(f"{entry.name}: a hard link to {entry.target}, which is not an earlier file")
        if not target:
            raise missing
        folder = self._open_directory(target[:-1])
        try:
            found = os.stat(target[-1], dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise missing
            os.link(target[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as error:
            raise missing from error
        finally:
            os.close(folder)


def path_components(name: str) -> tuple[str, ...]:
    """The path's components; empty for the directory itself. Raises ArchiveRefused if the path is not a plain one."""
    if len(_encoded(name)) > ARCHIVE_PATH_BYTES_MAX:
        raise ArchiveRefused(f"{name[:80]}…: the path is longer than {ARCHIVE_PATH_BYTES_MAX} bytes")
    if "\0" in name or name.startswith("/"):
        raise ArchiveRefused(f"{name!r}: the path is absolute or contains NUL")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ArchiveRefused(f"{name}: the path leaves the archive")
    if len(parts) > ARCHIVE_DEPTH_MAX + 1:
        raise ArchiveRefused(f"{name[:80]}…: the path has more than {ARCHIVE_DEPTH_MAX} directories")
    if any(len(_encoded(part)) > _NAME_BYTES_MAX for part in parts):
        raise ArchiveRefused(f"{name[:80]}…: a name is longer than {_NAME_BYTES_MAX} bytes")
    return parts


def _encoded(name: str) -> bytes:
    try:
        return os.fsencode(name)
    except UnicodeEncodeError as error:
        raise ArchiveRefused(f"{name[:80]!r}: not a file name of this system") from error


def _inner_target(path: tuple[str, ...], target: str) -> str:
    """The target of a symbolic link, if it stays inside.

    `..` may stand only at the beginning. The directories above the link are real ones, so those steps stay inside, and
    the other steps only descend. After a step through another link, `..` could lead anywhere: with `b -> .`, the path
    `b/b/../..` is above the archive.
    """
    if not target or target.startswith("/"):
        raise ArchiveRefused(f"{'/'.join(path)}: a link to an absolute path")
    parts = [part for part in target.split("/") if part not in ("", ".")]
    down = [index for index, part in enumerate(parts) if part != ".."]
    up = down[0] if down else len(parts)
    if up > len(path) - 1:
        raise ArchiveRefused(f"{'/'.join(path)}: a link that leaves the archive")
    path_components("/".join(parts[up:]))  # refuses `..`
    return "/".join(parts) or "."


def read_chunks(data: Callable[[], Readable]) -> Iterator[bytes]:
    try:
        source = data()
        chunk = source.read(_CHUNK_BYTES)
        while chunk:
            yield chunk
            chunk = source.read(_CHUNK_BYTES)
    except ArchiveRefused:
        raise
    except Exception as error:
        raise _damaged(error) from error


def write_all(out: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(out, view) :]


# --- tar -------------------------------------------------------------------------------------------------------


class ForwardReader:
    """The decompressed archive for `tarfile`. It only goes forward, up to `bytes_max`, in small reads.

    `tarfile` reads an extended header of any size into memory at once, and follows negative sizes backwards.
    """

    def __init__(self, source: Readable, bytes_max: int, *, entries_max: int = ARCHIVE_ENTRIES_MAX) -> None:
        self._source = source
        self._position = 0
        # Headers and padding come on top of the data.
        self._bytes_max = bytes_max + entries_max * 2 * tarfile.BLOCKSIZE + TAR_HEADER_BYTES_MAX

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        if position < self._position:
            raise ArchiveRefused("the archive is damaged (a negative size)")
        while self._position < position and self.read(min(_CHUNK_BYTES, position - self._position)):
            pass
        return self._position

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= TAR_HEADER_BYTES_MAX:
            raise ArchiveRefused(f"a header is larger than {TAR_HEADER_BYTES_MAX} bytes")
        parts = []
        while size and (data := self._source.read(size)):
            parts.append(data)
            size -= len(data)
            self._position += len(data)
        if self._position > self._bytes_max:
            raise ArchiveRefused(f"the archive is larger than {self._bytes_max} bytes when unpacked")
        return b"".join(parts)


class _XzReader:
    """Decodes xz within a memory limit, which `lzma.LZMAFile` does not have."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES_MAX)

    def read(self, size: int, /) -> bytes:
        while not self._decoder.eof:
            packed = self._source.read(_CHUNK_BYTES) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise EOFError("the archive ends early")
            if data := self._decoder.decompress(packed, size):
                return data
        return b""


def decompressed(packed: IO[bytes]) -> Readable:
    magic = packed.read(6)
    packed.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=packed)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(packed)
    return _XzReader(packed) if magic == b"\xfd7zXZ\0" else packed


def _tar_entries(packed: IO[bytes], bytes_max: int) -> Iterator[_Member]:
    reader = ForwardReader(decompressed(packed), bytes_max)
    with tarfile.open(fileobj=reader, mode="r:") as archive:  # type: ignore[call-overload]
        while (member := archive.next()) is not None:
            archive.members.clear()  # nothing goes back to an earlier header
            yield _tar_entry(archive, member)


def _tar_entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> _Member:
    if member.isdir():
        return _Member(member.name, "directory")
    if member.issym():
        return _Member(member.name, "symlink", target=member.linkname)
    if member.islnk():
        return _Member(member.name, "hardlink", target=member.linkname)
    if not member.isreg() or member.issparse():
        raise ArchiveRefused(f"{member.name}: a special or sparse file")
    return _Member(member.name, "file", executable=bool(member.mode & 0o111), data=lambda: _tar_data(archive, member))


def _tar_data(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Readable:
    data = archive.extractfile(member)
    assert data is not None
    return data


# --- zip -------------------------------------------------------------------------------------------------------


class _ZipReader(io.RawIOBase):
    """The zip file for `zipfile`, which reads the directory of the archive into memory at once."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._source.tell()

    def seek(self, position: int, whence: int = os.SEEK_SET, /) -> int:
        return self._source.seek(position, whence)

    def read(self, size: int = -1, /) -> bytes:
        if size > ZIP_DIRECTORY_BYTES_MAX:
            raise ArchiveRefused(f"the directory of the archive is larger than {ZIP_DIRECTORY_BYTES_MAX} bytes")
        return self._source.read(size if size >= 0 else ZIP_DIRECTORY_BYTES_MAX)


def _zip_entries(packed: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(_ZipReader(packed)) as archive:
        if len(archive.infolist()) > ARCHIVE_ENTRIES_MAX:
            raise ArchiveRefused(f"the archive has more than {ARCHIVE_ENTRIES_MAX} entries")
        for item in archive.infolist():
            yield _zip_entry(archive, item)


def _zip_entry(archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> _Member:
    mode = item.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if item.is_dir():
        return _Member(item.filename, "directory")
    if item.compress_type not in _ZIP_METHODS:
        raise ArchiveRefused(f"{item.filename}: compressed by a method other than deflate")
    if kind == stat.S_IFLNK:
        with archive.open(item) as source:
            target = source.read(ARCHIVE_PATH_BYTES_MAX + 1)
        return _Member(item.filename, "symlink", target=target.decode())
    if kind not in (0, stat.S_IFREG):
        raise ArchiveRefused(f"{item.filename}: a special file")
    return _Member(item.filename, "file", executable=bool(mode & 0o111), data=lambda: archive.open(item))
