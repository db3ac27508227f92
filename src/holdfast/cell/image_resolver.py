"""Resolves the tags of images to digests, once per revision of a workload, in the global cell.

Owns Workload.status.image and the condition ImageResolved. Nothing of a revision is assigned before its digest is
known, so all replicas of the revision run the same content, in every region and at any later time.

- Only registries of the cell's configuration are asked. An image with a digest needs no registry here.
- A failed attempt is repeated with backoff, also while the registry is down. The old revision runs meanwhile.
- Slow registries of one tenant delay no other tenant.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import structlog

from holdfast.client.contract import Client, FencingToken
from holdfast.controllers.cache import Cache
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.daemon_threads import run_in_thread
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model.errors import Fault, Invalid
from holdfast.model.image import parse_reference
from holdfast.model.meta import Condition
from holdfast.model.reasons import Reason
from holdfast.model.registry_login import find_registry_login
from holdfast.model.secret import Secret
from holdfast.model.template import is_unresolved, template_hash
from holdfast.model.times import micro_text
from holdfast.model.workload import Workload, resolved_template
from holdfast.model.workload_blocks import ImageBlock
from holdfast.model.writes import Notice, SetStatus
from holdfast.registry.allowed_registries import AllowedRegistries, credentials_for
from holdfast.registry.registry_client import RegistryClient, RegistryRefused

# Interval at which workloads without a digest are searched for.
IMAGE_RESOLVE_EVERY_S = 0.5
# Tags resolved at a time. Further ones wait.
IMAGE_RESOLVES_MAX = 16
# Tags resolved at a time for one tenant. Further ones wait, so that a slow registry delays only its own tenant.
IMAGE_RESOLVES_PER_TENANT_MAX = 2
# First and longest pause after a failed attempt. Doubles with every failure.
IMAGE_RESOLVE_BACKOFF_FIRST_S = 2.0
IMAGE_RESOLVE_BACKOFF_MAX_S = 120.0

_log = structlog.get_logger()


class _Attempts(msgspec.Struct):
    revision: str
    backoff: Backoff
    next_mono_s: float = 0.0
    secret_versions: tuple[str, ...] = ()
    """A changed pull secret ends the pause."""


def read_allowed(path: Path | None) -> AllowedRegistries:
    """The table `images` of a TOML file. Raises Invalid."""
    if path is None:
        return AllowedRegistries()
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")).get("images", {}), AllowedRegistries)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise Invalid(
            f"{path}: cannot read the table `images` ({getattr(error, 'strerror', None) or error})"
        ) from error
    if wrong := found.error():
        raise Invalid(f"{path}: {wrong}")
    return found


class ImageResolver:
    """`token` is that of the elected process, the only one that resolves."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        allowed: AllowedRegistries,
        ports: Ports,
        *,
        token: FencingToken | None = None,
        open_secret: Callable[[str, str], Secret | None] = lambda _tenant, _name: None,
    ) -> None:
        """`open_secret` returns a Secret by tenant and name, with its data."""
        self._token = token
        self._open_secret = open_secret
        self._client = client
        self._cache = cache
        self._allowed = allowed
        self._ports = ports
        self._attempts: dict[str, _Attempts] = {}
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """uid of a workload → its tenant, and the attempt."""

    async def run(self) -> None:
        try:
            while True:
                self._begin_attempts()
                await self._ports.clock.sleep(IMAGE_RESOLVE_EVERY_S)
        finally:
            await cancel_and_wait(*(attempt for _, attempt in self._running.values()))

    def _begin_attempts(self) -> None:
        now = self._ports.clock.monotonic()
        waiting = [w for w in self._cache.list(Workload) if _needs_digest(w) or _is_outdated(w)]
        known = {w.uid for w in waiting}
        self._attempts = {uid: attempts for uid, attempts in self._attempts.items() if uid in known}
        busy = Counter(tenant for tenant, _ in self._running.values())
        for workload in waiting:
            tenant, revision = workload.metadata.namespace, template_hash(workload.spec.template)
            versions = self._secret_versions(workload)
            attempts = self._attempts.get(workload.uid)
            if attempts is None or (attempts.revision, attempts.secret_versions) != (revision, versions):
                backoff = Backoff(
                    self._ports.random, first_s=IMAGE_RESOLVE_BACKOFF_FIRST_S, max_s=IMAGE_RESOLVE_BACKOFF_MAX_S
                )
                attempts = self._attempts[workload.uid] = _Attempts(revision, backoff, secret_versions=versions)
            full = len(self._running) >= IMAGE_RESOLVES_MAX or busy[tenant] >= IMAGE_RESOLVES_PER_TENANT_MAX
            if full or workload.uid in self._running or now < attempts.next_mono_s:
                continue
            busy[tenant] += 1
            attempt = asyncio.create_task(self._attempt(workload, attempts), name=f"image:{workload.key}")
            self._running[workload.uid] = (tenant, attempt)
            attempt.add_done_callback(partial(self._finished, workload.uid))

    def _finished(self, uid: str, attempt: asyncio.Task[None]) -> None:
        self._running.pop(uid, None)
        if not attempt.cancelled() and (error := attempt.exception()) is not None:
            _log.error("image_attempt_crashed", uid=uid, error=str(error))

    def _secret_versions(self, workload: Workload) -> tuple[str, ...]:
        found = []
        for secret in workload.spec.template.image_pull_secrets:
            item = self._open_secret(workload.metadata.namespace, secret.name)
            found.append(f"{item.uid}.{item.metadata.generation}" if item is not None else "")
        return tuple(found)

    async def _resolve(self, workload: Workload) -> tuple[str, str, str]:
        """Digest, reason and message. The credentials are held for this attempt only."""
        template = workload.spec.template
        reference = parse_reference(template.image)
        find = partial(self._open_secret, workload.metadata.namespace)
        login = find_registry_login(template.image, template.image_pull_secrets, find)
        if login.reason:
            return "", login.reason, login.message
        client = RegistryClient(self._allowed, reference, partial(credentials_for, self._allowed.auth_file, login))
        try:
            return await run_in_thread(client.resolve), Reason.IMAGE_RESOLVED, ""
        except RegistryRefused as refusal:
            return "", refusal.reason, refusal.message

    async def _attempt(self, workload: Workload, attempts: _Attempts) -> None:
        if not _needs_digest(workload):
            await self._record_known(workload)
            return
        reference = parse_reference(workload.spec.template.image)
        digest, reason, message = await self._resolve(workload)
        block = ImageBlock(
            revision=attempts.revision,
            image=str(reference),
            digest=digest,
            reason=reason,
            message=message,
            at=micro_text(self._ports.clock.now()),
        )
        pause_s = attempts.backoff.next_s()
        attempts.next_mono_s = self._ports.clock.monotonic() + pause_s
        await self._record(workload, block, reason)

    async def _record(self, workload: Workload, block: ImageBlock, reason: str) -> None:
        """Writes the result, unless it only repeats the last failure."""
        known = workload.status.image
        same = known is not None and not block.digest
        if (
            same
            and known is not None
            and (known.revision, known.reason, known.message) == (block.revision, block.reason, block.message)
        ):
            return
        said = f"{block.image} is {block.digest}" if block.digest else block.message
        await self._write(workload, block, said, Notice(workload, reason, said, warning=not block.digest))

    async def _record_known(self, workload: Workload) -> None:
        """The template has changed to an image with a digest, to an earlier revision or to no image: the last result
        is about another template."""
        template = resolved_template(workload)
        if template is None or not template.image:
            await self._write(workload, None, "the template has no image")
            return
        reference = parse_reference(template.image)
        block = ImageBlock(
            revision=template_hash(workload.spec.template),
            image=str(reference),
            digest=template.image_digest or reference.digest,
            reason=Reason.IMAGE_RESOLVED,
            at=micro_text(self._ports.clock.now()),
        )
        said = f"{block.image} names its digest" if reference.digest else f"{block.image} is {block.digest}"
        await self._write(workload, block, said)

    async def _write(
        self, workload: Workload, block: ImageBlock | None, said: str, notice: Notice | None = None
    ) -> None:
        condition = Condition(
            type="ImageResolved",
            status="True" if block is None or block.digest else "False",
            reason=block.reason if block is not None else Reason.IMAGE_RESOLVED,
            message=said,
            observed_generation=workload.metadata.generation,
        )
        write = SetStatus("Workload", workload.key, workload.uid, blocks={"image": block}, conditions=(condition,))
        try:
            await self._client.commit((write,), token=self._token, brief=True)
            if notice is not None:
                await self._client.notify((notice,), component="image-resolver")
        except Fault as fault:
            _log.warning("image_record_failed", workload=str(workload.key), error=fault.message)


def _needs_digest(workload: Workload) -> bool:
    if not is_unresolved(workload.spec.template) or workload.metadata.terminating:
        return False
    return resolved_template(workload) is None


def _is_outdated(workload: Workload) -> bool:
    """Whether the recorded result is about another template, and this one needs no registry."""
    block = workload.status.image
    if block is None or block.revision == template_hash(workload.spec.template) or workload.metadata.terminating:
        return False
    return not _needs_digest(workload)
