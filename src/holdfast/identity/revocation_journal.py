"""Revocation journal: a durable file of joins and revocations of node certificates, kept beside the store.

A store can be restored to an older state, but a revoked certificate must stay revoked. Every server of a region
therefore appends each join, revocation and removal it observes, and `holdfast restore` reads the file back.

- Per node the file holds the highest generation and the highest revoked generation that this server observed.
- Only the last line can be torn by a crash; its content is written again at the next start.
- It contains no tokens and no keys, and takes no part in request decisions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from holdfast.foundation.ports import Ports
from holdfast.model import codec, limits
from holdfast.model.errors import Expired, StoreFailed
from holdfast.model.join import NodeIdentity
from holdfast.model.kinds import BY_NAME
from holdfast.store.objects import Objects

# Superseded lines of the revocation journal, beyond two per node, before the file is rewritten.
NODE_JOURNAL_EXTRA_LINES_MAX = 1000
# Pause before a failed write of the revocation journal is repeated.
NODE_JOURNAL_RETRY_S = 5.0

JOURNAL_FILE = "nodes.journal"
_IDENTITY = BY_NAME["NodeIdentity"]

_log = structlog.get_logger()

IdentitiesByNode = dict[str, NodeIdentity]
"""Node → its identity. A removed identity stays, with all its generations revoked."""


class JournalLine(msgspec.Struct, frozen=True):
    """`value` is the identity as stored."""

    node: str
    value: bytes


def stricter_identity(one: NodeIdentity, other: NodeIdentity) -> NodeIdentity:
    """An identity that rejects everything either one rejects: the later join and the later revocation."""
    newer = one if one.spec.generation >= other.spec.generation else other
    return _revoked(newer, max(one.spec.revoked_generation, other.spec.revoked_generation))


def merge_identities(sources: Iterable[Mapping[str, NodeIdentity]]) -> IdentitiesByNode:
    """Merges several sources, each possibly incomplete."""
    known: IdentitiesByNode = {}
    for source in sources:
        for node, identity in source.items():
            known[node] = stricter_identity(known[node], identity) if node in known else identity
    return known


def fully_revoked(identity: NodeIdentity) -> NodeIdentity:
    """The identity with all its generations revoked, for one that was removed or is not trusted."""
    return _revoked(identity, identity.spec.generation)


def _revoked(identity: NodeIdentity, generation: int) -> NodeIdentity:
    if identity.spec.revoked_generation == generation:
        return identity
    spec = msgspec.structs.replace(identity.spec, revoked_generation=generation)
    return msgspec.structs.replace(identity, spec=spec)


class RevocationJournal:
    """The file. One writer at a time; readers need no running writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: IdentitiesByNode = {}
        self._lines, self._complete = 0, False

    def read(self) -> IdentitiesByNode | None:
        """The journal's content; None if the file does not exist. Raises StoreFailed if it is not a valid journal."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreFailed(f"revocation journal {self.path}: cannot read it ({error.strerror})") from error
        found: list[IdentitiesByNode] = []
        for number, raw in enumerate(lines[:-1], 1):  # the part after the last newline is empty or torn
            try:
                line = msgspec.json.decode(raw, type=JournalLine)
                found.append({line.node: codec.decode(_IDENTITY, line.value, 0)})
            except (msgspec.MsgspecError, ValueError) as error:
                next_step = "restore a copy of the file; it records which nodes were revoked"
                message = f"revocation journal {self.path}: line {number} is damaged ({error}); next: {next_step}"
                raise StoreFailed(message) from error
        return merge_identities(found)

    def rewrite(self, stored: Mapping[str, NodeIdentity]) -> list[str]:
        """Merges the store's identities, rewrites the file, and returns the nodes of which the store knows less
        than the journal.
        """
        before = self.read() or {}
        forgotten = [
            node for node, held in stored.items() if node in before and stricter_identity(held, before[node]) != held
        ]
        removed = {node: fully_revoked(held) for node, held in before.items() if node not in stored}
        known = merge_identities((before, removed, stored))
        self._write_all(known)
        self._known = known
        return sorted(forgotten)

    def record(self, changes: Iterable[tuple[NodeIdentity | None, NodeIdentity | None]]) -> None:
        """Records changes, each as (new, old). Durable on return."""
        news: IdentitiesByNode = {}
        for new, old in changes:
            identity = new if new is not None else fully_revoked(old) if old is not None else None
            if identity is not None:
                before = news.get(identity.metadata.name) or self._known.get(identity.metadata.name)
                news[identity.metadata.name] = stricter_identity(before, identity) if before is not None else identity
        changed = {
            n: i for n, i in news.items() if n not in self._known or _generations(self._known[n]) != _generations(i)
        }
        if not changed:
            return
        known = {**self._known, **changed}
        if not self._complete or self._lines + len(changed) > 2 * len(known) + NODE_JOURNAL_EXTRA_LINES_MAX:
            self._write_all(known)
        else:
            self._complete = False  # until the append is complete
            with self.path.open("ab") as file:
                file.writelines(_line(node, identity) for node, identity in changed.items())
                file.flush()
                os.fsync(file.fileno())
            self._complete = True
            self._lines += len(changed)
        self._known = known

    def _write_all(self, known: IdentitiesByNode) -> None:
        new = self.path.with_name(f".{self.path.name}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(_line(node, known[node]) for node in sorted(known))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._lines, self._complete = len(known), True


def _line(node: str, identity: NodeIdentity) -> bytes:
    return msgspec.json.encode(JournalLine(node=node, value=codec.encode(identity))) + b"\n"


def _generations(identity: NodeIdentity) -> tuple[int, int]:
    """The generations that a restore must not lose. A certificate renewal changes neither."""
    return identity.spec.generation, identity.spec.revoked_generation


class RevocationJournalWriter:
    """The component of a cell's process that writes the journal: everything at start, then every change."""

    def __init__(self, path: Path, objects: Objects, ports: Ports) -> None:
        self._journal = RevocationJournal(path)
        self._objects = objects
        self._ports = ports
        self._revision = 0

    async def start(self) -> None:
        items, revision = self._objects.list(_IDENTITY)
        stored = {item.metadata.name: item for item in items if isinstance(item, NodeIdentity)}
        forgotten = await asyncio.to_thread(self._journal.rewrite, stored)
        if forgotten:
            shown = forgotten[: limits.REASON_EXAMPLES_MAX]
            _log.warning("store_missing_node_revocations", nodes=shown, number=len(forgotten))
        self._revision = revision

    async def stop(self) -> None:
        return None

    async def run(self) -> None:
        while True:
            try:
                async for changes in self._objects.stream(_IDENTITY, after=self._revision):
                    pairs = [(_identity(change.new), _identity(change.old)) for change in changes]
                    await asyncio.to_thread(self._journal.record, pairs)
                    self._revision = changes[-1].revision
            except Expired:
                await self.start()
            except OSError as error:
                # The disk may be full for a while; the same changes are retried until they are written.
                _log.error("revocation_journal_write_failed", path=str(self._journal.path), error=str(error))
                await self._ports.clock.sleep(NODE_JOURNAL_RETRY_S)


def _identity(item: object) -> NodeIdentity | None:
    return item if isinstance(item, NodeIdentity) else None
