"""Informer: keeps a cache of a cell up to date by list, watch and periodic resync.

- The cache never goes back to an older state of an object, whatever the watch repeats or reorders.
- A lost event costs time only: a resync compares the full list and emits the missed changes.
- Kinds whose age is evidence (leases, region reports) are listed after WATCH_SILENCE_MAX_S without an event, so that a
  stalled watch is not mistaken for a dead node.
- Handlers run after the cache is updated, and see the changes of an object in order. A recreated object is emitted as a
  removal and an addition.
- A list older than the cache comes from a lagging member and is ignored. Only if watches are refused as well, the cell
  was restored from a backup, and the cache is reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import structlog

from holdfast.client.contract import Client, Listing, WatchEvent
from holdfast.controllers.cache import Cache, CacheChange
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff, jittered_s
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import limits
from holdfast.model.errors import Expired, Fault
from holdfast.model.indexes import indexes_of
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key, Object

# Maximum watch silence for kinds whose age is evidence (leases, region reports). After that the informer lists the
# kind, so that a stalled watch is not mistaken for a dead node or region.
WATCH_SILENCE_MAX_S = {"LeasePage": limits.NODE_LEASE_TTL_S / 3, "Region": 5.0}
# Consecutive lists at an older revision before the informer concludes that the cell was restored. It then starts over.
OLDER_LISTS_BEFORE_RESTORED = 8

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object

Handler = Callable[[Sequence[CacheChange[Any]]], None]
"""Called with changes after they are in the cache. Must not block; its exceptions are logged and dropped."""

__all__ = ["Cache", "CacheChange", "Handler", "Informer", "Informers"]


class Informer(Generic[O]):
    """Follows one kind of one cell."""

    def __init__(
        self,
        client: Client,
        kind: type[O],
        cache: Cache,
        ports: Ports,
        fields: Mapping[str, str] | None = None,
        *,
        resync_s: float = limits.RESYNC_S,
    ) -> None:
        self.kind = kind
        self.fields = dict(fields or {})
        self.cache = cache
        self.revision = 0
        """The watch resumes here. It only rises; all changes up to it are in the cache."""
        self.synced = asyncio.Event()
        """Set when the first list is in the cache; never cleared."""
        self._client = client
        self._ports = ports
        self._resync_s = resync_s
        self._handlers: list[Handler] = []
        self._listed_revision = 0
        """Revision of the newest list. Events up to it are ignored: they could bring back deleted objects."""
        self._stale_lists = 0
        """Consecutive lists, each after a refused watch, that were older than the cache."""
        self._must_list = True
        """Whether a list is needed before the watch can continue."""
        self._watching: asyncio.Task[None] | None = None
        self._resyncing: asyncio.Task[None] | None = None
        self._name = kind_of(kind).name
        self._silence_max_s = min(resync_s, WATCH_SILENCE_MAX_S.get(self._name, resync_s))
        self._last_event_s = self._listed_s = ports.clock.monotonic()
        """Times of the last watch event and of the last list."""
        self._log = structlog.get_logger().bind(kind=self._name, cell=client.cell)
        self._objects = metrics.INFORMER_OBJECTS.labels(client.cell, self._name)
        self._missed_events = metrics.INFORMER_MISSED_EVENTS.labels(client.cell, self._name)

    def on_change(self, handler: Handler) -> None:
        """Adds a handler. It is called at once with all cached objects."""
        self._handlers.append(handler)
        cached = [CacheChange(item, None) for item in self.cache.list(self.kind)]
        self._emit(cached, (handler,))

    def start(self) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name=f"informer {self._name}")
            self._resyncing = asyncio.create_task(self._resync(), name=f"resync {self._name}")

    async def stop(self) -> None:
        watching, resyncing = self._watching, self._resyncing
        self._watching = self._resyncing = None
        await cancel_and_wait(resyncing, watching)

    async def refresh(self) -> None:
        """Lists now. Afterwards the cache holds every write acknowledged before the call. Raises Faults."""
        await self._list("refresh")

    def apply_commit(self, items: Iterable[O], removed: Iterable[Key] = (), *, revision: int = 0) -> None:
        """Applies the result of this process's own commit, ahead of the watch. `removed` were deleted at `revision`."""
        changes: list[CacheChange[O]] = []
        for item in items:
            if not self.fields or self._matches(item):
                change = self.cache.put(item)
            else:
                change = self.cache.remove(self.kind, item.key, item.revision, item)
            if change is not None:
                changes.append(change)
        for key in removed:
            removed_change = self.cache.remove(self.kind, key, revision)
            if removed_change is not None:
                changes.append(removed_change)
        self._emit(changes)

    # List and watch

    async def _watch(self) -> None:
        backoff = Backoff(self._ports.random, max_s=limits.RECONNECT_MAX_S)
        while True:
            started, pause_s = self._ports.clock.monotonic(), 0.0
            try:
                if self._must_list:
                    await self._list("first" if not self.synced.is_set() else "expired")
                    self._must_list = False
                async for batch in self._client.watch(self.kind, after=self.revision, fields=self.fields or None):
                    self._apply_batch(batch)
                    backoff.reset()
                reason = "closed"
            except Expired:
                self._must_list, reason = True, "Expired"
            except Fault as fault:
                reason = fault.reason
                pause_s = fault.retry_after_s
                self._log.info("watch_interrupted", reason=reason, message=fault.message, revision=self.revision)
            except Exception:
                # A full list gets past any event that the stream failed on.
                self._must_list, reason = True, "Failed"
                self._log.exception("watch_failed", revision=self.revision)
            metrics.INFORMER_WATCH_ENDS.labels(self._client.cell, self._name, reason).inc()
            if self._ports.clock.monotonic() - started > limits.RECONNECT_MAX_S:
                backoff.reset()
            await self._ports.clock.sleep(max(pause_s, backoff.next_s()))

    async def _resync(self) -> None:
        await self.synced.wait()
        while True:
            await self._ports.clock.sleep(jittered_s(self._silence_max_s, self._ports.random))
            now_s = self._ports.clock.monotonic()
            if (
                now_s - self._last_event_s < self._silence_max_s < self._resync_s
                and now_s - self._listed_s < self._resync_s
            ):
                continue
            try:
                missed = await self._list("resync")
            except Fault as fault:
                self._log.info("resync_failed", reason=fault.reason, message=fault.message)
                continue
            except Exception:
                self._log.exception("resync_failed", reason="Failed")
                continue
            if missed and self._watching is not None:
                # The watch is stalled or drops events: replace it.
                watching, self._watching = self._watching, None
                await cancel_and_wait(watching)
                self._watching = asyncio.create_task(self._watch(), name=f"informer {self._name}")

    async def _list(self, cause: str) -> int:
        """Lists and emits the differences to the cache. Returns the number of changes that no watch event reported."""
        metrics.INFORMER_LISTS.labels(self._client.cell, self._name, cause).inc()
        self._listed_s = self._ports.clock.monotonic()
        listing: Listing[O] = await self._client.list(self.kind, fields=self.fields or None)
        if listing.revision < self._listed_revision:
            self._stale_lists += cause == "expired"
            self._log.info(
                "stale_list_ignored", listed=listing.revision, cached=self._listed_revision, times=self._stale_lists
            )
            if self._stale_lists < OLDER_LISTS_BEFORE_RESTORED:
                return 0
            self._log.warning("cell_restore_detected", listed=listing.revision, cached=self._listed_revision)
            changes = self.cache.reset_kind(self.kind, listing.items)
            self.revision = listing.revision
        else:
            changes = self.cache.replace_all(self.kind, listing.items, listing.revision)
            self.revision = max(self.revision, listing.revision)
        self._stale_lists = 0
        self._listed_revision = listing.revision
        if cause == "resync" and changes:
            self._missed_events.inc(len(changes))
        self.synced.set()
        self._emit(changes)
        return len(changes)

    def _apply_batch(self, batch: Sequence[WatchEvent[O]]) -> None:
        changes: list[CacheChange[O]] = []
        self._last_event_s = self._ports.clock.monotonic()
        floor, newest = self._listed_revision, self.revision
        for event in batch:
            revision = event.revision
            if event.object is not None and revision > floor:
                if event.deleted:
                    change = self.cache.remove(self.kind, event.object.key, revision, event.object)
                else:
                    change = self.cache.put(event.object)
                if change is not None:
                    changes.append(change)
            newest = max(newest, revision)
        self.revision = newest
        self._emit(changes)

    # Handing out

    def _emit(self, changes: Sequence[CacheChange[O]], handlers: Sequence[Handler] | None = None) -> None:
        if not changes:
            return
        self._objects.set(self.cache.count(self.kind))
        emitted = _split_recreated(changes)
        for handler in self._handlers if handlers is None else handlers:
            try:
                handler(emitted)
            except Exception:
                # A failing handler must not keep changes from the others.
                self._log.exception("handler_failed", changes=len(changes))

    def _matches(self, item: O) -> bool:
        indexes = indexes_of(self.kind)
        for name, value in self.fields.items():
            if name == "metadata.name":
                if item.metadata.name != value:
                    return False
            elif value not in indexes[name](item):
                return False
        return True


def _split_recreated(changes: Sequence[CacheChange[O]]) -> Sequence[CacheChange[O]]:
    """Splits the replacement of an object by a new one of the same name into a removal and an addition."""
    if all(new is None or old is None or new.metadata.uid == old.metadata.uid for new, old in changes):
        return changes
    emitted: list[CacheChange[O]] = []
    for change in changes:
        new, old = change
        if new is not None and old is not None and new.uid != old.uid:
            emitted += (CacheChange(None, old), CacheChange(new, None))
        else:
            emitted.append(change)
    return emitted


class Informers:
    """The informers of one process for one cell: one per kind, with one shared cache."""

    def __init__(self, client: Client, ports: Ports, *, resync_s: float = limits.RESYNC_S) -> None:
        self.cache = Cache()
        self.resync_s = resync_s
        """Resync interval of the informers, and of controllers built on them."""
        self._client = client
        self._ports = ports
        self._informers: dict[type[Any], Informer[Any]] = {}
        self._started = False

    def of(self, kind: type[O], fields: Mapping[str, str] | None = None) -> Informer[O]:
        """The informer of a kind, created on first use. All users of a kind share one set of `fields`."""
        found = self._informers.get(kind)
        if found is None:
            found = Informer(self._client, kind, self.cache, self._ports, fields, resync_s=self.resync_s)
            self._informers[kind] = found
            if self._started:
                found.start()
        elif fields is not None and found.fields != dict(fields):
            raise ValueError(
                f"{kind.__name__}: the informer has other fields (expected {found.fields}, found {dict(fields)}); "
                "use a separate Informers instance"
            )
        return found

    def find(self, kind: type[O]) -> Informer[O] | None:
        """The informer of a kind; None if there is none."""
        return self._informers.get(kind)

    def all(self) -> Sequence[Informer[Any]]:
        return tuple(self._informers.values())

    async def start(self) -> None:
        """Starts all informers, and later ones on creation. Returns at once; see `synced`."""
        self._started = True
        for informer in self._informers.values():
            informer.start()

    async def stop(self) -> None:
        self._started = False
        for informer in self._informers.values():
            await informer.stop()

    async def synced(self) -> None:
        """Waits until every informer has listed once."""
        for informer in list(self._informers.values()):
            await informer.synced.wait()

    async def refresh(self, kinds: Sequence[type[Any]] | None = None) -> None:
        """Lists these kinds, or all, now. Raises the first Fault."""
        for kind in list(self._informers) if kinds is None else kinds:
            informer = self._informers.get(kind)
            if informer is not None:
                await informer.refresh()
