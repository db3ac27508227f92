"""A cell's objects, decoded once and shared: current state, indexes, and ordered change streams.

Follows one ordered watch of the store. Reads show only published state, never a write that could still be lost. Events
(ephemeral kinds) are in a second, volatile store behind the same interface.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.model.errors import Expired, Unavailable
from holdfast.model.kinds import Kind
from holdfast.model.meta import Object
from holdfast.store.contract import Change, Committed, Store, StoredEntry, Txn
from holdfast.store.follower import Follower
from holdfast.store.kind_cache import KindCache, object_of
from holdfast.store.streams import FilteredChange, ObjectChange, ObjectFilter, Subscription, sorted_fields

__all__ = ["ObjectChange", "ObjectPage", "ObjectReads", "ObjectStream", "Objects"]


class ObjectPage(msgspec.Struct, frozen=True):
    """`remaining` is the number of objects that follow: exact for the newest state, approximate for a past one."""

    items: tuple[Object, ...]
    revision: int
    more: bool
    remaining: int


class ObjectReads(Protocol):
    """Reads of one cell's objects, at present (`Objects`) or at a past revision."""

    def head(self, kind: Kind) -> int: ...

    def changed_at(self, kind: Kind) -> int: ...

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None: ...

    def list(
        self, kind: Kind, namespace: str = "", *, fields: Mapping[str, str] | None = None
    ) -> tuple[list[Object], int]: ...

    def store_of(self, kind: Kind) -> Store: ...

    async def page(self, kind: Kind, namespace: str = "", *, at: int | None, after: str, limit: int) -> ObjectPage: ...


class Objects:
    """Typed access to one cell's store. All synchronous reads see one consistent, published state."""

    def __init__(self, store: Store, volatile: Store) -> None:
        self._durable = Follower(store, ephemeral=False)
        self._volatile = Follower(volatile, ephemeral=True)

    async def start(self) -> None:
        """Loads everything and follows the store from there."""
        await self._durable.start()
        await self._volatile.start()

    async def close(self) -> None:
        """Ends every stream. The stores stay open; their owner closes them."""
        for follower in (self._durable, self._volatile):
            follower.close(Unavailable("the cell is shutting down"))

    def store_of(self, kind: Kind) -> Store:
        """The durable store, or the volatile one for ephemeral kinds."""
        return self._follower(kind).store

    def check(self) -> None:
        """Raises the fault that stopped this cell's objects, if there is one."""
        self._durable.check()

    @property
    def max_writes(self) -> int:
        """Maximum number of writes in one commit to the durable store."""
        return self._durable.store.max_writes

    async def newest_revision(self, kind: Kind) -> int:
        """The newest revision of all processes that share the store. When it returns, reads of this kind show it."""
        follower = self._follower(kind)
        revision = await follower.store.newest_revision()
        await follower.wait_for(revision)
        return revision

    def head(self, kind: Kind) -> int:
        """The revision that reads of this kind show."""
        return (self._volatile if kind.ephemeral else self._durable).revision

    def changed_at(self, kind: Kind) -> int:
        """The revision of the last change of any object of this kind."""
        return self._cache(kind).changed_at

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._cache(kind).objects.get(kind.store_key(namespace, name))

    def entry(self, kind: Kind, namespace: str, name: str) -> StoredEntry | None:
        """The stored bytes of an object, to be spliced (`codec.wire`) instead of encoded."""
        return self._cache(kind).entries.get(kind.store_key(namespace, name))

    def entries(
        self, kind: Kind, namespace: str = "", *, fields: Mapping[str, str] | None = None
    ) -> tuple[list[StoredEntry], int]:
        """The result of `list` as stored bytes."""
        cache = self._cache(kind)
        entries = cache.entries
        return [entries[key] for key in cache.select(_filter(cache, namespace, fields))], self.head(kind)

    def list(
        self, kind: Kind, namespace: str = "", *, fields: Mapping[str, str] | None = None
    ) -> tuple[list[Object], int]:
        """Objects in key order, and their revision. `fields`: indexes of `model.indexes`, or metadata.name."""
        cache = self._cache(kind)
        if not fields:
            return cache.list_namespace(namespace), self.head(kind)
        objects = cache.objects
        return [objects[key] for key in cache.select(_filter(cache, namespace, fields))], self.head(kind)

    def tally(self, kind: Kind, name: str, namespace: str) -> int:
        """A maintained sum: one of `model.indexes.TALLIES` over one namespace."""
        return self._cache(kind).tally(name, namespace)

    async def page(self, kind: Kind, namespace: str = "", *, at: int | None, after: str, limit: int) -> ObjectPage:
        """One page. `at` reads a past revision, so that all pages of one list show one state.

        `after` is the store key of the last object already read; `limit` 0 means all.
        """
        follower, cache = self._follower(kind), self._cache(kind)
        if at is None or cache.changed_at <= at <= follower.revision:
            items, remaining = cache.page(namespace, after, limit)
            return ObjectPage(tuple(items), follower.revision if at is None else at, remaining > 0, remaining)
        prefix = kind.range_prefix(namespace)
        page = await follower.store.range(prefix, at=at, after=after, limit=limit)
        found = tuple(_shared(cache, entry) for entry in page.entries)
        remaining = max(1, cache.keys.count(prefix, page.entries[-1].key)) if page.more else 0
        return ObjectPage(found, page.revision, page.more, remaining)

    def stream(
        self, kind: Kind, namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> ObjectStream:
        """Changes after a revision. Raises Expired if they are compacted or the reader fell too far behind."""
        cache = self._cache(kind)
        return ObjectStream(self._follower(kind), (cache,), _filter(cache, namespace, fields), after)

    def joint_stream(self, kinds: Sequence[Kind], namespace: str = "", *, after: int) -> ObjectStream:
        """The changes of several durable kinds as one stream, in the order of their revisions."""
        caches = tuple(self._cache(kind) for kind in kinds)
        return ObjectStream(self._durable, caches, ObjectFilter(namespace, ()), after)

    async def wait_for(self, kind: Kind, revision: int, *, timeout_s: float) -> bool:
        """Whether this revision was reached in time, for lists that require "at least N"."""
        try:
            # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that coincides with the result.
            async with asyncio.timeout(timeout_s):
                await self._follower(kind).wait_for(revision)
        except TimeoutError:
            return False
        return True

    async def commit(self, kind: Kind | None, txn: Txn) -> Committed:
        """Commits, and returns only when the result can be read here. `kind` selects the store; None means the
        durable one.
        """
        return await (self._durable if kind is None else self._follower(kind)).commit(txn)

    @property
    def oldest_commit_s(self) -> float:
        """Age of the oldest commit that a store has not answered; 0 if there is none."""
        return max(self._durable.oldest_commit_s, self._volatile.oldest_commit_s)

    def _follower(self, kind: Kind) -> Follower:
        return self._volatile if kind.ephemeral else self._durable

    def _cache(self, kind: Kind) -> KindCache:
        follower = self._volatile if kind.ephemeral else self._durable
        follower.check()
        return follower.caches[kind.name]


class ObjectStream:
    """One reader's changes. A cancelled wait loses nothing. Dropping the stream, or `aclose`, ends it."""

    def __init__(self, follower: Follower, caches: tuple[KindCache, ...], wanted: ObjectFilter, after: int) -> None:
        """`wanted` names fields only if there is one cache: a field belongs to one kind."""
        self._follower = follower
        self._caches = caches
        self._wanted = wanted
        self._after = after
        self._live: Subscription | None = None
        self._past: AsyncIterator[Sequence[Change]] | None = None

    def __aiter__(self) -> ObjectStream:
        return self

    async def __anext__(self) -> Sequence[ObjectChange]:
        while True:
            if self._live is not None:
                await self._live.wait()
                found = self._take_unread(self._live)
            elif self._after < max(cache.recent.floor for cache in self._caches):
                found = await self._read_past()
            else:
                if self._after > self._follower.revision:
                    await self._check_reachable()
                found = self._go_live()
            if found:
                return found

    @property
    def caught_up(self) -> bool:
        """Whether everything published so far was read; then the newest revision is a safe position to resume from."""
        return self._live is not None and not self._live.unread and self._live.fault is None

    async def aclose(self) -> None:
        if self._live is not None:
            for cache in self._caches:
                cache.streams.remove(self._live)

    def __del__(self) -> None:
        if self._live is not None:
            for cache in self._caches:
                cache.streams.abandon(self._live)

    def _take_unread(self, live: Subscription) -> Sequence[ObjectChange]:
        found, live.unread = live.unread, []
        if not found and live.fault is not None:
            raise live.fault
        found = self._in_order(found)
        # A stream may start at a revision that this process has not reached yet.
        return found if not found or found[0].revision > self._after else [c for c in found if c.revision > self._after]

    def _go_live(self) -> Sequence[ObjectChange]:
        """Takes the recent changes and joins the live streams, without a gap."""
        self._follower.check()
        self._past = None
        self._live = Subscription(self._wanted)
        for cache in self._caches:
            cache.streams.add(self._live)
        recent = [change for cache in self._caches for change in cache.recent.after(self._after)]
        return self._matching(self._in_order(recent))

    def _in_order(self, changes: list[ObjectChange]) -> list[ObjectChange]:
        """Each kind delivers its own changes in order."""
        return changes if len(self._caches) == 1 else sorted(changes, key=lambda change: change.revision)

    async def _check_reachable(self) -> None:
        """Raises Expired for a revision that no process of the cell has reached: it belongs to an earlier era, and
        the reader would wait for it forever."""
        newest = await self._follower.store.newest_revision()
        if self._after > newest:
            raise Expired(f"revision {self._after}: in the future (newest revision {newest}); next: list again")

    async def _read_past(self) -> Sequence[ObjectChange]:
        # Watches all keys: then there is a change at the floor for certain, and this never waits for a new one.
        if self._past is None:
            self._past = self._follower.store.watch("", after=self._after)
        changes = await anext(self._past)
        self._after = changes[-1].revision
        by_prefix = [(cache.kind.prefix, cache) for cache in self._caches]
        own = [(cache, c) for c in changes for prefix, cache in by_prefix if c.key.startswith(prefix)]
        return self._matching([cache.past_change(change) for cache, change in own])

    def _matching(self, changes: Sequence[ObjectChange]) -> Sequence[ObjectChange]:
        if not self._wanted.fields and not self._wanted.namespace:
            return changes
        values = self._caches[0].values
        seen = (FilteredChange(change, values).of(self._wanted) for change in changes)
        return [change for change in seen if change is not None]


def _filter(cache: KindCache, namespace: str, fields: Mapping[str, str] | None) -> ObjectFilter:
    if fields:
        cache.check_fields(fields)
    return ObjectFilter(namespace, sorted_fields(fields))


def _shared(cache: KindCache, entry: StoredEntry) -> Object:
    """The object of a past entry; the shared in-memory object if that is still the current state."""
    now = cache.entries.get(entry.key)
    if now is not None and now.revision == entry.revision:
        return cache.objects[entry.key]
    return object_of(cache.kind, entry)
