"""A simulated disk that loses unsynced writes: SQLite's calls are recorded, and the record can be cut at any point.

`Recorder` sits between SQLite and the real files and records events in order. `Disk` replays a record: synced data is
present; of later writes each sector is present, missing or torn. This models a disk with a write cache under a file
system that orders nothing except what a sync makes durable.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw

SECTOR = 512
CREATING = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL
Event = tuple[Any, ...]
"""(what, name of the file or text of the output, …)."""


class Recorder(apsw.VFS):
    """The default VFS of this process from now on. `events` records SQLite's calls and explicit notes."""

    def __init__(self) -> None:
        super().__init__("recorded", "unix", makedefault=True)
        self.events: list[Event] = []

    def output(self, *fields: object) -> None:
        self.events.append(("output", " ".join(map(str, fields))))

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _Recorded(self.events, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.events.append(("delete", Path(filename).name))


class _Recorded(apsw.VFSFile):
    def __init__(self, events: list[Event], name: Any, flags: list[int]) -> None:
        self._events = events
        self._name = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary").name
        super().__init__("unix", name, flags)
        created = flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & CREATING
        self._events.append(("open", self._name, bool(created)))

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._events.append(("write", self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._events.append(("truncate", self._name, newsize))

    def xSync(self, flags: int) -> None:
        # Another thread may write concurrently: only data written before the sync began becomes durable.
        until = len(self._events)
        super().xSync(flags)
        self._events.append(("sync", self._name, until))


class _File:
    def __init__(self, durable: bytes = b"", *, synced: bool = False) -> None:
        self.durable = bytearray(durable)
        self.synced = synced
        self.creates = False
        """Whether its next sync makes the directory durable too: SQLite does that for a new journal or log."""
        self.pending: list[tuple[int, Event]] = []
        self.deleted_at: int | None = None


class Disk:
    """The state of a directory after a number of events; `lose_power` returns a possible state after a power loss."""

    def __init__(self, start: dict[str, bytes]) -> None:
        self._files = {name: _File(content, synced=True) for name, content in start.items()}
        self._count = 0

    def happen(self, event: Event) -> None:
        number, self._count = self._count, self._count + 1
        what, name = event[0], event[1]
        if what == "output":
            return
        file = self._files.get(name)
        if file is None or (file.deleted_at is not None and what != "delete"):
            file = self._files[name] = _File()
        if what == "open":
            file.creates = file.creates or (event[2] and not file.synced)
        elif what == "delete":
            file.deleted_at = number
        elif what == "sync":
            self._sync(file, event[2])
        else:
            file.pending.append((number, event))

    def _sync(self, file: _File, until: int) -> None:
        for number, event in file.pending:
            if number < until:
                _apply(file.durable, event)
        file.pending = [(number, event) for number, event in file.pending if number >= until]
        file.synced = True
        if file.creates:
            file.creates = False
            gone = [name for name, f in self._files.items() if f.deleted_at is not None and f.deleted_at < until]
            for name in gone:
                del self._files[name]

    def lose_power(self, chance: random.Random) -> dict[str, bytes]:
        """One possible state after a power loss."""
        kept = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        found: dict[str, bytes] = {}
        for name, file in self._files.items():
            if file.deleted_at is not None and chance.random() < 0.5:
                continue
            if not file.synced and chance.random() < 0.5:
                continue
            content = bytearray(file.durable)
            for _, event in file.pending:
                _apply_in_part(content, event, kept, chance)
            found[name] = bytes(content)
        return found


def _apply(content: bytearray, event: Event) -> None:
    if event[0] == "truncate":
        del content[event[2] :]
        return
    _, _, offset, data = event
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _apply_in_part(content: bytearray, event: Event, kept: float, chance: random.Random) -> None:
    if event[0] == "truncate":
        if chance.random() < kept:
            _apply(content, event)
        return
    _, name, offset, data = event
    for at in range(0, len(data), SECTOR):
        sector = data[at : at + SECTOR]
        roll = chance.random()
        if roll >= kept:
            continue
        if kept < 1.0 and roll > kept * 0.95:
            # Torn: the beginning of the write, then random bytes.
            begun = chance.randrange(len(sector) + 1)
            sector = sector[:begun] + chance.randbytes(len(sector) - begun)
        _apply(content, ("write", name, offset + at, sector))
