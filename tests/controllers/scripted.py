"""A small in-memory cell for tests of clients: real compare-and-swap, tokens and history, with injected faults.

It checks only revisions, uids and tokens; the gate's admission is not part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec
from tests.expected import present

from holdfast.client import readback
from holdfast.client.contract import CommitReceipt, FencingToken, Listing, WatchEvent
from holdfast.model.election_term import Term
from holdfast.model.errors import AlreadyExists, Ambiguous, Conflict, Expired, Fault, NotFound, StaleToken, Unavailable
from holdfast.model.indexes import indexes_of
from holdfast.model.meta import Key, Object, ObjectMeta
from holdfast.model.placement_api import (
    PlacementOutcome,
    PlacementResponse,
    PlacementResult,
    ReleaseItem,
    ReleaseRequest,
)
from holdfast.model.writes import Create, Delete, Notice, SetStatus, Update, Write

Place = tuple[type[Any], Key]
Faults = list[Fault]


class ScriptedCell:
    """The state of the cell. Each user has its own `ScriptedClient`."""

    def __init__(self) -> None:
        self.revision = 0
        self.compacted = 0
        self.objects: dict[Place, Any] = {}
        self.log: list[tuple[type[Any], WatchEvent[Any]]] = []
        self.commits: list[tuple[Write, ...]] = []
        self.lists = 0
        self.refuse_above = False
        """Whether watches from a future revision are refused, as the server does."""
        self.notices: list[Notice] = []
        self.released: list[ReleaseItem] = []
        self.release_result = PlacementOutcome.ACCEPTED
        self._moved = asyncio.Event()

    def put(self, item: Any) -> Any:
        self.revision += 1
        place = (type(item), item.key)
        known = self.objects.get(place)
        uid = item.uid or (known.uid if known is not None else f"uid-{self.revision}")
        meta = msgspec.structs.replace(item.metadata, resource_version=str(self.revision), uid=uid)
        stored = msgspec.structs.replace(item, metadata=meta)
        self._publish(type(item), WatchEvent(stored, self.objects.get(place), False, self.revision))
        self.objects[place] = stored
        return stored

    def remove(self, kind: type[Any], key: Key) -> None:
        self.revision += 1
        last = self.objects.pop((kind, key))
        self._publish(kind, WatchEvent(last, last, True, self.revision))

    def compact(self) -> None:
        """Drops the history; watches that need it expire."""
        self.compacted = self.revision
        self.log.clear()
        self._wake()

    def all(self, kind: type[Any]) -> list[Any]:
        return [item for (found, _), item in sorted(self.objects.items(), key=lambda p: p[0][1]) if found is kind]

    def _publish(self, kind: type[Any], seen: WatchEvent[Any]) -> None:
        self.log.append((kind, seen))
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def moved(self) -> Coroutine[Any, Any, bool]:
        """Waits for the next change after this call, even if it happens before the await."""
        return self._moved.wait()

    # Commits

    def apply(self, writes: Sequence[Write], token: FencingToken | None) -> CommitReceipt:
        if token is not None:
            term = self.objects.get((Term, Key("", token.election)))
            if term is None or term.revision != token.revision:
                raise StaleToken(f"token {token.revision} of {token.election} is not the current one")
        for write in writes:
            self._check(write)
        done = tuple(self._do(write) for write in writes)
        self.commits.append(tuple(writes))
        return CommitReceipt(self.revision, done)

    def _check(self, write: Write) -> None:
        kind, key = readback.write_target(write)
        current = self.objects.get((kind.type, key))
        if isinstance(write, Create):
            if current is not None:
                raise AlreadyExists(f"{kind.name} {key} exists")
            return
        if current is None:
            raise NotFound(f"{kind.name} {key} is not there")
        if isinstance(write, Update):
            if current.revision != write.object.revision:
                raise Conflict(f"{kind.name} {key} is at {current.revision}, not {write.object.revision}")
            return
        if current.uid != write.uid or (write.if_revision and write.if_revision != current.revision):
            raise Conflict(f"{kind.name} {key} is another")

    def _do(self, write: Write) -> Any:
        kind, key = readback.write_target(write)
        current = self.objects.get((kind.type, key))
        match write:
            case Create() | Update():
                return self.put(write.object)
            case SetStatus():
                current = present(current)
                status = msgspec.structs.replace(current.status, **write.blocks)
                if write.conditions:
                    status = msgspec.structs.replace(status, conditions=write.conditions)
                return self.put(msgspec.structs.replace(current, status=status))
            case Delete():
                self.remove(kind.type, key)
                return None


class ScriptedClient:
    """One user's client of the cell. The test queues faults; each is raised once."""

    def __init__(self, cell: ScriptedCell, ports: Any) -> None:
        self._cell = cell
        self._ports = ports
        self.before_commit: list[Fault] = []
        """Raised instead of committing."""
        self.after_commit: list[Fault] = []
        """Raised after the commit took effect."""
        self.on_get: list[Fault] = []
        self.on_list: list[Fault] = []
        self.edit_batch: Callable[[list[WatchEvent[Any]]], list[WatchEvent[Any]]] = list
        """Edits each watch batch: drops, repeats or reorders events."""
        self.broken = asyncio.Event()
        """Set to break every watch, once."""
        self.stalled = False
        self.down = False
        self.watches = 0
        self.gets = 0

    @property
    def cell(self) -> str:
        return "scripted"

    async def get(self, kind: type[Any], name: str, namespace: str = "") -> Any:
        self.gets += 1
        await asyncio.sleep(0)
        self._fail(self.on_get)
        return self._cell.objects.get((kind, Key(namespace, name)))

    async def list(
        self, kind: type[Any], namespace: str = "", *, fields: Mapping[str, str] | None = None
    ) -> Listing[Any]:
        self._fail(self.on_list)
        self._cell.lists += 1
        items = tuple(item for item in self._cell.all(kind) if _matches(item, fields))
        listing = Listing(items, self._cell.revision)
        await asyncio.sleep(0.001)
        return listing

    async def watch(
        self, kind: type[Any], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[WatchEvent[Any]]]:
        self.watches += 1
        broken = self.broken
        while True:
            if self.down or broken.is_set():
                self.broken = asyncio.Event()
                raise Unavailable("the watch was dropped")
            if after < self._cell.compacted or (self._cell.refuse_above and after > self._cell.revision):
                raise Expired(f"{after} is compacted")
            due = [seen for found, seen in self._cell.log if found is kind and seen.revision > after]
            if due and not self.stalled:
                after = due[-1].revision
                batch = self.edit_batch([seen for seen in due if _matches(seen.object, fields)])
                if batch:
                    yield batch
                continue
            moved = asyncio.ensure_future(self._cell.moved())
            broke = asyncio.ensure_future(broken.wait())
            try:
                await asyncio.wait({moved, broke}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
                broke.cancel()

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        return await readback.commit(self, writes, token=token, ports=self._ports)

    async def commit_once(self, writes: Sequence[Write], *, token: FencingToken | None = None) -> CommitReceipt:
        await asyncio.sleep(0.001)
        self._fail(self.before_commit)
        done = self._cell.apply(writes, token)
        await asyncio.sleep(0.001)
        self._fail(self.after_commit)
        return done

    async def release(self, request: ReleaseRequest, *, token: FencingToken | None = None) -> PlacementResponse:
        self._fail([])
        self._cell.released += request.items
        return PlacementResponse(
            results=tuple(PlacementResult(result=self._cell.release_result) for _ in request.items)
        )

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        self._cell.notices += notices

    async def reserve(self, request: Any) -> PlacementResponse:
        raise NotImplementedError

    bind = renew = reserve

    async def close(self) -> None:
        pass

    def _fail(self, faults: Faults) -> None:
        if self.down:
            raise Unavailable("the cell is down")
        if faults:
            raise faults.pop(0)


def no_answer() -> Ambiguous:
    return Ambiguous("no answer")


def _matches(item: Object | None, fields: Mapping[str, str] | None) -> bool:
    if item is None or not fields:
        return True
    indexes = indexes_of(type(item))
    return all(value in indexes[name](item) for name, value in fields.items())


def meta(name: str, namespace: str = "t") -> ObjectMeta:
    return ObjectMeta(name=name, namespace=namespace)
