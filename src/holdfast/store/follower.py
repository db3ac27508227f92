"""Keeps the caches of one store's kinds equal to the published state.

A store in this process calls it synchronously on every commit; any other store is followed by one list and one watch.
If the watch expires, it lists again, which ends every stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from holdfast.model import codec, limits
from holdfast.model.errors import Expired, Fault, Retryable, StoreFailed
from holdfast.model.kinds import ALL, Kind, kind_of_store_key
from holdfast.store.contract import Change, Committed, Store, StoredEntry, Txn
from holdfast.store.feed import PublishingStore
from holdfast.store.kind_cache import KindCache

_log = structlog.get_logger()


class Follower:
    """`revision` is what the caches show: every change up to it, none after."""

    def __init__(self, store: Store, *, ephemeral: bool) -> None:
        self.store = store
        self.revision = 0
        self.caches = {kind.name: KindCache(kind) for kind in ALL if kind.ephemeral == ephemeral}
        self._fault: Fault | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._end: Callable[[], object] | None = None
        self._commits = 0
        self._in_flight: dict[int, float] = {}
        """Commits that the store has not answered, oldest first, and the time of each on the loop's clock."""

    async def start(self) -> None:
        await self._load()
        if isinstance(self.store, PublishingStore):
            self._end = self.store.subscribe(self._apply, self._fail, after=self.revision)
        else:
            task = asyncio.get_running_loop().create_task(self._follow())
            self._end = task.cancel

    def close(self, fault: Fault) -> None:
        if self._end is not None:
            self._end()
            self._end = None
        self._fail(fault)

    def cache(self, kind: Kind) -> KindCache:
        return self.caches[kind.name]

    def check(self) -> None:
        if self._fault is not None:
            raise self._fault

    async def wait_for(self, revision: int) -> None:
        """Returns when the caches show this revision."""
        self.check()
        if self.revision >= revision:
            return
        row = (revision, asyncio.get_running_loop().create_future())
        self._waiting.append(row)
        try:
            await row[1]
        finally:
            if row in self._waiting:
                self._waiting.remove(row)
        self.check()

    @property
    def oldest_commit_s(self) -> float:
        """Age of the oldest commit that the store has not answered; 0 if there is none."""
        began_s = next(iter(self._in_flight.values()), None)
        return 0.0 if began_s is None else asyncio.get_running_loop().time() - began_s

    async def commit(self, txn: Txn) -> Committed:
        number, self._commits = self._commits, self._commits + 1
        self._in_flight[number] = asyncio.get_running_loop().time()
        try:
            committed = await self.store.commit(txn)
        finally:
            del self._in_flight[number]
        if self.revision < committed.revision:
            await self.wait_for(committed.revision)
        return committed

    async def _load(self) -> None:
        page = await self.store.range("")
        by_kind: dict[str, list[StoredEntry]] = {name: [] for name in self.caches}
        for entry in page.entries:
            kind = kind_of_store_key(entry.key)
            if kind is not None and kind.name in by_kind:
                by_kind[kind.name].append(entry)
        for name, cache in self.caches.items():
            try:
                cache.load(by_kind[name], page.revision)
            except msgspec.MsgspecError as error:
                raise StoreFailed(unreadable([(cache.kind, e) for e in by_kind[name]], error)) from error
        self.revision = page.revision
        self._wake()

    async def _follow(self) -> None:
        pause_s = limits.BACKOFF_FIRST_S
        while True:
            try:
                async for changes in self.store.watch("", after=self.revision):
                    self._apply(changes)
                    pause_s = limits.BACKOFF_FIRST_S
            except Expired:
                _log.warning("store_relisted", revision=self.revision)
                await self._reload()
            except Retryable as fault:
                _log.info("store_watch_interrupted", reason=fault.message, revision=self.revision)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, limits.BACKOFF_MAX_S)
            except Fault as fault:
                self._fail(fault)
            if self._fault is not None:
                return

    async def _reload(self) -> None:
        try:
            await self._load()
        except Retryable:
            # The next watch expires at once and reloads again.
            await asyncio.sleep(limits.BACKOFF_FIRST_S)
        except Fault as fault:
            self._fail(fault)

    def _apply(self, changes: Sequence[Change]) -> None:
        """Called on every publication, in order. All caches change together, before any reader runs."""
        by_kind: dict[str, list[Change]] = {}
        for change in changes:
            kind = kind_of_store_key(change.key)
            if kind is not None and kind.name in self.caches:
                by_kind.setdefault(kind.name, []).append(change)
        self.revision = changes[-1].revision
        try:
            for name, own in by_kind.items():
                self.caches[name].apply(own)
        except Exception as error:
            # Any error stops the caches: one that skipped a change would diverge from the store. The exception must not
            # propagate into the store, which is in the middle of publishing.
            entries = [(self.caches[name].kind, change.entry) for name, own in by_kind.items() for change in own]
            self._fail(StoreFailed(unreadable(entries, error)))
        self._wake()

    def _fail(self, fault: Fault) -> None:
        if self._fault is None:
            self._fault = fault
            if isinstance(fault, StoreFailed):
                _log.error("object_cache_stopped", reason=fault.message, revision=self.revision)
            for cache in self.caches.values():
                cache.fail(fault)
            self._wake()

    def _wake(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            if row[0] > self.revision and self._fault is None:
                self._waiting.append(row)
            elif not row[1].done():
                row[1].set_result(None)


def unreadable(entries: Sequence[tuple[Kind, StoredEntry | None]], error: Exception) -> str:
    """Message that names the stored object that cannot be decoded. Unknown fields are tolerated; an unknown enum value
    is not, because this release would not know how to act on it.
    """
    for kind, entry in entries:
        if entry is None or entry.attached is not None:
            continue
        try:
            codec.decode_value(kind, entry.value)
        except msgspec.MsgspecError as wrong:
            return (
                f"{kind.name} {entry.key}: cannot decode revision {entry.revision} ({wrong}); next: run the release "
                "that wrote it, or restore an older backup"
            )
    return f"stored objects: cannot load them ({type(error).__name__}: {error})"
