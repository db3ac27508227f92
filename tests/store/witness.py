"""Compares the acknowledgements of all writer processes with the file that is left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import apsw

from holdfast.store.contract import Change
from holdfast.store.sqlite import SqliteStore


class Witness:
    """Reads the output of `writing_child.py`."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, tuple[int, str]] = {}
        self.values: set[str] = set()
        self.acknowledgements = 0
        self.seen = 0

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            match line.split():
                case ["ack", key, value, revision]:
                    self.acknowledgements += 1
                    self.seen = max(self.seen, int(revision))
                    self.acknowledged[key] = max(self.acknowledged.get(key, (0, "")), (int(revision), value))
                    self.values.add(value)
                case ["seen", _, revision]:
                    self.seen = max(self.seen, int(revision))
                case ["open", head]:
                    assert int(head) >= self.seen, "a visible change was lost after a restart"

    async def check(self, path: Path) -> None:
        store = SqliteStore(path)
        try:
            await self._check(store)
        finally:
            await store.close()
        connection = apsw.Connection(str(path))
        assert connection.pragma("integrity_check") == "ok"
        connection.close()

    async def _check(self, store: SqliteStore) -> None:
        assert store.head >= self.seen, f"revision {self.seen} was visible and the head is {store.head}"
        for key, (revision, value) in self.acknowledged.items():
            entry = await store.get(key)
            assert entry is not None and entry.revision >= revision, f"{key} at {revision} was acknowledged and is lost"
            if entry.revision == revision:
                assert entry.value.split(b".")[0] == value.encode()
        log = {record.value.decode() for record in await store.read_log("audit", limit=1_000_000)}
        assert self.values <= log, "an audit record was lost"
        revisions = [change.revision for change in await _history(store)]
        assert revisions == sorted(set(revisions))


async def _history(store: SqliteStore) -> list[Change]:
    changes: list[Change] = []
    after = store.compacted
    watch = store.watch("", after=after)
    while after < store.head:
        changes += await anext(watch)
        after = changes[-1].revision
    return changes
