"""A store wrapper that renumbers revisions: the n-th change has revision n.

The store contract specifies only the order of revisions. With this wrapper, results of two stores, or of a store and a
reference, can be compared directly. `created` becomes the first change of its commit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from holdfast.store.contract import Change, Committed, Compare, LogRecord, Store, StoredEntry, StorePage, Txn


class CountedStore:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._real: list[int] = []
        self._first: list[int] = []
        self._sequences: list[int] = []

    @property
    def head(self) -> int:
        return self._count(self.store.head)

    @property
    def compacted(self) -> int:
        return self._count(self.store.compacted)

    async def get(self, key: str, *, at: int | None = None) -> StoredEntry | None:
        return self._entry(await self.store.get(key, at=self._at(at)))

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> StorePage:
        page = await self.store.range(prefix, at=self._at(at), after=after, limit=limit)
        return StorePage(tuple(map(self._renumbered, page.entries)), self._count(page.revision), page.more)

    async def commit(self, txn: Txn) -> Committed:
        compares = tuple([await self._compare(compare) for compare in txn.compares])
        done = await self.store.commit(msgspec.structs.replace(txn, compares=compares))
        new = sorted({r for r in done.revisions if r > (self._real[-1] if self._real else 0)})
        self._first += [len(self._real) + 1] * len(new)
        self._real += new
        for append in txn.appends:
            last = self._sequences[-1] if self._sequences else 0
            self._sequences += [record.sequence for record in await self.store.read_log(append.log, after=last)]
        return Committed(self._count(done.revision), tuple(map(self._count, done.revisions)))

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        return self._counted(self.store.watch(prefix, after=self._at(after)))

    async def compact(self, revision: int) -> None:
        await self.store.compact(self._at(revision))

    @property
    def log_position(self) -> int:
        return bisect_right(self._sequences, self.store.log_position)

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]:
        real = self._sequences[min(after, len(self._sequences)) - 1] if after and self._sequences else 0
        if after > len(self._sequences):
            real += 1 << 40
        records = await self.store.read_log(log, after=real, limit=limit)
        return tuple(LogRecord(bisect_left(self._sequences, r.sequence) + 1, r.value) for r in records)

    async def trim_log(self, log: str, *, keep: int) -> None:
        await self.store.trim_log(log, keep=keep)

    async def close(self) -> None:
        await self.store.close()

    def _count(self, real: int) -> int:
        return bisect_right(self._real, real)

    def _at(self, count: int | None) -> Any:
        if count is None or count == 0:
            return count
        return self._real[count - 1] if count <= len(self._real) else (self._real[-1] if self._real else 0) + 1

    async def _compare(self, compare: Compare) -> Compare:
        """A revision that the key does not have becomes one that no key has, because etcd numbers commits."""
        if compare.revision == 0:
            return compare
        now = await self.store.get(compare.key)
        real = self._at(compare.revision)
        return Compare(compare.key, real if now is not None and now.revision == real else 1 << 60)

    def _entry(self, entry: StoredEntry | None) -> StoredEntry | None:
        return self._renumbered(entry) if entry is not None else None

    def _renumbered(self, entry: StoredEntry) -> StoredEntry:
        created = self._first[bisect_left(self._real, entry.created)]
        return StoredEntry(entry.key, entry.value, self._count(entry.revision), created)

    async def _counted(self, watch: AsyncIterator[Sequence[Change]]) -> AsyncIterator[Sequence[Change]]:
        async for changes in watch:
            yield [
                Change(c.key, self._count(c.revision), self._entry(c.entry), self._entry(c.previous)) for c in changes
            ]
