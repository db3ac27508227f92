"""Reads every page of a SQLite store in small steps, so that damage is found before the data is needed.

Values are served from memory, and old revisions are rarely read: without the scrubber a damaged page would be noticed
at the next restart. Steps are short reads on a connection of their own, so they delay neither commits nor checkpoints.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import msgspec
import structlog

from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.model.errors import StoreFailed
from holdfast.store import schema

# Rows read in one step of the scrubber, and the pause between two steps: about 1 MiB/s, so that it is not noticed.
SCRUB_STEP_ROWS = 500
SCRUB_STEP_EVERY_S = 0.5
# Pause between two passes over the file.
SCRUB_PASS_EVERY_S = 3600.0

_log = structlog.get_logger()


class _Scan(msgspec.Struct, frozen=True):
    """One table or index. `sql` continues after the position of the last row, which its first columns give."""

    name: str
    sql: str
    first: tuple[Any, ...]


_SCANS = (
    _Scan("history", "SELECT revision, key, value, created, last FROM history WHERE revision > ? ORDER BY 1", (-1,)),
    _Scan(
        "history_swap",
        "SELECT key, previous FROM history INDEXED BY history_swap WHERE (key, previous) > (?, ?) ORDER BY 1, 2",
        ("", -1),
    ),
    _Scan(
        "history_removed",
        "SELECT key, revision FROM history INDEXED BY history_removed WHERE value IS NULL AND (key, revision) > (?, ?)"
        " ORDER BY 1, 2",
        ("", -1),
    ),
    _Scan("log", "SELECT sequence, name, value FROM log WHERE sequence > ? ORDER BY 1", (-1,)),
    _Scan(
        "log_name",
        "SELECT name, sequence FROM log INDEXED BY log_name WHERE (name, sequence) > (?, ?) ORDER BY 1, 2",
        ("", -1),
    ),
    _Scan("meta", "SELECT name, value FROM meta WHERE name > ? ORDER BY 1", ("",)),
)


class ScrubPass:
    """One pass over the file. `step` blocks for one short read; it raises StoreFailed at a damaged page."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = schema.open_reader(path)
        self._scans = list(_SCANS)
        self._at: tuple[Any, ...] = _SCANS[0].first
        self.rows = 0

    def step(self, rows: int = SCRUB_STEP_ROWS) -> bool:
        """Reads some rows. Returns whether there are more."""
        scan = self._scans[0]
        try:
            found = self._connection.execute(f"{scan.sql} LIMIT {rows}", self._at).fetchall()
        except apsw.Error as error:
            raise schema.unreadable(self._path, error, f"{scan.name} after {self._at[0]}") from error
        self.rows += len(found)
        if len(found) == rows:
            self._at = found[-1][: len(scan.first)]
            return True
        self._scans.pop(0)
        if self._scans:
            self._at = self._scans[0].first
        return bool(self._scans)

    def close(self) -> None:
        self._connection.close()


def check_file(path: Path) -> int:
    """Reads the whole file and compares tables with indexes. Returns the number of rows; raises StoreFailed."""
    if not path.exists():
        raise StoreFailed(f"store {path}: not found")
    scrub = ScrubPass(path)
    try:
        while scrub.step(rows=10_000):
            pass
    finally:
        scrub.close()
    connection = schema.open_reader(path)
    try:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(10)")]
    except apsw.Error as error:
        raise schema.unreadable(path, error) from error
    finally:
        connection.close()
    if found != ["ok"]:
        raise schema.damaged(path, "; ".join(found))
    return scrub.rows


class Scrubber:
    """Component of a cell's process: one pass after the other. Damage is logged and counted; the cell keeps serving."""

    def __init__(self, path: Path, ports: Ports) -> None:
        self._path = path
        self._ports = ports

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def run(self) -> None:
        while True:
            try:
                await self._pass()
                metrics.STORE_DAMAGED.set(0)
                metrics.STORE_SCRUBBED.set(self._ports.clock.now())
            except StoreFailed as fault:
                metrics.STORE_DAMAGED.set(1)
                _log.error("store_damaged", path=str(self._path), error=fault.message)
            await self._ports.clock.sleep(SCRUB_PASS_EVERY_S)

    async def _pass(self) -> None:
        scrub = ScrubPass(self._path)
        try:
            while await asyncio.to_thread(scrub.step):
                await self._ports.clock.sleep(SCRUB_STEP_EVERY_S)
        finally:
            scrub.close()
