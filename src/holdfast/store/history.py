"""Reads of the SQLite history: past values, lists, changes and logs. Runs in its own thread, one read at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from holdfast.model import limits
from holdfast.store.chained_log import GENESIS, record_hash
from holdfast.store.contract import Change, LogRecord, StoredEntry
from holdfast.store.feed import WATCH_CHUNK_EVENTS
from holdfast.store.ordered_keys import upper_bound

# SQLite takes the other columns from the row with the maximum. Groups are in index order: a page costs only its keys.
_PAST = """
SELECT key, value, max(revision), created FROM history INDEXED BY history_swap
WHERE key >= ? AND key < ? AND revision <= ?
GROUP BY key HAVING value IS NOT NULL ORDER BY key LIMIT ?
"""
# The index holds (key, previous, revision), so finding the newest row per key reads no other value.
_NEWEST = """
SELECT h.key, h.value, h.revision, h.created
FROM (SELECT max(revision) AS revision FROM history INDEXED BY history_swap GROUP BY key) AS newest
CROSS JOIN history AS h ON h.revision = newest.revision WHERE h.value IS NOT NULL
"""
_ONE = "SELECT value, revision, created FROM history WHERE key = ? AND revision <= ? ORDER BY previous DESC LIMIT 1"
_CHANGES = """
SELECT h.key, h.value, h.revision, h.created, h.last, p.value, p.revision, p.created
FROM history AS h LEFT JOIN history AS p ON p.revision = h.previous AND p.value IS NOT NULL
WHERE h.revision > ? AND h.revision <= ? ORDER BY h.revision LIMIT ?
"""
_LOG = "SELECT sequence, value FROM log WHERE name = ? AND sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?"
_REMOVED = """
SELECT h.key, h.revision FROM history AS h INDEXED BY history_removed WHERE h.value IS NULL
AND NOT EXISTS (SELECT 1 FROM history AS n WHERE n.key = h.key AND n.previous = h.revision) ORDER BY h.revision
"""

_ALL = 1 << 62
# Any blob sorts above every text.
_ABOVE_EVERY_KEY = b""


class HistoryReader:
    """`at` and `through` are never above the published revision, so unpublished rows are not visible."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def get(self, key: str, at: int) -> StoredEntry | None:
        rows = self._rows(_ONE, (key, at))
        return StoredEntry(key, *rows[0]) if rows and rows[0][0] is not None else None

    def range(self, prefix: str, at: int, after: str, limit: int) -> tuple[tuple[StoredEntry, ...], bool]:
        # The next possible key after `after` is `after` followed by the lowest character.
        low = after + "\0" if after >= prefix and after else prefix
        high = upper_bound(prefix) or _ABOVE_EVERY_KEY
        rows = self._rows(_PAST, (low, high, at, limit + 1 if limit else _ALL))
        more = bool(limit) and len(rows) > limit
        return tuple(StoredEntry(*row) for row in (rows[:limit] if more else rows)), more

    def changes(self, after: int, through: int) -> Sequence[Change]:
        """Whole commits after a revision, about as many as one watch item may hold."""
        rows = self._rows(_CHANGES, (after, through, WATCH_CHUNK_EVENTS))
        if rows:
            reached, last = rows[-1][2], rows[-1][4]
            if reached < last:
                rows += self._rows(_CHANGES, (reached, last, limits.MAX_WRITES_PER_COMMIT))
        return [_change(row) for row in rows]

    def newest(self) -> list[StoredEntry]:
        """The current value of every key, unordered."""
        return [StoredEntry(*row) for row in self._rows(_NEWEST)]

    def removed(self) -> dict[str, int]:
        """Keys whose last change is a removal, oldest first."""
        return dict(self._rows(_REMOVED))

    def log(self, name: str, after: int, through: int, limit: int) -> tuple[LogRecord, ...]:
        return tuple(LogRecord(*row) for row in self._rows(_LOG, (name, after, through, limit)))

    def newest_link(self, name: str) -> bytes:
        """The hash of the log's newest record, which the next record names."""
        found = self._rows("SELECT value FROM log WHERE name = ? ORDER BY sequence DESC LIMIT 1", (name,))
        return record_hash(found[0][0]) if found else GENESIS

    def meta(self) -> dict[str, int]:
        """The rows of `meta`, plus the newest revision and log sequence ever used."""
        marks: dict[str, int] = dict(self._rows("SELECT name, value FROM meta"))
        ((revision, sequence),) = self._rows(
            "SELECT (SELECT max(revision) FROM history), (SELECT max(sequence) FROM log)"
        )
        marks["revision"] = max(revision or 0, marks["compacted"])
        marks["sequence"] = max(sequence or 0, marks["trimmed"])
        return marks

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see one state."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def _rows(self, sql: str, values: tuple[int | str | bytes, ...] = ()) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()


def _change(row: Any) -> Change:
    key, value, revision, created, _, old_value, old_revision, old_created = row
    entry = StoredEntry(key, value, revision, created) if value is not None else None
    previous = StoredEntry(key, old_value, old_revision, old_created) if old_value is not None else None
    return Change(key, revision, entry, previous)
