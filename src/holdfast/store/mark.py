"""The mark beside a SQLite file: the newest revision and log sequence that were acknowledged, and which file it is of.

It is written after every group of commits, when they are durable, so it never claims too much. One small write without
a sync survives the death of the process; a thread syncs it every second for the death of the machine. At the next start
a database with fewer revisions has lost acknowledged commits: its write-ahead log was deleted or cut, or it is a copy.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path

import msgspec

from holdfast.model.errors import StoreFailed

_SLOT = struct.Struct("<8sQQQQ")
_CRC = struct.Struct("<I")
_MAGIC = b"HFMARK01"
_SLOT_BYTES = 64
_SLOTS = 2
"""Written in turn: a torn write leaves the other one."""


class MarkValue(msgspec.Struct, frozen=True, order=True):
    """`stamp` is the random number in the file's `meta` table."""

    count: int
    stamp: int
    revision: int
    sequence: int


def mark_path(store: Path) -> Path:
    return store.with_name(store.name + ".mark")


def read_mark(store: Path) -> MarkValue | None:
    """The newest whole slot; None without a file or a whole slot."""
    try:
        raw = mark_path(store).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreFailed(f"{mark_path(store)}: unreadable ({error.strerror}); it says what the store had") from error
    found = (_decode(raw[at : at + _SLOT_BYTES]) for at in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES))
    return max((slot for slot in found if slot is not None), default=None)


def check_mark(store: Path, known: MarkValue | None, stamp: int, revision: int, sequence: int) -> None:
    """Refuses a file that lost acknowledged commits, or another file than the mark's."""
    if known is None:
        return
    way_out = "next: put the newest store back with its write-ahead log, or holdfast restore --replace with a backup"
    if known.stamp != stamp:
        raise StoreFailed(
            f"store {store}: replaced by another file ({mark_path(store).name} expects {known.stamp:x}, found "
            f"{stamp:x}); {way_out}"
        )
    if revision < known.revision or sequence < known.sequence:
        log = store.with_name(store.name + "-wal")
        size = log.stat().st_size if log.exists() else 0
        raise StoreFailed(
            f"store {store}: acknowledged commits are missing (expected revision {known.revision} and log sequence "
            f"{known.sequence}, found {revision} and {sequence}; write-ahead log {size} bytes); {way_out}",
            facts={"expected": known.revision, "found": revision},
        )


class StoreMark:
    """The open mark of one file. `advance` is called by the writing thread only, `sync` by another one."""

    def __init__(self, store: Path, known: MarkValue | None, stamp: int, revision: int, sequence: int) -> None:
        """`revision` and `sequence` are those that the store has."""
        self._path = mark_path(store)
        self._stamp = stamp
        self._count = known.count if known is not None else 0
        self.revision = revision
        self.sequence = sequence
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._handle).st_size < _SLOTS * _SLOT_BYTES:
            # Reserved now, so that a full disk cannot prevent a later write.
            with contextlib.suppress(OSError):
                os.posix_fallocate(self._handle, 0, _SLOTS * _SLOT_BYTES)
        self._synced = self._count
        self.advance(revision, sequence)

    def advance(self, revision: int, sequence: int) -> None:
        """Notes commits that are durable; 0 for no change. A failed write leaves the file behind, which is safe."""
        self.revision = max(self.revision, revision)
        self.sequence = max(self.sequence, sequence)
        count = self._count + 1
        slot = _SLOT.pack(_MAGIC, count, self._stamp, self.revision, self.sequence)
        with contextlib.suppress(OSError):
            os.pwrite(self._handle, slot + _CRC.pack(zlib.crc32(slot)), (count % _SLOTS) * _SLOT_BYTES)
            self._count = count

    def sync(self) -> None:
        count = self._count
        if count != self._synced:
            with contextlib.suppress(OSError):
                os.fdatasync(self._handle)
                self._synced = count

    def close(self) -> None:
        self.sync()
        os.close(self._handle)


def _decode(raw: bytes) -> MarkValue | None:
    if len(raw) < _SLOT.size + _CRC.size:
        return None
    magic, count, stamp, revision, sequence = _SLOT.unpack_from(raw)
    (crc,) = _CRC.unpack_from(raw, _SLOT.size)
    return (
        MarkValue(count, stamp, revision, sequence) if (magic, crc) == (_MAGIC, zlib.crc32(raw[: _SLOT.size])) else None
    )
