"""What a region must not forget about its nodes' certificates, kept in a file beside the store.

A store can be put back to an older state; what was refused since then must stay refused. So every server of a region
writes down each join, revocation and removal of an identity as it sees it, and `holdfast restore` reads it back.

What always holds: for each node the file knows the highest generation and the highest revoked one that this server was
told of; a line torn by a crash is the last one, and what it said is written again at the next start. Never holds a
secret, neither tokens nor keys. Never decides about a request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from holdfast.model import codec, limits
from holdfast.model.errors import Expired, StoreFailed
from holdfast.model.join import NodeIdentity
from holdfast.model.kinds import BY_NAME
from holdfast.runtime.ports import Ports
from holdfast.store.objects import Objects

FILE = "nodes.journal"
_IDENTITY = BY_NAME["NodeIdentity"]

_log = structlog.get_logger()

Known = dict[str, NodeIdentity]
"""Node → its identity. One that was removed stays, with all of its generations revoked."""


class Line(msgspec.Struct, frozen=True):
    """`value` is the identity as a store has it."""

    node: str
    value: bytes


def stronger(one: NodeIdentity, other: NodeIdentity) -> NodeIdentity:
    """What refuses all that either refuses: the later join, and the later revocation."""
    newer = one if one.spec.generation >= other.spec.generation else other
    return _revoked(newer, max(one.spec.revoked_generation, other.spec.revoked_generation))


def merged(sources: Iterable[Mapping[str, NodeIdentity]]) -> Known:
    """One memory out of several, none of which has to be whole."""
    known: Known = {}
    for source in sources:
        for node, identity in source.items():
            known[node] = stronger(known[node], identity) if node in known else identity
    return known


def ended(identity: NodeIdentity) -> NodeIdentity:
    """The same with nothing that it would accept: what is left of one that was removed or is not trusted."""
    return _revoked(identity, identity.spec.generation)


def _revoked(identity: NodeIdentity, generation: int) -> NodeIdentity:
    if identity.spec.revoked_generation == generation:
        return identity
    spec = msgspec.structs.replace(identity.spec, revoked_generation=generation)
    return msgspec.structs.replace(identity, spec=spec)


class NodeJournal:
    """The file. One writer at a time; whoever reads it needs none to be alive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: Known = {}
        self._lines, self._whole = 0, False

    def read(self) -> Known | None:
        """What it says; None where there is no such file. Raises StoreFailed for what is no journal."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreFailed(f"{self.path} cannot be read ({error}): it says which nodes were revoked") from error
        found: list[Known] = []
        for number, raw in enumerate(lines[:-1], 1):  # what follows the last end of a line is torn, or nothing
            try:
                line = msgspec.json.decode(raw, type=Line)
                found.append({line.node: codec.decode(_IDENTITY, line.value, 0)})
            except (msgspec.MsgspecError, ValueError) as error:
                why = "it says which nodes were revoked: bring back a copy of it"
                raise StoreFailed(f"{self.path} is damaged in line {number} ({error}); {why}") from error
        return merged(found)

    def begin(self, stored: Mapping[str, NodeIdentity]) -> list[str]:
        """Takes up what the store says, writes it all anew, and answers the nodes of which the store knows less."""
        before = self.read() or {}
        forgotten = [node for node, held in stored.items() if node in before and stronger(held, before[node]) != held]
        removed = {node: ended(held) for node, held in before.items() if node not in stored}
        known = merged((before, removed, stored))
        self._write_all(known)
        self._known = known
        return sorted(forgotten)

    def note(self, changes: Iterable[tuple[NodeIdentity | None, NodeIdentity | None]]) -> None:
        """Takes up changes, each as what is now and what was before; on disk when it returns."""
        news: Known = {}
        for new, old in changes:
            identity = new if new is not None else ended(old) if old is not None else None
            if identity is not None:
                before = news.get(identity.metadata.name) or self._known.get(identity.metadata.name)
                news[identity.metadata.name] = stronger(before, identity) if before is not None else identity
        told = {n: i for n, i in news.items() if n not in self._known or _facts(self._known[n]) != _facts(i)}
        if not told:
            return
        known = {**self._known, **told}
        if not self._whole or self._lines + len(told) > 2 * len(known) + limits.NODE_JOURNAL_SPARE_LINES:
            self._write_all(known)
        else:
            self._whole = False  # until it is known that no line was torn
            with self.path.open("ab") as file:
                file.writelines(_line(node, identity) for node, identity in told.items())
                file.flush()
                os.fsync(file.fileno())
            self._whole = True
            self._lines += len(told)
        self._known = known

    def _write_all(self, known: Known) -> None:
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
        self._lines, self._whole = len(known), True


def _line(node: str, identity: NodeIdentity) -> bytes:
    return msgspec.json.encode(Line(node=node, value=codec.encode(identity))) + b"\n"


def _facts(identity: NodeIdentity) -> tuple[int, int]:
    """What a restore must not lose; renewals change neither."""
    return identity.spec.generation, identity.spec.revoked_generation


class JournalKeeper:
    """The part of a cell's process that keeps the journal: all of it at the start, then whatever changes."""

    def __init__(self, path: Path, objects: Objects, ports: Ports) -> None:
        self._journal = NodeJournal(path)
        self._objects = objects
        self._ports = ports
        self._revision = 0

    async def start(self) -> None:
        items, revision = self._objects.list(_IDENTITY)
        stored = {item.metadata.name: item for item in items if isinstance(item, NodeIdentity)}
        forgotten = await asyncio.to_thread(self._journal.begin, stored)
        if forgotten:
            shown = forgotten[: limits.REASON_NODES_SHOWN]
            _log.warning("store_forgot_node_revocations", nodes=shown, number=len(forgotten))
        self._revision = revision

    async def stop(self) -> None:
        return None

    async def run(self) -> None:
        while True:
            try:
                async for changes in self._objects.stream(_IDENTITY, after=self._revision):
                    pairs = [(_identity(change.new), _identity(change.old)) for change in changes]
                    await asyncio.to_thread(self._journal.note, pairs)
                    self._revision = changes[-1].revision
            except Expired:
                await self.start()
            except OSError as error:
                # A full disk passes; until then the same changes are written down again and again.
                _log.error("node_journal_not_written", path=str(self._journal.path), error=str(error))
                await self._ports.clock.sleep(limits.NODE_JOURNAL_RETRY_S)


def _identity(item: object) -> NodeIdentity | None:
    return item if isinstance(item, NodeIdentity) else None
