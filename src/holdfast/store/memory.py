"""In-memory store: for the simulation, and for data that need not survive the process (Events).

Keeps every change until compaction, so reads and watches of the past work as on disk: a past state is the present one
with later changes undone. A bounded store (`keep`) removes the least recently written keys, as ordinary removals that
watchers see, and compacts itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice

from holdfast.model import limits
from holdfast.model.errors import BadRequest, Expired, Unavailable
from holdfast.store.contract import Change, Committed, LogRecord, Remove, StoredEntry, StorePage, Txn
from holdfast.store.feed import BatchCallback, FaultCallback, Feed, Watch
from holdfast.store.head import StagedValue, StoreHead


class MemoryStore:
    """`keep` is the maximum number of keys; 0 means unbounded."""

    def __init__(self, keep: int = 0) -> None:
        self._head = StoreHead()
        self._feed = Feed(0)
        self._compacted = 0
        self._logs: dict[str, list[LogRecord]] = {}
        self._keep = keep
        # Keys in order of their last write, oldest first; only for a bounded store.
        self._by_age: dict[str, None] = {}

    @property
    def head(self) -> int:
        return self._head.revision

    @property
    def compacted(self) -> int:
        return self._compacted

    @property
    def max_writes(self) -> int:
        return limits.MAX_WRITES_PER_COMMIT

    async def newest_revision(self) -> int:
        return self.head

    def revision_back(self, changes: int) -> int:
        return max(0, self.head - changes)

    async def get(self, key: str, *, at: int | None = None) -> StoredEntry | None:
        self._feed.check()
        if at is None or at == self.head:
            return self._head.entries.get(key)
        undone = self._undone(key, at)
        return undone[key] if key in undone else self._head.entries.get(key)

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> StorePage:
        self._feed.check()
        if at is None or at == self.head:
            entries, more = self._head.range(prefix, after, limit)
            return StorePage(entries, self.head, more)
        undone = self._undone(prefix, at)
        keys = [key for key in self._head.keys.walk(prefix, after) if key not in undone]
        keys += [key for key, entry in undone.items() if entry is not None and key.startswith(prefix) and key > after]
        keys.sort()
        chosen = islice(keys, limit) if limit else keys
        found = tuple(undone.get(key) or self._head.entries[key] for key in chosen)
        return StorePage(found, at, len(keys) > len(found))

    async def commit(self, txn: Txn) -> Committed:
        self._feed.check()
        staged = self._head.stage(txn)
        self._publish(staged)
        if self._keep:
            self._forget(staged)
        self._feed.wake()
        return staged.committed

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        return Watch(self._feed, prefix, after, lambda: self._compacted)

    def subscribe(self, on_batch: BatchCallback, on_fault: FaultCallback, *, after: int) -> Callable[[], None]:
        return self._feed.subscribe(on_batch, on_fault, after=after)

    async def compact(self, revision: int) -> None:
        self._feed.check()
        if revision > self.head:
            raise BadRequest(f"revision {revision}: cannot be compacted (newest revision {self.head})")
        self._compact(revision)

    @property
    def log_position(self) -> int:
        return self._head.sequence

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]:
        self._feed.check()
        records = (record for record in self._logs.get(log, ()) if record.sequence > after)
        return tuple(islice(records, limit))

    async def trim_log(self, log: str, *, keep: int) -> None:
        self._feed.check()
        records = self._logs.get(log, [])
        del records[: max(0, len(records) - keep)]

    async def close(self) -> None:
        self._feed.fail(Unavailable("the store is closed"))

    def _publish(self, staged: StagedValue) -> None:
        self._head.publish(staged)
        for sequence, append in staged.appends:
            self._logs.setdefault(append.log, []).append(LogRecord(sequence, append.value))
        self._feed.append(staged.changes)

    def _compact(self, revision: int) -> None:
        if revision > self._compacted:
            self._compacted = revision
            self._head.forget_removed(revision)
            self._feed.drop_through(revision)
            self._feed.wake()

    def _forget(self, staged: StagedValue) -> None:
        for change in staged.changes:
            self._by_age.pop(change.key, None)
            if change.entry is not None:
                self._by_age[change.key] = None
        excess = len(self._by_age) - self._keep
        if excess > 0:
            oldest = tuple(islice(self._by_age, excess))
            for key in oldest:
                del self._by_age[key]
            self._publish(self._head.stage(Txn(writes=tuple(Remove(key) for key in oldest))))
        if self.head - self._compacted > 2 * self._keep:
            self._compact(self.head - self._keep)

    def _undone(self, prefix: str, at: int) -> dict[str, StoredEntry | None]:
        """Values at a revision of the keys under `prefix` that changed since."""
        if at < self._compacted:
            raise Expired(f"revision {at}: compacted (oldest available {self._compacted}); next: list again")
        if at > self.head:
            raise BadRequest(f"revision {at}: in the future (newest revision {self.head})")
        undone: dict[str, StoredEntry | None] = {}
        for batch in self._feed.newest_first(at):
            for change in batch:
                if change.revision > at and change.key.startswith(prefix):
                    undone[change.key] = change.previous
        return undone
