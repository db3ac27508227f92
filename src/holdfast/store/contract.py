"""The store contract. One conformance suite (tests/store/conformance) checks every implementation.

- Revisions are positive and only increase. Every written key gets one, in the order of the writes.
- A commit is atomic and durable when it returns. If a compare fails, nothing happens and `Conflict` is raised. A
  commit names each key once. Removing a missing key changes nothing.
- Reads see exactly the acknowledged commits, never one in flight. If several processes share a store, `get`, `range`
  and `newest_revision` see every commit that any of them acknowledged.
- A watch delivers every change after its revision once, in order, all changes of one commit together. It ends with
  `Expired` if the changes it needs are compacted; it never skips silently.
- Reads and watches of the past work back to the compacted revision.
- `Ambiguous` means that a commit may or may not have happened, or may still happen. Read back before deciding.
- After a failed write the store stops and raises `StoreFailed`: it never guesses what reached the disk. On a full disk
  nothing was written: commits raise `Unavailable` until there is space, and reads continue.
- A read of damaged data raises `StoreFailed`. It never returns another value than the one that was stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.model.errors import Conflict


class StoredEntry(msgspec.Struct, frozen=True, gc=False):
    """One stored value. `attached` is the decoded object that the writer had, if the store can pass it on."""

    key: str
    value: bytes
    revision: int
    created: int
    """Revision of the first write, or of another change of the same commit (etcd keeps no more)."""
    attached: Any = None


class Compare(msgspec.Struct, frozen=True, gc=False):
    """The key must be at this revision; 0 means that it must not exist."""

    key: str
    revision: int


def compare_conflict(compare: Compare, found: int) -> Conflict:
    """The fault of a failed compare; `found` is the key's revision, 0 if it does not exist."""
    key, expected = compare.key, compare.revision
    if expected == 0:
        message = f"{key}: already exists (found revision {found}); next: read it again"
    elif found == 0:
        message = f"{key}: does not exist (expected revision {expected}); next: read it again"
    else:
        message = f"{key}: changed since it was read (expected revision {expected}, found {found}); next: read it again"
    return Conflict(message, facts={"key": key, "expected": expected, "found": found})


class Put(msgspec.Struct, frozen=True, gc=False):
    key: str
    value: bytes
    attached: Any = None


class Remove(msgspec.Struct, frozen=True, gc=False):
    key: str


class Append(msgspec.Struct, frozen=True, gc=False):
    """A record for an append-only log (the audit log): durable with the commit, invisible to reads and watches."""

    log: str
    value: bytes


class Txn(msgspec.Struct, frozen=True, gc=False):
    compares: tuple[Compare, ...] = ()
    writes: tuple[Put | Remove, ...] = ()
    appends: tuple[Append, ...] = ()


class Committed(msgspec.Struct, frozen=True, gc=False):
    """`revisions` has one per write; `revision` is the newest of them, or the store's head if nothing was written."""

    revision: int
    revisions: tuple[int, ...]


class Change(msgspec.Struct, frozen=True, gc=False):
    """`entry` is None if the key was removed; `previous` is None if it was created."""

    key: str
    revision: int
    entry: StoredEntry | None
    previous: StoredEntry | None


class StorePage(msgspec.Struct, frozen=True, gc=False):
    """Entries in key order, all as of `revision`. `more`: another page follows the last key."""

    entries: tuple[StoredEntry, ...]
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
        """Reads before this revision, and watches that need a change at or before it, raise `Expired`."""

    @property
    def max_writes(self) -> int:
        """Maximum number of writes in one commit. Batchers stay below it."""

    async def newest_revision(self) -> int:
        """The newest revision of all processes that share the store. When it returns, `head` has reached it."""

    def revision_back(self, changes: int) -> int:
        """A revision about `changes` changes before the head, for compaction. Revisions are not a count of changes."""

    async def get(self, key: str, *, at: int | None = None) -> StoredEntry | None: ...

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> StorePage:
        """Keys that start with `prefix` and sort after `after`. `at` reads a past revision; `limit` 0 means all."""

    async def commit(self, txn: Txn) -> Committed: ...

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        """Changes with a revision above `after`, endlessly; one item per commit or run of commits."""

    async def compact(self, revision: int) -> None:
        """Discards values that were replaced or removed at or before `revision`; current values stay."""

    @property
    def log_position(self) -> int:
        """A sequence number below that of every record that a commit appends from now on, in every log."""

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]: ...

    async def trim_log(self, log: str, *, keep: int) -> None: ...

    async def close(self) -> None: ...
