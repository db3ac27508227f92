"""Image cache of a node: images pulled once, unpacked, and shared read-only by all tasks that run them.

- An entry under a digest is complete and has that digest. It is built aside, synced and renamed; whatever an
  interrupted pull left is removed when the agent starts.
- One pull per image at a time. Other tasks that need the image wait for it.
- An image that a task uses is never removed. Others are removed by last use, from the high to the low water mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

import msgspec

from holdfast.agent.drivers.archives import ArchiveRefused
from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.image_layers import LayersTooLarge, RootTree
from holdfast.agent.drivers.image_user import find_user
from holdfast.agent.drivers.removal import remove_tree
from holdfast.agent.shim_guard import libc
from holdfast.foundation.backoff import delay_s
from holdfast.foundation.daemon_threads import run_in_thread
from holdfast.model.image import BadReference, ImageReference, PullPolicy, parse_reference
from holdfast.model.node import NodeImage
from holdfast.model.reasons import Reason
from holdfast.model.registry_login import RegistryLogin
from holdfast.model.template import pull_policy
from holdfast.registry.allowed_registries import AUTH_FILE, AllowedRegistries, credentials_for
from holdfast.registry.manifests import (
    BadManifest,
    Descriptor,
    ImageConfig,
    ImageExceedsLimits,
    Manifest,
    decode_config,
    decode_document,
    node_architecture,
)
from holdfast.registry.registry_client import RegistryClient, RegistryRefused

# Size of all images of a node, unpacked: the high water mark. Above it, images that no task uses are removed.
IMAGE_CACHE_BYTES_MAX = 32 * 1024**3
# Part of the high water mark down to which images are removed: the low water mark.
IMAGE_CACHE_LOW_FRACTION = 0.8
# Part of the disk that images leave free. Below it, a pull fails.
IMAGE_DISK_FREE_FRACTION = 0.05
# Images pulled at a time on a node. Further pulls wait.
IMAGE_PULLS_MAX = 8
# Images pulled at a time for one tenant. Further ones wait, so that slow registries delay only their own tenant.
IMAGE_PULLS_PER_TENANT_MAX = 2
# Time to pull one layer. After that, the pull has failed.
IMAGE_LAYER_S = 1800.0
# First and longest pause after a failed pull of an image. Doubles with every failure.
IMAGE_BACKOFF_FIRST_S = 5.0
IMAGE_BACKOFF_MAX_S = 300.0
# Images that a node reports, most recently used first. The scheduler does not know of the rest.
IMAGES_REPORTED_MAX = 50
# Images whose failed pulls are remembered. The oldest is forgotten.
IMAGE_FAILURES_MAX = 256

# Tenants to whom the registry confirmed an image that was pulled with a tenant's credentials. Beyond it the first is
# forgotten, and the registry is asked again.
IMAGE_READERS_MAX = 64

LoginSource = Callable[[Task], Awaitable[RegistryLogin]]
"""The tenant's credentials for the registry of a task's image. Raises StartFailed."""

_ENTRY = re.compile(r"sha256-[0-9a-f]{64}")
_NAMES_MAX = 8
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CachedImage(msgspec.Struct, frozen=True):
    """`image.json` of an entry."""

    names: tuple[str, ...]
    size_bytes: int
    config: ImageConfig
    readers: tuple[str, ...] = ()
    """Tenants with the repository under which the registry gave them the image, for their own credentials. Empty: the
    image is for all tenants of the node."""


class _Failure(msgspec.Struct):
    failures: int
    until_mono_s: float
    message: str


class ImageCache:
    """`fetch` makes the image of a task present; `root_of` says where. `release` ends the use by a task.

    `logins` gets the tenant's credentials for a pull, which are held for this pull only. An image that was pulled with
    a tenant's credentials is given to another tenant only after the registry has confirmed it to that tenant.

    Pulls run in threads. `_lock` guards the entries, and is never held during a transfer.
    """

    def __init__(
        self,
        root: Path,
        allowed: AllowedRegistries,
        *,
        high_bytes: int = IMAGE_CACHE_BYTES_MAX,
        logins: LoginSource | None = None,
    ) -> None:
        self._root = root
        self._logins = logins
        self._allowed = allowed
        self._high_bytes = high_bytes
        self._lock = Lock()
        self._in_use: dict[str, str] = {}
        self._listed: tuple[NodeImage, ...] | None = None
        """What `images` returned, until an entry changes: the node report asks often."""
        self._progress: dict[str, str] = {}
        self._failures: dict[str, _Failure] = {}
        self._pulls = asyncio.Semaphore(IMAGE_PULLS_MAX)
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(IMAGE_PULLS_PER_TENANT_MAX))
        self._pulling: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)
        for path in root.iterdir():
            if not _ENTRY.fullmatch(path.name) or self._read(_digest(path)) is None:
                remove_tree(path)

    # --- use -------------------------------------------------------------------------------------------------------

    async def fetch(self, task: Task) -> None:
        """Makes the task's image present and keeps it until `release`. Raises StartFailed."""
        reference, digest = _pinned(task)
        self.keep(task.id, digest)
        try:
            once = self._pulling.setdefault(digest, asyncio.Lock())
            async with once:
                await self._present(task, reference, digest)
        except BaseException:
            self.release(task.id)
            raise

    async def _present(self, task: Task, reference: ImageReference, digest: str) -> None:
        policy, cached = pull_policy(task.template), self._read(digest)
        readable = cached is not None and (not cached.readers or _reader(task, reference) in cached.readers)
        if readable and policy is not PullPolicy.ALWAYS:
            self._use(reference, digest)
            return
        if policy is PullPolicy.NEVER:
            why = "not on this node" if cached is None else "on this node only for a tenant with credentials for it"
            raise StartFailed(Reason.IMAGE_NEVER_PULLED, f"image {reference}: {why}, and imagePullPolicy is Never")
        login = await self._login(task, readable=readable)
        attempt = f"{_reader(task, reference)} {digest} {hash(login)}"
        self._check_backoff(reference, attempt)
        try:
            confirm = partial(self._confirm, readable=readable) if cached is not None else self._pull
            call = partial(confirm, reference, digest, task, login)
            await run_in_thread(call, (self._turns[task.namespace], self._pulls))
        except StartFailed as failure:
            self._record_failure(attempt, failure.message)
            raise
        except OSError as error:
            message = f"image {reference}: cannot store it ({error.strerror or error})"
            self._record_failure(attempt, message)
            raise StartFailed(Reason.IMAGE_PULL_FAILED, message) from error
        finally:
            self._progress.pop(digest, None)
        self._failures.pop(attempt, None)

    async def _login(self, task: Task, *, readable: bool) -> RegistryLogin | None:
        """The tenant's credentials. If the region does not answer, an image that the tenant may use needs none."""
        if self._logins is None or not task.template.image_pull_secrets:
            return None
        try:
            found = await self._logins(task)
        except StartFailed as failure:
            if failure.reason == Reason.CONFIG_UNREACHABLE and readable:
                return None
            raise
        if found.reason:
            raise StartFailed(found.reason, found.message)
        return found

    def keep(self, task_id: str, digest: str) -> None:
        """The task uses the image, which stays until `release`."""
        with self._lock:
            self._in_use[task_id] = digest

    def adopt(self, task: Task) -> None:
        """An earlier agent process started the task."""
        with contextlib.suppress(StartFailed):
            self.keep(task.id, _pinned(task)[1])

    def release(self, task_id: str) -> None:
        with self._lock:
            self._in_use.pop(task_id, None)

    def root_of(self, task: Task) -> tuple[Path, ImageConfig]:
        """The root file system of the task's image, which nothing may change, and its configuration."""
        reference, digest = _pinned(task)
        found = self._read(digest)
        if found is None:
            raise StartFailed(
                Reason.IMAGE_PULL_FAILED, f"image {reference}: no longer on this node; it is pulled again"
            )
        return self._path(digest) / "rootfs", found.config

    def progress(self, task: Task) -> str:
        """How far the pull of the task's image is, for people; empty if it is not being pulled."""
        with contextlib.suppress(StartFailed):
            return self._progress.get(_pinned(task)[1], "")
        return ""

    def images(self) -> tuple[NodeImage, ...]:
        """Images of the node, most recently used first, at most IMAGES_REPORTED_MAX."""
        if self._listed is not None:
            return self._listed
        newest = sorted(self._entries(), key=lambda path: (-_last_use_s(path), path.name))[:IMAGES_REPORTED_MAX]
        found = ((path, self._read(_digest(path))) for path in newest)
        self._listed = tuple(NodeImage(names=image.names, size_bytes=image.size_bytes) for _, image in found if image)
        return self._listed

    # --- back-off --------------------------------------------------------------------------------------------------

    def _check_backoff(self, reference: ImageReference, attempt: str) -> None:
        """`attempt` is tenant, image and credentials: wrong credentials delay neither other tenants nor new ones."""
        failed = self._failures.get(attempt)
        left_s = failed.until_mono_s - time.monotonic() if failed is not None else 0.0
        if failed is not None and left_s > 0:
            message = f"image {reference}: {failed.failures} pulls failed; next in {left_s:.0f} s ({failed.message})"
            raise StartFailed(Reason.IMAGE_PULL_BACK_OFF, message[:1000])

    def _record_failure(self, attempt: str, message: str) -> None:
        failures = self._failures[attempt].failures + 1 if attempt in self._failures else 1
        pause_s = delay_s(failures, random.Random(), first_s=IMAGE_BACKOFF_FIRST_S, max_s=IMAGE_BACKOFF_MAX_S)
        self._failures.pop(attempt, None)
        self._failures[attempt] = _Failure(failures, time.monotonic() + pause_s, message[:500])
        while len(self._failures) > IMAGE_FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    # --- one pull, in a thread -------------------------------------------------------------------------------------

    def _client(self, reference: ImageReference, login: RegistryLogin | None) -> RegistryClient:
        return RegistryClient(self._allowed, reference, partial(credentials_for, self._allowed.auth_file, login))

    def _confirm(
        self, reference: ImageReference, digest: str, task: Task, login: RegistryLogin | None, *, readable: bool
    ) -> None:
        """A cached image with pull policy Always, or pulled for another tenant: asks whether the registry gives it.

        The digest is the same, so there is nothing new to pull. If the registry cannot be reached, an image that the
        tenant may use is used: a recovery must not depend on the registry. If the registry refuses, the start fails.
        """
        client = self._client(reference, login)
        try:
            client.manifest(digest)
        except RegistryRefused as refusal:
            if refusal.answered or not readable:
                raise StartFailed(refusal.reason, refusal.message) from refusal
            self._use(reference, digest)
            return
        self._use(reference, digest, _readers(client, task, reference))

    def _pull(self, reference: ImageReference, digest: str, task: Task, login: RegistryLogin | None) -> None:
        client = self._client(reference, login)
        part = self._root / f"part-{secrets.token_hex(8)}"
        part.mkdir(mode=0o700)
        try:
            size, config = self._unpack(client, reference, digest, part)
            names = tuple(dict.fromkeys((_digest_name(reference, digest), *_tag_names(reference))))
            made = CachedImage(names, size, config, _readers(client, task, reference))
            (part / "image.json").write_bytes(msgspec.json.encode(made))
            _sync(part)
            with self._lock:
                if self._read(digest) is None:  # else a withdrawn pull went on and ended first
                    self._make_room(reference, size)
                    remove_tree(self._path(digest))
                    part.rename(self._path(digest))
                self._listed = None
        except RegistryRefused as refusal:
            raise StartFailed(refusal.reason, refusal.message) from refusal
        except (LayersTooLarge, ImageExceedsLimits) as refusal:
            raise StartFailed(Reason.IMAGE_TOO_LARGE, f"image {reference}: too large ({refusal})") from refusal
        except (BadManifest, ArchiveRefused) as refusal:
            raise StartFailed(Reason.IMAGE_UNUSABLE, f"image {reference}: not usable ({refusal})") from refusal
        finally:
            remove_tree(part)

    def _unpack(
        self, client: RegistryClient, reference: ImageReference, digest: str, part: Path
    ) -> tuple[int, ImageConfig]:
        """Fetches and verifies every part of the image, and builds its root file system."""
        self._progress[digest] = "reading the manifest"
        found = decode_document(client.manifest(digest), node_architecture())
        if isinstance(found, Descriptor):
            found = decode_document(client.manifest(found.digest), node_architecture())
        if not isinstance(found, Manifest):
            raise BadManifest("an index that refers to an index")
        config = decode_config(client.small_blob(found.config.digest))
        rootfs = part / "rootfs"
        rootfs.mkdir(mode=0o755)
        root = os.open(rootfs, _DIRECTORY)
        try:
            tree = RootTree(root, found.compressed_bytes, partial(self._check_disk, reference))
            received = 0
            for number, layer in enumerate(found.layers, 1):
                note = partial(self._note, digest, number, found, received)
                self._download(client, reference, layer, part / "layer", note=note)
                received += layer.size
                with (part / "layer").open("rb") as packed:
                    tree.apply(packed)
                (part / "layer").unlink()
            tree.add_mount_points()
            uid, gid = find_user(root, config.user)
            tree.finish(uid, gid)
        finally:
            os.close(root)
        return tree.bytes, msgspec.structs.replace(config, uid=uid, gid=gid)

    def _note(self, digest: str, number: int, manifest: Manifest, before: int, received: int) -> None:
        done, whole = (before + received) / 1e6, manifest.compressed_bytes / 1e6
        self._progress[digest] = f"{done:.1f} of {whole:.1f} MB, layer {number} of {len(manifest.layers)}"

    def _download(
        self,
        client: RegistryClient,
        reference: ImageReference,
        layer: Descriptor,
        to: Path,
        *,
        note: Callable[[int], None],
    ) -> None:
        sums, received = hashlib.sha256(), 0
        with client.blob(layer.digest, layer.size, IMAGE_LAYER_S) as chunks, to.open("wb") as out:
            for data in chunks:
                self._check_disk(reference)
                sums.update(data)
                out.write(data)
                received += len(data)
                note(received)
        if (found := f"sha256:{sums.hexdigest()}") != layer.digest:
            message = f"image {reference}: a layer has the wrong digest (expected {layer.digest}, found {found})"
            raise StartFailed(Reason.IMAGE_UNUSABLE, message)

    def _check_disk(self, reference: ImageReference) -> None:
        disk = os.statvfs(self._root)
        if disk.f_bavail < disk.f_blocks * IMAGE_DISK_FREE_FRACTION:
            why = f"the node's disk has less than {IMAGE_DISK_FREE_FRACTION:.0%} free"
            raise StartFailed(Reason.IMAGE_PULL_FAILED, f"image {reference}: cannot store it ({why})")

    # --- entries ---------------------------------------------------------------------------------------------------

    def _path(self, digest: str) -> Path:
        return self._root / digest.replace(":", "-")

    def _entries(self) -> list[Path]:
        return [path for path in self._root.iterdir() if _ENTRY.fullmatch(path.name)]

    def _read(self, digest: str) -> CachedImage | None:
        try:
            return msgspec.json.decode((self._path(digest) / "image.json").read_bytes(), type=CachedImage)
        except (OSError, msgspec.DecodeError):
            return None

    def _use(self, reference: ImageReference, digest: str, confirmed: tuple[str, ...] | None = None) -> None:
        """Records the use, the name under which the image is known now, and to whom the registry confirmed it."""
        with self._lock:
            self._record_use(reference, digest, confirmed)

    def _record_use(self, reference: ImageReference, digest: str, confirmed: tuple[str, ...] | None) -> None:
        path, found = self._path(digest), self._read(digest)
        names = tuple(dict.fromkeys((*(found.names if found else ()), *_tag_names(reference))))[:_NAMES_MAX]
        readers = found.readers if found is not None else ()
        if confirmed is not None and readers:
            readers = tuple(dict.fromkeys((*readers, *confirmed)))[-IMAGE_READERS_MAX:] if confirmed else ()
        with contextlib.suppress(OSError):
            if found is not None and (names, readers) != (found.names, found.readers):
                part = self._root / f"part-{secrets.token_hex(8)}"
                part.write_bytes(msgspec.json.encode(msgspec.structs.replace(found, names=names, readers=readers)))
                part.rename(path / "image.json")
            os.utime(path)
        self._listed = None

    def _make_room(self, reference: ImageReference, needed: int) -> None:
        """Removes images that no task uses, least recently used first, until the new one fits below the mark."""
        sizes = {path: image.size_bytes for path in self._entries() if (image := self._read(_digest(path)))}
        stored, kept = sum(sizes.values()) + needed, set(self._in_use.values())
        if stored <= self._high_bytes:
            return
        for path in sorted(sizes, key=lambda path: (_last_use_s(path), path.name)):
            if stored <= self._high_bytes * IMAGE_CACHE_LOW_FRACTION:
                return
            if _digest(path) not in kept:
                remove_tree(path)
                stored -= sizes[path]
        if stored > self._high_bytes:
            why = f"{stored} bytes with the images that tasks use, of {self._high_bytes}"
            raise StartFailed(Reason.IMAGE_PULL_FAILED, f"image {reference}: the node's image cache is full ({why})")


def _pinned(task: Task) -> tuple[ImageReference, str]:
    """The reference and the digest to run. A tag without a digest is not run: replicas could differ."""
    try:
        reference = parse_reference(task.template.image)
    except BadReference as wrong:
        raise StartFailed(Reason.TEMPLATE_UNUSABLE, f"image {task.template.image[:80]!r}: {wrong}") from wrong
    digest = task.template.image_digest or reference.digest
    if not digest:
        raise StartFailed(Reason.IMAGE_UNRESOLVED, f"image {reference}: its tag was not resolved to a digest")
    return reference, digest


def _reader(task: Task, reference: ImageReference) -> str:
    """Another repository may hold the digest and not give it to the tenant."""
    return f"{task.namespace} {reference.name}"


def _readers(client: RegistryClient, task: Task, reference: ImageReference) -> tuple[str, ...]:
    """Who may use what this client was given. Credentials of the node are those of all its tenants."""
    private = client.used_credentials not in ("", AUTH_FILE)
    return (_reader(task, reference),) if private else ()


def _tag_names(reference: ImageReference) -> tuple[str, ...]:
    return (f"{reference.name}:{reference.tag}",) if reference.tag else ()


def _digest_name(reference: ImageReference, digest: str) -> str:
    return f"{reference.name}@{digest}"


def _digest(path: Path) -> str:
    return path.name.replace("-", ":", 1)


def _sync(path: Path) -> None:
    """Writes the file system to disk. After a power loss, an entry that has its name must be complete."""
    folder = os.open(path, _DIRECTORY)
    try:
        libc.syncfs(folder)
    finally:
        os.close(folder)


def _last_use_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
