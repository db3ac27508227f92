"""Keeps a cache true to a cell: list, then watch, and list again from time to time.

What always holds:

- The cache never shows an older state of an object than it has shown before, whatever the watch repeats or reorders.
- A lost event costs time, never truth: a resync compares the whole list and hands out what was missed.
- A kind that is read for its age (signs of life) is never older here than `limits.SILENCE_S`, whatever the watch says:
  silence of the watch must not be taken for silence of those it tells of.
- After `Expired` the list is compared with the cache, and deletions nobody reported are handed out: also of what was
  made anew under its name since, which is told as the one that is gone and one that is new, never as a change.
- Handlers see a change only once it is in the cache; each sees every change of an object in order.

A list that is older than what is known comes from a member that lags and is ignored. Only if a watch from here keeps
being refused as well was the cell restored from a backup: then, and then alone, the cache starts over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import structlog

from holdfast.client.contract import Client, Listing, Seen
from holdfast.model import limits
from holdfast.model.errors import Expired, Fault
from holdfast.model.indexes import indexes_of
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key, Object
from holdfast.runtime import metrics
from holdfast.runtime.backoff import Backoff, jittered_s
from holdfast.runtime.cache import Cache, Changed
from holdfast.runtime.ports import Ports
from holdfast.runtime.tasks import end

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object

Handler = Callable[[Sequence[Changed[Any]]], None]
"""Told of changes in lists, after they are in the cache. Must not block; what it raises is logged and dropped."""

__all__ = ["Cache", "Changed", "Handler", "Informer", "Informers"]


class Informer(Generic[O]):
    """One kind of one cell."""

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
        """The watch resumes here. Only rises; everything at or before it is in the cache."""
        self.synced = asyncio.Event()
        """Set for good when the first list is in the cache."""
        self._client = client
        self._ports = ports
        self._resync_s = resync_s
        self._handlers: list[Handler] = []
        self._floor = 0
        """The revision of the newest list. Events at or before it say nothing new, and could bring back the dead."""
        self._older = 0
        """How many lists in a row, each after a refused watch, were older than what we know."""
        self._expired = True
        """Whether the watch can only go on after a list."""
        self._watching: asyncio.Task[None] | None = None
        self._resyncing: asyncio.Task[None] | None = None
        self._name = kind_of(kind).name
        self._silence_s = min(resync_s, limits.SILENCE_S.get(self._name, resync_s))
        self._heard_s = self._listed_s = ports.clock.monotonic()
        """When the watch last said something, and when a list was last asked for."""
        self._log = structlog.get_logger().bind(kind=self._name, cell=client.cell)
        self._objects = metrics.INFORMER_OBJECTS.labels(client.cell, self._name)
        self._repairs = metrics.INFORMER_REPAIRS.labels(client.cell, self._name)

    def on_change(self, handler: Handler) -> None:
        """Adds a handler. If the cache holds objects already, it is told of all of them at once."""
        self._handlers.append(handler)
        known = [Changed(item, None) for item in self.cache.list(self.kind)]
        self._hand_out(known, (handler,))

    def start(self) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(self._follow(), name=f"informer {self._name}")
            self._resyncing = asyncio.create_task(self._resync(), name=f"resync {self._name}")

    async def stop(self) -> None:
        watching, resyncing = self._watching, self._resyncing
        self._watching = self._resyncing = None
        await end(resyncing, watching)

    async def refresh(self) -> None:
        """Lists now: afterwards the cache holds everything that was acknowledged before the call. Raises Faults."""
        await self._list("refresh")

    def absorb(self, items: Iterable[O], removed: Iterable[Key] = (), *, revision: int = 0) -> None:
        """Takes in what a commit answered its writer, ahead of the watch; `removed` are gone for good at `revision`."""
        changes: list[Changed[O]] = []
        for item in items:
            if not self.fields or self._matches(item):
                change = self.cache.put(item)
            else:
                change = self.cache.remove(self.kind, item.key, item.revision, item)
            if change is not None:
                changes.append(change)
        for key in removed:
            gone = self.cache.remove(self.kind, key, revision)
            if gone is not None:
                changes.append(gone)
        self._hand_out(changes)

    # List and watch

    async def _follow(self) -> None:
        backoff = Backoff(self._ports.random, max_s=limits.RECONNECT_MAX_S)
        while True:
            began, pause_s = self._ports.clock.monotonic(), 0.0
            try:
                if self._expired:
                    await self._list("first" if not self.synced.is_set() else "expired")
                    self._expired = False
                async for batch in self._client.watch(self.kind, after=self.revision, fields=self.fields or None):
                    self._take_in(batch)
                    backoff.reset()
                reason = "closed"
            except Expired:
                self._expired, reason = True, "Expired"
            except Fault as fault:
                reason = fault.reason
                pause_s = fault.retry_after_s
                self._log.info("watch_interrupted", reason=reason, message=fault.message, revision=self.revision)
            except Exception:
                # Whatever the stream tripped over, a full list gets past it.
                self._expired, reason = True, "Failed"
                self._log.exception("watch_failed", revision=self.revision)
            metrics.INFORMER_WATCH_ENDS.labels(self._client.cell, self._name, reason).inc()
            if self._ports.clock.monotonic() - began > limits.RECONNECT_MAX_S:
                backoff.reset()
            await self._ports.clock.sleep(max(pause_s, backoff.next_s()))

    async def _resync(self) -> None:
        await self.synced.wait()
        while True:
            await self._ports.clock.sleep(jittered_s(self._silence_s, self._ports.random))
            now_s = self._ports.clock.monotonic()
            if now_s - self._heard_s < self._silence_s < self._resync_s and now_s - self._listed_s < self._resync_s:
                continue
            try:
                repaired = await self._list("resync")
            except Fault as fault:
                self._log.info("resync_failed", reason=fault.reason, message=fault.message)
                continue
            except Exception:
                self._log.exception("resync_failed", reason="Failed")
                continue
            if repaired and self._watching is not None:
                # The watch may be stalled, or drop what it should deliver: take a new one from here.
                watching, self._watching = self._watching, None
                await end(watching)
                self._watching = asyncio.create_task(self._follow(), name=f"informer {self._name}")

    async def _list(self, cause: str) -> int:
        """Lists, compares, hands out what differs. Answers how many changes nobody had reported."""
        metrics.INFORMER_LISTS.labels(self._client.cell, self._name, cause).inc()
        self._listed_s = self._ports.clock.monotonic()
        listing: Listing[O] = await self._client.list(self.kind, fields=self.fields or None)
        if listing.revision < self._floor:
            self._older += cause == "expired"
            self._log.info("list_was_older", listed=listing.revision, known=self._floor, times=self._older)
            if self._older < limits.RESTORED_AFTER_LISTS:
                return 0
            self._log.warning("cell_was_restored", listed=listing.revision, known=self._floor)
            changes = self.cache.start_over(self.kind, listing.items)
            self.revision = listing.revision
        else:
            changes = self.cache.replace_all(self.kind, listing.items, listing.revision)
            self.revision = max(self.revision, listing.revision)
        self._older = 0
        self._floor = listing.revision
        if cause == "resync" and changes:
            self._repairs.inc(len(changes))
        self.synced.set()
        self._hand_out(changes)
        return len(changes)

    def _take_in(self, batch: Sequence[Seen[O]]) -> None:
        changes: list[Changed[O]] = []
        self._heard_s = self._ports.clock.monotonic()
        floor, reached = self._floor, self.revision
        for seen in batch:
            revision = seen.revision
            if seen.object is not None and revision > floor:
                if seen.deleted:
                    change = self.cache.remove(self.kind, seen.object.key, revision, seen.object)
                else:
                    change = self.cache.put(seen.object)
                if change is not None:
                    changes.append(change)
            reached = max(reached, revision)
        self.revision = reached
        self._hand_out(changes)

    # Handing out

    def _hand_out(self, changes: Sequence[Changed[O]], handlers: Sequence[Handler] | None = None) -> None:
        if not changes:
            return
        self._objects.set(self.cache.count(self.kind))
        told = _one_by_one(changes)
        for handler in self._handlers if handlers is None else handlers:
            try:
                handler(told)
            except Exception:
                # One part's mistake must not stop the others from seeing the world move on.
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


def _one_by_one(changes: Sequence[Changed[O]]) -> Sequence[Changed[O]]:
    """What bears its name after another is no change of that one, which is gone."""
    if all(new is None or old is None or new.metadata.uid == old.metadata.uid for new, old in changes):
        return changes
    told: list[Changed[O]] = []
    for change in changes:
        new, old = change
        if new is not None and old is not None and new.uid != old.uid:
            told += (Changed(None, old), Changed(new, None))
        else:
            told.append(change)
    return told


class Informers:
    """The informers of one process for one cell: one per kind, one cache, shared by everything in it."""

    def __init__(self, client: Client, ports: Ports, *, resync_s: float = limits.RESYNC_S) -> None:
        self.cache = Cache()
        self.resync_s = resync_s
        """How often everything is compared as a whole, here and by whoever builds on this, whatever was heard."""
        self._client = client
        self._ports = ports
        self._informers: dict[type[Any], Informer[Any]] = {}
        self._started = False

    def of(self, kind: type[O], fields: Mapping[str, str] | None = None) -> Informer[O]:
        """The informer of a kind, made on first use. All users of a kind share one set of `fields`."""
        found = self._informers.get(kind)
        if found is None:
            found = Informer(self._client, kind, self.cache, self._ports, fields, resync_s=self.resync_s)
            self._informers[kind] = found
            if self._started:
                found.start()
        elif fields is not None and found.fields != dict(fields):
            raise ValueError(
                f"{kind.__name__} is already followed with fields {found.fields}, not {dict(fields)}; "
                "use another Informers for the other part"
            )
        return found

    def find(self, kind: type[O]) -> Informer[O] | None:
        """The informer of a kind if there is one."""
        return self._informers.get(kind)

    def all(self) -> Sequence[Informer[Any]]:
        return tuple(self._informers.values())

    async def start(self) -> None:
        """Starts every informer, and from now on each as it is asked for. Returns at once; see `synced`."""
        self._started = True
        for informer in self._informers.values():
            informer.start()

    async def stop(self) -> None:
        self._started = False
        for informer in self._informers.values():
            await informer.stop()

    async def synced(self) -> None:
        """Waits until every kind asked for so far has been listed once."""
        for informer in list(self._informers.values()):
            await informer.synced.wait()

    async def refresh(self, kinds: Sequence[type[Any]] | None = None) -> None:
        """Lists these kinds (or all) afresh. Raises the first Fault."""
        for kind in list(self._informers) if kinds is None else kinds:
            informer = self._informers.get(kind)
            if informer is not None:
                await informer.refresh()
