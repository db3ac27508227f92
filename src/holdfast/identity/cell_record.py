"""The record of a cell's identity outside of its store: `cell.json` in the state directory.

It has the cell's name, identity, era and incarnation, and a revision that the store had reached. A new cell has the
record before it has a store. cell/identity.py compares the two at every start.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.model.cell_identity import CellIdentity
from holdfast.model.errors import StoreFailed

RECORD_FILE = "cell.json"


class RecordedIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """`created` is false from `init-cell` until the first start. `revision` is one that the store had reached."""

    identity: CellIdentity
    created: bool = True
    revision: int = 0


class IdentityRecord(Protocol):
    """Where the record is kept. The simulation keeps it in memory."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    def read(self) -> RecordedIdentity | None: ...

    def write(self, recorded: RecordedIdentity) -> None:
        """Durable on return."""

    async def note(self, recorded: RecordedIdentity) -> None:
        """Writes without blocking the event loop."""


class IdentityFile:
    def __init__(self, state: Path) -> None:
        self.path = state / RECORD_FILE

    @property
    def name(self) -> str:
        return str(self.path)

    def read(self) -> RecordedIdentity | None:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=RecordedIdentity)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreFailed(
                f"{self.path}: unreadable ({error}); it says which store this cell used; next: restore the file, or "
                "the cell from a backup (holdfast restore --replace)"
            ) from error

    def write(self, recorded: RecordedIdentity) -> None:
        new = self.path.with_name(f".{RECORD_FILE}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(recorded)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def note(self, recorded: RecordedIdentity) -> None:
        await asyncio.to_thread(self.write, recorded)


class VolatileRecord:
    """The record of a store that is not durable either: a new cell at every start."""

    name = "record in memory"

    def __init__(self, cell: str) -> None:
        self._recorded = RecordedIdentity(draw_identity(cell), created=False)

    def read(self) -> RecordedIdentity | None:
        return self._recorded

    def write(self, recorded: RecordedIdentity) -> None:
        self._recorded = recorded

    async def note(self, recorded: RecordedIdentity) -> None:
        self._recorded = recorded


def draw_identity(cell: str, new_id: Callable[[], str] = lambda: str(uuid.uuid4())) -> CellIdentity:
    return CellIdentity(cell, new_id(), new_id())


def initialize(record: IdentityRecord, cell: str, *, new_identity: bool = False) -> CellIdentity:
    """Declares a new cell: its first start then creates the store. Refuses if the record names a cell that has run."""
    known = record.read()
    if known is not None and known.created and not new_identity:
        raise StoreFailed(
            f"cell {cell}: not new ({record.name} has {known.identity}); next: start it; to give up its content: move "
            "the store away and add --new-identity"
        )
    drawn = draw_identity(cell)
    record.write(RecordedIdentity(drawn, created=False))
    return drawn
