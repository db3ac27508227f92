"""What every store promises. One conformance suite (tests/store/conformance) holds all of them to it.

- Revisions are positive integers that only rise; every written key gets one, in the order of the writes.
- A commit is atomic and durable when it returns. If one compare fails, nothing happens and `Conflict` is raised.
  It names each key once. Removing a key that is not there changes nothing.
- Reads see exactly the acknowledged commits, never one that is still on its way to the disk. Where several processes
  share a store, `get`, `range` and `newest` without a revision see what any of them was told is committed.
- A watch delivers every change after its revision once, in order, and all changes of one commit together. It ends
  with `Expired` when what it needs is compacted; it never skips silently.
- Reads and watches in the past work back to the compacted revision.
- `Ambiguous` means that a commit may or may not have happened, or may still happen. Read back before deciding.
- After a failed write the store is stopped and says `StoreFailed`: it never guesses what reached the disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One stored value. `attached` is the decoded object the writer had in hand, where the store can pass it on."""

    key: str
    value: bytes
    revision: int
    created: int
    """The revision of the first write, or of another change of the commit that made it (etcd keeps no more)."""
    attached: Any = None


class Compare(msgspec.Struct, frozen=True, gc=False):
    """The key must be at this revision, which was read of it; 0 means that it must not exist."""

    key: str
    revision: int


class Put(msgspec.Struct, frozen=True, gc=False):
    key: str
    value: bytes
    attached: Any = None


class Remove(msgspec.Struct, frozen=True, gc=False):
    key: str


class Append(msgspec.Struct, frozen=True, gc=False):
    """A record for an append-only log (the audit log): durable with the commit, outside keys and watches."""

    log: str
    value: bytes


class Txn(msgspec.Struct, frozen=True, gc=False):
    compares: tuple[Compare, ...] = ()
    writes: tuple[Put | Remove, ...] = ()
    appends: tuple[Append, ...] = ()


class Committed(msgspec.Struct, frozen=True, gc=False):
    """`revisions` has one per write; `revision` is the newest of them, or the head when nothing was written."""

    revision: int
    revisions: tuple[int, ...]


class Change(msgspec.Struct, frozen=True, gc=False):
    """`entry` is None where the key was removed; `previous` is None where it was created."""

    key: str
    revision: int
    entry: Entry | None
    previous: Entry | None


class Page(msgspec.Struct, frozen=True, gc=False):
    """Entries in key order, all as of `revision`. `more` says that another page follows the last key."""

    entries: tuple[Entry, ...]
    revision: int
    more: bool


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    sequence: int
    value: bytes


class Store(Protocol):
    @property
    def head(self) -> int:
        """The newest revision that readers can see."""

    @property
    def compacted(self) -> int:
        """Reads before this revision, and watches that need a change at or before it, are refused with `Expired`."""

    @property
    def max_writes(self) -> int:
        """How many writes one commit may have here. Whoever joins independent writes stays below it."""

    async def newest(self) -> int:
        """The head over all processes that share the store; it is the head here when this returns."""

    def back(self, changes: int) -> int:
        """A revision about so many changes before the head: what compaction keeps from. Revisions are no count."""

    async def get(self, key: str, *, at: int | None = None) -> Entry | None: ...

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> Page:
        """Keys that start with `prefix` and sort after `after`; `at` reads the past; `limit` 0 means all."""

    async def commit(self, txn: Txn) -> Committed: ...

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        """Changes with a revision above `after`, for ever; one item per commit or run of commits."""

    async def compact(self, revision: int) -> None:
        """Forgets what was replaced or removed at or before `revision`; current values stay."""

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]: ...

    async def trim_log(self, log: str, *, keep: int) -> None: ...

    async def close(self) -> None: ...
