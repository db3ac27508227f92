"""Artifact cache: files and archives that tasks need, fetched once per node and stored by digest.

A source is a path, a `file:` URL or an `http(s):` URL. Archives (tar, zip) are unpacked. A task finds each artifact
under its name in its working directory.

- An entry under a digest always has that digest. A partial download is never visible as an entry.
- An artifact that a task uses is never evicted.
- File names inside an archive are never trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import IO

from holdfast.agent.drivers.contract import StartFailed
from holdfast.model.reasons import Reason
from holdfast.model.template import Artifact

# Size of one artifact. A larger one fails the start.
ARTIFACT_BYTES_MAX = 4 * 1024**3
# Size of all cached artifacts of a node. The least recently used are deleted.
ARTIFACT_CACHE_BYTES_MAX = 16 * 1024**3
# Time without data while an artifact is fetched. Then the start fails and is retried.
ARTIFACT_TIMEOUT_S = 30.0
# Cached artifacts that a node reports, newest first. The scheduler does not know of the rest.
ARTIFACTS_REPORTED_MAX = 64

_CHUNK_BYTES = 1024 * 1024
_DIGEST_PREFIX = "sha256:"


class ArtifactCache:
    """`install` runs in threads. One lock per cache prevents two downloads of the same artifact."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = Lock()
        self._in_use: dict[str, tuple[str, ...]] = {}
        root.mkdir(parents=True, exist_ok=True)
        for part in root.glob("part-*"):
            _remove(part)

    def cached_digests(self) -> tuple[str, ...]:
        """Cached digests, most recently used first, at most ARTIFACTS_REPORTED_MAX. A hint for the scheduler."""
        known = [path for path in self._root.iterdir() if path.name.startswith("sha256-")]
        newest = sorted(known, key=lambda path: (-_last_use_s(path), path.name))
        return tuple(path.name.replace("-", ":", 1) for path in newest[:ARTIFACTS_REPORTED_MAX])

    def install(self, task_id: str, artifacts: Sequence[Artifact], work: Path) -> None:
        """Links each artifact into the working directory `work`. Raises StartFailed with the reason, or OSError."""
        work.mkdir(parents=True, exist_ok=True)
        digests = []
        for artifact in artifacts:
            with self._lock:
                digest = artifact.digest if self._has(artifact.digest) else self._fetch(artifact)
                os.utime(self._path(digest))
            digests.append(digest)
            link = work / artifact.name
            if link.is_symlink() or link.exists():
                _remove(link)
            link.symlink_to(self._content(digest))
        self._in_use[task_id] = tuple(digests)
        self._evict()

    def release(self, task_id: str) -> None:
        self._in_use.pop(task_id, None)

    def _path(self, digest: str) -> Path:
        return self._root / digest.replace(":", "-", 1)

    def _content(self, digest: str) -> Path:
        """The file, or the directory of an unpacked archive."""
        return self._path(digest) / "content"

    def _has(self, digest: str) -> bool:
        return bool(digest) and self._content(digest).exists()

    def _fetch(self, artifact: Artifact) -> str:
        part = self._root / f"part-{os.getpid()}-{hashlib.sha256(artifact.source.encode()).hexdigest()[:16]}"
        _remove(part)
        part.mkdir()
        try:
            digest = self._download(artifact, part / "fetched")
            if artifact.digest and digest != artifact.digest:
                raise StartFailed(
                    Reason.ARTIFACT_MISMATCH,
                    f"artifact {artifact.name} from {artifact.source}: wrong digest (expected {artifact.digest}, "
                    f"found {digest})",
                )
            if not self._has(digest):
                _unpack(artifact, part)
                part.rename(self._path(digest))
            return digest
        finally:
            _remove(part)

    def _download(self, artifact: Artifact, target: Path) -> str:
        try:
            with _open_source(artifact.source) as source, target.open("wb") as out:
                return _copy_and_hash(artifact, source, out)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise _fetch_failed(artifact, error.strerror or str(error)) from error
        except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
            raise _fetch_failed(artifact, str(error)) from error

    def _evict(self) -> None:
        """Evicts the least recently used artifacts until the cache is within its size limit. Artifacts in use are never
        evicted.
        """
        with self._lock:
            kept = {digest for digests in self._in_use.values() for digest in digests}
            there = sorted((p for p in self._root.iterdir() if p.name.startswith("sha256-")), key=_last_use_s)
            sizes = {path: _size(path) for path in there}
            total = sum(sizes.values())
            for path in there:
                if total <= ARTIFACT_CACHE_BYTES_MAX:
                    return
                if path.name.replace("-", ":", 1) not in kept:
                    total -= sizes[path]
                    _remove(path)


def _fetch_failed(artifact: Artifact, why: str) -> StartFailed:
    return StartFailed(Reason.ARTIFACT_MISSING, f"artifact {artifact.name}: cannot fetch {artifact.source} ({why})")


def _open_source(source: str) -> IO[bytes]:
    scheme = urllib.parse.urlsplit(source).scheme
    if scheme in ("http", "https"):
        response: IO[bytes] = urllib.request.urlopen(source, timeout=ARTIFACT_TIMEOUT_S)
        return response
    return open(urllib.parse.urlsplit(source).path if scheme == "file" else source, "rb")


def _copy_and_hash(artifact: Artifact, source: IO[bytes], out: IO[bytes]) -> str:
    sums = hashlib.sha256()
    size = 0
    while data := source.read(_CHUNK_BYTES):
        size += len(data)
        if size > ARTIFACT_BYTES_MAX:
            raise _fetch_failed(artifact, f"larger than the limit of {ARTIFACT_BYTES_MAX} bytes")
        sums.update(data)
        out.write(data)
    out.flush()
    os.fsync(out.fileno())
    return f"{_DIGEST_PREFIX}{sums.hexdigest()}"


def _unpack(artifact: Artifact, part: Path) -> None:
    """Turns `fetched` into `content`: a directory for an archive, else the file itself."""
    fetched, content = part / "fetched", part / "content"
    name = urllib.parse.urlsplit(artifact.source).path.lower()
    try:
        if name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")):
            content.mkdir()
            _untar(fetched, content)
            fetched.unlink()
        elif name.endswith(".zip"):
            content.mkdir()
            _unzip(fetched, content)
            fetched.unlink()
        else:
            fetched.rename(content)
            content.chmod(0o555)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        why = str(error).partition("\n")[0].rstrip(":")
        raise StartFailed(Reason.ARTIFACT_MISMATCH, f"artifact {artifact.name}: cannot unpack ({why})") from error


def _untar(fetched: Path, content: Path) -> None:
    """Extracts an archive. Refuses special files and paths or links that leave it; drops owners and setuid bits."""
    with tarfile.open(fetched) as archive:
        members = archive.getmembers()
        for member in members:
            inside = os.path.normpath(member.name)
            target = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
            linked = member.linkname if member.islnk() else target if member.issym() else ""
            if (
                not (member.isreg() or member.isdir() or linked)
                or _points_outside(inside)
                or (linked and _points_outside(linked))
            ):
                raise tarfile.TarError(f"{member.name} is a special file or points outside the archive")
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            member.mode &= 0o755
        archive.extractall(content, members)


def _points_outside(path: str) -> bool:
    return os.path.isabs(path) or path == ".." or path.startswith("../")


def _unzip(fetched: Path, content: Path) -> None:
    with zipfile.ZipFile(fetched) as archive:
        for item in archive.infolist():
            archive.extract(item, content)
            mode = item.external_attr >> 16
            if mode & 0o111 and not item.is_dir():
                (content / item.filename).chmod(0o755)


def _last_use_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
