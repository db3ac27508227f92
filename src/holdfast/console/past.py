"""The past of a cell, as far as its store keeps it: the objects as they were at a moment, for the same readers.

A moment is a time; each cell finds the revision itself, because revisions of two cells cannot be compared. The renewals
of the election lease are the marks: each has a time and a revision. The state shown is that of the last mark at or
before the moment, so it is never newer than asked for. States are built one at a time and page by page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from holdfast.console.answers import AnswerRow
from holdfast.foundation.ports import Clock, Ports
from holdfast.model import codec
from holdfast.model.core import Lease
from holdfast.model.errors import Expired, Overloaded
from holdfast.model.indexes import indexes_of
from holdfast.model.kinds import ALL, Kind, kind_of
from holdfast.model.meta import Object
from holdfast.model.times import micro_text, parse_time
from holdfast.store.contract import Store, StoredEntry
from holdfast.store.objects import ObjectPage, Objects

# Objects read at once. Other work of the cell runs between two pages.
PAGE_OBJECTS = 500
# Objects of one past state. A larger cell has no time travel: the copy would need too much memory.
PAST_OBJECTS_MAX = 500_000
# Past states kept. The one that was used least recently is dropped.
STATES_KEPT = 2
# Age up to which a lease counts as renewed, against the one that was renewed last.
RENEWED_WITHIN_S = 60.0
# Past states that wait to be built. Further questions are refused.
STATES_WAITING_MAX = 8

_LEASE = kind_of(Lease)
R = TypeVar("R")


class Moment(msgspec.Struct, frozen=True):
    """A revision, and the time at which it was the newest."""

    revision: int
    at_s: float


class HistoryRange(AnswerRow, frozen=True, kw_only=True):
    """How far back a cell can be shown. 0: not at all."""

    oldest_s: float = 0.0


class PastObjects:
    """The reading part of `Objects`, at one revision. Events are not kept by a store, so there are none."""

    def __init__(self, live: Objects, revision: int, items: Mapping[str, list[Object]]) -> None:
        self._live = live
        self._revision = revision
        self._items = items
        self._by_key = {kind: {(i.metadata.namespace, i.metadata.name): i for i in of} for kind, of in items.items()}

    def head(self, kind: Kind) -> int:
        return self._revision

    def changed_at(self, kind: Kind) -> int:
        return self._revision

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._by_key.get(kind.name, {}).get((namespace, name))

    def list(
        self, kind: Kind, namespace: str = "", *, fields: Mapping[str, str] | None = None
    ) -> tuple[list[Object], int]:
        found = [i for i in self._items.get(kind.name, ()) if not namespace or i.metadata.namespace == namespace]
        for name, value in (fields or {}).items():
            index = indexes_of(kind.type)[name]
            found = [i for i in found if value in index(i)]
        return found, self._revision

    def store_of(self, kind: Kind) -> Store:
        return self._live.store_of(kind)

    async def page(self, kind: Kind, namespace: str = "", *, at: int | None, after: str, limit: int) -> ObjectPage:
        return await self._live.page(kind, namespace, at=at or self._revision, after=after, limit=limit)


class PastClock:
    """Stands at a moment. Durations are measured as ever."""

    def __init__(self, clock: Clock, now_s: float) -> None:
        self._clock = clock
        self._now_s = now_s

    def now(self) -> float:
        return self._now_s

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class PastPorts:
    def __init__(self, ports: Ports, now_s: float) -> None:
        self.clock: Clock = PastClock(ports.clock, now_s)
        self.ids = ports.ids
        self.random = ports.random


class CellHistory(Generic[R]):
    """Readers of past states of one cell. `make` makes a reader of objects at a moment."""

    def __init__(self, objects: Objects, ports: Ports, make: Callable[[PastObjects, Ports], R]) -> None:
        self._objects = objects
        self._ports = ports
        self._make = make
        self._building = asyncio.Lock()
        self._waiting = 0
        self._readers: dict[Moment, R] = {}
        self._oldest: tuple[tuple[int, str], Moment | None] = ((-1, ""), None)

    async def reader(self, at_s: float) -> tuple[R, Moment]:
        """The reader of the newest known state that is not newer than this time. Raises Expired if it is not kept."""
        if self._waiting >= STATES_WAITING_MAX:
            raise Overloaded("time travel: too many moments are being read; next: retry in a few seconds")
        self._waiting += 1
        try:
            async with self._building:
                moment = await self._moment(at_s)
                found = self._readers.pop(moment, None)
                if found is None:
                    past = await self._objects_at(moment.revision)
                    found = self._make(past, PastPorts(self._ports, moment.at_s))
                self._readers[moment] = found
                while len(self._readers) > STATES_KEPT:
                    self._readers.pop(next(iter(self._readers)))
                return found, moment
        finally:
            self._waiting -= 1

    async def range(self) -> HistoryRange:
        async with self._building:
            oldest = await self._oldest_moment()
        return HistoryRange(oldest_s=oldest.at_s if oldest is not None else 0.0)

    async def _moment(self, at_s: float) -> Moment:
        key, oldest = self._lease_key(), await self._oldest_moment()
        if oldest is None or at_s < oldest.at_s:
            since = f"history begins at {micro_text(oldest.at_s)}" if oldest is not None else "there is none yet"
            raise Expired(f"{micro_text(at_s)}: not kept ({since}); next: choose a later moment")
        low, high = oldest.revision, self._head
        while low < high:  # the last revision at which the newest mark is not after the moment
            middle = (low + high + 1) // 2
            mark = await self._mark(key, middle)
            if mark is not None and mark.at_s <= at_s:
                low = middle
            else:
                high = middle - 1
        found = await self._mark(key, low)
        assert found is not None
        return found

    async def _oldest_moment(self) -> Moment | None:
        """The first mark after the compacted revision."""
        compacted, key = self._store.compacted, self._lease_key()
        if self._oldest[0] == (compacted, key) and self._oldest[1] is not None:
            return self._oldest[1]
        low, high = compacted + 1, self._head
        while low < high:
            middle = (low + high) // 2
            mark = await self._mark(key, middle)
            if mark is not None and mark.revision > compacted:
                high = middle
            else:
                low = middle + 1
        found = await self._mark(key, low) if low <= self._head else None
        self._oldest = ((compacted, key), found if found is not None and found.revision > compacted else None)
        return self._oldest[1]

    @property
    def _store(self) -> Store:
        return self._objects.store_of(_LEASE)

    @property
    def _head(self) -> int:
        return self._objects.head(_LEASE)

    def _lease_key(self) -> str:
        """The lease whose renewals are the marks: of those that are renewed now, the one that exists longest."""
        leases = self._objects.list(_LEASE)[0]
        newest_s = max(map(_renewed_s, leases), default=0.0)
        renewed = [lease for lease in leases if _renewed_s(lease) > newest_s - RENEWED_WITHIN_S]
        first = min(renewed, key=lambda lease: (lease.metadata.creation_timestamp, lease.metadata.name), default=None)
        return _LEASE.store_key(first.metadata.namespace, first.metadata.name) if first is not None else ""

    async def _mark(self, key: str, revision: int) -> Moment | None:
        """The newest renewal of the lease at this revision."""
        entry: StoredEntry | None = await self._store.get(key, at=revision) if key else None
        at_s = _renewed_s(codec.decode(_LEASE, entry.value, entry.revision)) if entry is not None else 0.0
        return Moment(entry.revision, at_s) if entry is not None and at_s else None

    async def _objects_at(self, revision: int) -> PastObjects:
        items: dict[str, list[Object]] = {}
        total = 0
        for kind in ALL:
            found: list[Object] = []
            more, after = not kind.ephemeral, ""
            while more:
                page = await self._objects.page(kind, at=revision, after=after, limit=PAGE_OBJECTS)
                found += page.items
                total += len(page.items)
                if total > PAST_OBJECTS_MAX:
                    raise Overloaded(f"time travel: the state is too large (limit {PAST_OBJECTS_MAX} objects)")
                more = page.more
                if page.items:
                    last = page.items[-1].metadata
                    after = kind.store_key(last.namespace, last.name)
                await asyncio.sleep(0)
            items[kind.name] = found
        return PastObjects(self._objects, revision, items)


def _renewed_s(lease: Object) -> float:
    assert isinstance(lease, Lease)
    return parse_time(lease.spec.renew_time) if lease.spec.renew_time else 0.0
