"""A checksum in every page of a SQLite file, verified by SQLite whenever it reads the page.

SQLite's own checksum VFS does the work (https://sqlite.org/cksumvfs.html), in C. The checksum occupies the eight
reserved bytes at the end of a page, so a file without them is rewritten once. Values are served from memory, so a page
is read at start, for reads of the past, and by the scrubber.
"""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path

import apsw
import apsw.sqlite_extra

from holdfast.model.errors import StoreFailed

VFS = "cksmvfs"
CHECKSUM_BYTES = 8
_RESERVED_AT = 20
_HEADER_BYTES = 100
_loading = threading.Lock()


@cache
def _load() -> None:
    try:
        apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
    except (apsw.sqlite_extra.NotAvailable, apsw.Error) as error:
        raise StoreFailed(
            f"store: this build of apsw has no checksum VFS ({error}); next: install apsw from PyPI"
        ) from error


def connect(path: Path, flags: int) -> apsw.Connection:
    """A connection that verifies and writes checksums."""
    with _loading:  # the VFS stays registered in the process
        _load()
    return apsw.Connection(str(path), flags=flags, vfs=VFS)


def enable(connection: apsw.Connection) -> None:
    """Reserves the checksum's bytes: in an empty database at once, in another one by rewriting it."""
    connection.reserve_bytes(None, CHECKSUM_BYTES)


def reserved_bytes(path: Path) -> int | None:
    """The reserved bytes per page by the file's header; None for a file without a header.

    Read here and not by SQLite: a wrong value in this one byte would disable the verification of all pages.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER_BYTES)
    except OSError:
        return None
    return head[_RESERVED_AT] if len(head) == _HEADER_BYTES else None
