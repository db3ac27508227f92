"""The newest value of every key, in memory: published values, and values staged until they are on disk.

Compares are checked and revisions assigned against the staged state; readers see only the published state. Staged
commits are published in the order they were staged, or never.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from holdfast.model import limits
from holdfast.model.errors import BadRequest
from holdfast.store.chained_log import GENESIS, linked
from holdfast.store.contract import Append, Change, Committed, Put, Remove, StoredEntry, Txn, compare_conflict
from holdfast.store.ordered_keys import OrderedKeys


class StagedValue(msgspec.Struct, frozen=True, gc=False):
    """A commit with its revisions. `priors`: per change, the revision of the key's previous change; 0 if none."""

    changes: tuple[Change, ...]
    priors: tuple[int, ...]
    appends: tuple[tuple[int, Append], ...]
    committed: Committed
    link: bytes = GENESIS
    """Hash of the newest audit record up to this commit."""


class StoreHead:
    """`revision` and `sequence` are the newest published ones; assigned ones may be ahead."""

    def __init__(
        self,
        entries: Iterable[StoredEntry] = (),
        removed: dict[str, int] | None = None,
        revision: int = 0,
        sequence: int = 0,
        link: bytes = GENESIS,
    ) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self.keys = OrderedKeys(self.entries)
        self.revision = revision
        self.sequence = sequence
        self._link = link
        # Removed keys, oldest first, until compaction: a recreated key has its removal as the previous change.
        self._removed: dict[str, int] = removed if removed is not None else {}
        # Key → staged entry, or the revision of its staged removal.
        self._staged: dict[str, StoredEntry | int] = {}
        self._assigned = revision
        self._assigned_sequence = sequence
        self._assigned_link = link

    def stage(self, txn: Txn) -> StagedValue:
        """Checks every compare and assigns revisions. If it raises, nothing has changed."""
        newest = self._newest if self._staged else self.entries.get
        for compare in txn.compares:
            now = newest(compare.key)
            found = now.revision if now is not None else 0
            if found != compare.revision:
                raise compare_conflict(compare, found)
        writes = txn.writes
        if len(writes) > limits.MAX_WRITES_PER_COMMIT:
            limit = limits.MAX_WRITES_PER_COMMIT
            raise BadRequest(f"commit: too many writes (limit {limit}, found {len(writes)}); next: split it")
        if len({write.key for write in writes}) != len(writes):
            raise BadRequest("commit: a key is written twice; next: write each key once, with its final value")
        changes: list[Change] = []
        priors: list[int] = []
        revisions: list[int] = []
        revision = self._assigned
        for write in writes:
            old = newest(write.key)
            if isinstance(write, Put) or old is not None:
                revision += 1
                changes.append(_change(write, old, revision))
                priors.append(old.revision if old is not None else self._removal(write.key))
            revisions.append(revision)
        appends: tuple[tuple[int, Append], ...] = ()
        if txn.appends:
            records, self._assigned_link = linked(txn.appends, self._assigned_link)
            appends = tuple(enumerate(records, self._assigned_sequence + 1))
            self._assigned_sequence += len(appends)
        for change in changes:
            self._staged[change.key] = change.entry if change.entry is not None else change.revision
        self._assigned = revision
        return StagedValue(
            tuple(changes), tuple(priors), appends, Committed(revision, tuple(revisions)), self._assigned_link
        )

    def publish(self, staged: StagedValue) -> None:
        """Makes a staged commit visible to readers."""
        for change in staged.changes:
            key, entry = change.key, change.entry
            now = self._staged[key]
            if (now if isinstance(now, int) else now.revision) == change.revision:
                del self._staged[key]
            if entry is None:
                del self.entries[key]
                self.keys.remove(key)
                self._removed[key] = change.revision
            else:
                if key not in self.entries:
                    self.keys.add(key)
                    self._removed.pop(key, None)
                self.entries[key] = entry
        if staged.changes:
            self.revision = staged.changes[-1].revision
        if staged.appends:
            self.sequence = staged.appends[-1][0]
            self._link = staged.link

    def discard_staged(self) -> None:
        """Forgets every staged commit, because none of them was or will be stored. Their revisions are used again."""
        self._staged.clear()
        self._assigned = self.revision
        self._assigned_sequence = self.sequence
        self._assigned_link = self._link

    def is_staged(self, key: str) -> bool:
        return key in self._staged

    def range(self, prefix: str, after: str, limit: int) -> tuple[tuple[StoredEntry, ...], bool]:
        walk = self.keys.walk(prefix, after)
        found = tuple(self.entries[key] for key in (islice(walk, limit) if limit else walk))
        return found, bool(limit) and next(walk, None) is not None

    def forget_removed(self, through: int) -> None:
        """Drops removals up to a revision, once no older value of their keys is kept anywhere."""
        while self._removed:
            key, revision = next(iter(self._removed.items()))
            if revision > through:
                break
            del self._removed[key]

    def _newest(self, key: str) -> StoredEntry | None:
        staged = self._staged.get(key)
        if staged is None:
            return self.entries.get(key)
        return None if isinstance(staged, int) else staged

    def _removal(self, key: str) -> int:
        staged = self._staged.get(key)
        return staged if isinstance(staged, int) else self._removed.get(key, 0)


def _change(write: Put | Remove, old: StoredEntry | None, revision: int) -> Change:
    if isinstance(write, Remove):
        return Change(write.key, revision, None, old)
    created = old.created if old is not None else revision
    return Change(write.key, revision, StoredEntry(write.key, write.value, revision, created, write.attached), old)
