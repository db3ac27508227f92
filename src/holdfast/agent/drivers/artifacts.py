"""Artifact cache: files and archives that tasks need, fetched once per tenant and node, and stored by digest.

Archives (tar, zip) are unpacked. A task finds each artifact under its name in its working directory, as hard links to
read-only files of the cache: it needs no access to the cache, and keeps its files if the cache evicts them.

- An entry under a digest always has that digest. A partial download is never visible as an entry.
- Entries belong to a tenant. No tenant can use, replace or evict an entry of a tenant that stores less than itself.
- An artifact that a task uses is not evicted.
- Slow sources of one tenant delay no other tenant and no start without artifacts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from holdfast.agent.drivers.archives import ArchiveRefused, is_archive, unpack
from holdfast.agent.drivers.artifact_sources import ArtifactSources, SourceRefused, open_source
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.removal import remove_at, remove_tree
from holdfast.foundation.daemon_threads import run_in_thread
from holdfast.model.artifact import Artifact, artifact_error, source_file_name
from holdfast.model.reasons import Reason

# Size of all cached artifacts of a node. The least recently used of the tenant that stores most are deleted.
ARTIFACT_CACHE_BYTES_MAX = 16 * 1024**3
# Part of the disk that artifacts leave free. Below it, a fetch fails.
ARTIFACT_DISK_FREE_FRACTION = 0.05
# Artifacts fetched at a time on a node, each in a thread. Further fetches wait.
ARTIFACT_FETCHES_MAX = 16
# Artifacts fetched at a time for one tenant. Further ones wait, so that slow sources delay only their own tenant.
ARTIFACT_FETCHES_PER_TENANT_MAX = 2
# Cached artifacts that a node reports, newest first. The scheduler does not know of the rest.
ARTIFACTS_REPORTED_MAX = 64

_DIGEST_PREFIX = "sha256:"
_ENTRY = re.compile(r"(file|tree)-[0-9a-f]{64}")
_TENANT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_BLOCK_BYTES = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ArtifactCache:
    """`fetch` puts the artifacts of a task into the cache; `install` links them into its working directory.

    Fetches run in threads of their own. `_lock` guards the entries, and is never held during a transfer.
    """

    def __init__(self, root: Path, sources: ArtifactSources) -> None:
        self._root = root
        self._sources = sources
        self._lock = Lock()
        self._in_use: dict[str, tuple[tuple[str, Path], ...]] = {}
        self._fetches = asyncio.Semaphore(ARTIFACT_FETCHES_MAX)
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(ARTIFACT_FETCHES_PER_TENANT_MAX)
        )
        self._fetching: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)
        for tenant in root.iterdir():
            for path in tenant.iterdir() if tenant.is_dir() and not tenant.is_symlink() else (tenant,):
                if not _ENTRY.fullmatch(path.name):
                    remove_tree(path)

    def cached_digests(self) -> tuple[str, ...]:
        """Cached digests, most recently used first, at most ARTIFACTS_REPORTED_MAX. A hint for the scheduler."""
        newest = sorted(self._entries(), key=lambda path: (-_last_use_s(path), path.name))
        digests = dict.fromkeys(_DIGEST_PREFIX + path.name.partition("-")[2] for path in newest)
        return tuple(digests)[:ARTIFACTS_REPORTED_MAX]

    async def fetch(self, tenant: str, task_id: str, artifacts: Sequence[Artifact]) -> None:
        """Puts the artifacts into the cache and keeps them there until `release`. Raises StartFailed, or OSError."""
        if not _TENANT.fullmatch(tenant):
            raise StartFailed(Reason.ARTIFACT_MISSING, f"tenant {tenant}: not a name")
        for artifact in artifacts:
            if wrong := artifact_error(artifact):
                raise StartFailed(Reason.ARTIFACT_MISSING, f"artifact {artifact.name[:128]}: {wrong}")
        self._in_use.setdefault(task_id, ())
        try:
            for artifact in artifacts:
                key = (tenant, artifact.source, artifact.digest)
                once = self._fetching.setdefault(key, asyncio.Lock())
                async with once:
                    await run_in_thread(
                        partial(self._obtain, tenant, task_id, artifact), (self._turns[tenant], self._fetches)
                    )
        except BaseException:
            self.release(task_id)
            raise

    def install(self, task_id: str, work: Path) -> None:
        """Links the task's fetched artifacts into its working directory. Leaves none of them there if it fails."""
        work.mkdir(parents=True, exist_ok=True)
        folder = os.open(work, _DIRECTORY)
        try:
            for name, path in self._in_use.get(task_id, ()):
                remove_at(name, folder)
                try:
                    _link(path, name, folder)
                except OSError:
                    remove_at(name, folder)
                    raise
        finally:
            os.close(folder)

    def release(self, task_id: str) -> None:
        self._in_use.pop(task_id, None)

    # --- one artifact, in a thread ---------------------------------------------------------------------------------

    def _obtain(self, tenant: str, task_id: str, artifact: Artifact) -> None:
        """Finds or fetches the artifact's entry, and keeps it for the task."""
        form = "tree" if is_archive(source_file_name(artifact.source)) else "file"
        with self._lock:
            if artifact.digest and self._keep(task_id, artifact, self._path(tenant, form, artifact.digest)):
                return
        part = self._root / tenant / f"part-{secrets.token_hex(8)}"
        part.mkdir(parents=True, mode=0o700)
        try:
            digest = self._download(artifact, part / "fetched")
            if artifact.digest and digest != artifact.digest:
                raise StartFailed(
                    Reason.ARTIFACT_MISMATCH,
                    f"artifact {artifact.name} from {artifact.source}: wrong digest (expected {artifact.digest}, "
                    f"found {digest})",
                )
            _unpack(artifact, part)
            with self._lock:
                path = self._path(tenant, form, digest)
                if not self._keep(task_id, artifact, path):
                    self._make_room(tenant, artifact, _size(part))
                    part.rename(path)
                    self._keep(task_id, artifact, path)
        finally:
            remove_tree(part)

    def _path(self, tenant: str, form: str, digest: str) -> Path:
        """The form is part of the key: the same bytes may be a file for one template and an archive for another."""
        return self._root / tenant / f"{form}-{digest.removeprefix(_DIGEST_PREFIX)}"

    def _keep(self, task_id: str, artifact: Artifact, path: Path) -> bool:
        """Marks the entry as used by the task, unless the task was released. Returns False if there is no entry."""
        if not (path / "content").exists():
            return False
        if (kept := self._in_use.get(task_id)) is not None:
            others = tuple(name_and_path for name_and_path in kept if name_and_path[0] != artifact.name)
            self._in_use[task_id] = (*others, (artifact.name, path / "content"))
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def _download(self, artifact: Artifact, target: Path) -> str:
        sums = hashlib.sha256()
        try:
            with open_source(self._sources, artifact.source) as chunks, target.open("wb") as out:
                for data in chunks:
                    _check_disk(target.parent, artifact)
                    sums.update(data)
                    out.write(data)
                out.flush()
                os.fsync(out.fileno())
        except SourceRefused as refusal:
            raise _fetch_failed(artifact, str(refusal)) from refusal
        return f"{_DIGEST_PREFIX}{sums.hexdigest()}"

    # --- entries ---------------------------------------------------------------------------------------------------

    def _entries(self, tenant: str = "*") -> list[Path]:
        return [path for path in self._root.glob(f"{tenant}/*-*") if _ENTRY.fullmatch(path.name)]

    def _make_room(self, tenant: str, artifact: Artifact, needed: int) -> None:
        """Evicts least recently used artifacts until `needed` bytes fit. Artifacts in use are never evicted.

        Room is taken from the tenant that stores most, so that a tenant that stores less loses nothing to one that
        stores more. If that does not suffice, the artifact is refused.
        """
        in_use = {path.parent for kept in tuple(self._in_use.values()) for _, path in kept}
        sizes = {path: _size(path) for path in self._entries()}
        stored: dict[str, int] = defaultdict(int)
        for path, size in sizes.items():
            stored[path.parent.name] += size
        stored[tenant] += needed
        evictable = sorted((path for path in sizes if path not in in_use), key=lambda path: (_last_use_s(path), path))
        while sum(stored.values()) > ARTIFACT_CACHE_BYTES_MAX:
            others = [path for path in evictable if stored[path.parent.name] >= stored[tenant]]
            if not others:
                raise _fetch_failed(artifact, "the node's artifact cache is full of artifacts that cannot be evicted")
            most = max(stored[path.parent.name] for path in others)
            victim = next(path for path in others if stored[path.parent.name] == most)
            evictable.remove(victim)
            stored[victim.parent.name] -= sizes[victim]
            remove_tree(victim)


def _fetch_failed(artifact: Artifact, why: str) -> StartFailed:
    return StartFailed(Reason.ARTIFACT_MISSING, f"artifact {artifact.name}: cannot fetch {artifact.source} ({why})")


def _check_disk(path: Path, artifact: Artifact) -> None:
    disk = os.statvfs(path)
    if disk.f_bavail < disk.f_blocks * ARTIFACT_DISK_FREE_FRACTION:
        raise _fetch_failed(artifact, f"the node's disk has less than {ARTIFACT_DISK_FREE_FRACTION:.0%} free")


def _unpack(artifact: Artifact, part: Path) -> None:
    """Turns `fetched` into `content`: a directory for an archive, else the file itself."""
    fetched, content = part / "fetched", part / "content"
    name = source_file_name(artifact.source)
    if not is_archive(name):
        fetched.rename(content)
        content.chmod(0o555)
        return
    content.mkdir()
    folder = os.open(content, _DIRECTORY)
    try:
        os.fchmod(folder, 0o755)
        with fetched.open("rb") as packed:
            unpack(name, packed, folder, partial(_check_disk, content, artifact))
    except ArchiveRefused as refusal:
        why = f"artifact {artifact.name}: cannot unpack ({refusal})"
        raise StartFailed(Reason.ARTIFACT_MISMATCH, why) from refusal
    finally:
        os.close(folder)
    fetched.unlink()


def _link(source: Path, name: str, folder: int) -> None:
    """Links a file, or a tree of files, into the directory with the descriptor `folder`."""
    parent = os.open(source.parent, _DIRECTORY)
    try:
        _link_at(source.name, parent, name, folder)
    finally:
        os.close(parent)


def _link_at(source: str, source_folder: int, name: str, folder: int) -> None:
    mode = os.stat(source, dir_fd=source_folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source, dir_fd=source_folder), name, dir_fd=folder)
        return
    if not stat.S_ISDIR(mode):
        _link_file(source, source_folder, name, folder)
        return
    os.mkdir(name, 0o755, dir_fd=folder)
    inner_source, inner = os.open(source, _DIRECTORY, dir_fd=source_folder), os.open(name, _DIRECTORY, dir_fd=folder)
    try:
        os.fchmod(inner, 0o755)
        for child in os.listdir(inner_source):
            _link_at(child, inner_source, child, inner)
    finally:
        os.close(inner_source)
        os.close(inner)


def _link_file(source: str, source_folder: int, name: str, folder: int) -> None:
    try:
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
            raise
        # On another file system, or after too many links, the task gets a copy.
        taken = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source_folder)
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with os.fdopen(taken, "rb") as original, os.fdopen(made, "wb") as copy:
            shutil.copyfileobj(original, copy)
            os.fchmod(made, stat.S_IMODE(os.fstat(taken).st_mode))


def _last_use_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    """Disk space in whole blocks: many small files take more than their sizes."""
    total = 0
    for folder, folders, names in os.walk(path):
        total += _BLOCK_BYTES * len(folders)
        for name in names:
            with contextlib.suppress(OSError):
                size = os.lstat(os.path.join(folder, name)).st_size
                total += max(1, -(-size // _BLOCK_BYTES)) * _BLOCK_BYTES
    return total
