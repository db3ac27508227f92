"""Key layout of a cell in etcd, and the mapping between etcd's revisions and ours.

    /holdfast/<cell>/cell/head        written last in every commit; its value is the number of keys the commit changed
    /holdfast/<cell>/cell/identity    random identity of this cell's data, written once
    /holdfast/<cell>/cell/base        with the identity: number added to etcd's revisions, so that a restore on another
                                      cluster continues above the revisions of all earlier eras
    /holdfast/<cell>/cell/compacted   compacted revision
    /holdfast/<cell>/cell/epoch       name of the log segment that new records go to
    /holdfast/<cell>/data<key>        the objects
    /holdfast/<cell>/logs/<log>/<segment>/<writer>-<n>

etcd has one revision per transaction; the contract requires one per changed key, in order. Ours is etcd's times 4096
plus the index of the change in its transaction. A watch reveals the index by event order, reads by the value's first
two bytes.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.errors import StoreFailed
from holdfast.store.contract import Compare, StoredEntry
from holdfast.store.ordered_keys import upper_bound

ROOT_PREFIX = "/holdfast"
INDEX_BITS = 12
LAST_INDEX = (1 << INDEX_BITS) - 1
_HEADER_BYTES = 2


def pack(value: bytes, place: int) -> bytes:
    return place.to_bytes(_HEADER_BYTES, "big") + value


class EtcdKeys:
    """The keys of one cell."""

    def __init__(self, cell: str) -> None:
        root = f"{ROOT_PREFIX}/{cell}/"
        self.root = root.encode()
        self.root_end = f"{ROOT_PREFIX}/{cell}0".encode()
        self.head = self.root + b"cell/head"
        self.identity = self.root + b"cell/identity"
        self.compacted = self.root + b"cell/compacted"
        self.base_key = self.root + b"cell/base"
        self.base = 0
        """Number added to etcd's revisions. Read once, when the store is opened."""
        self.log_segment = self.root + b"cell/epoch"
        self.logs = self.root + b"logs/"
        self.logs_end = self.root + b"logs0"
        self._data = f"{root}data"
        self._data_bytes = self._data.encode()
        # One watch covers `cell/` and `data…`, but not the logs.
        self.watched = (self.root + b"cell/", self.root + b"datb")

    def revision_of(self, main: int, place: int) -> int:
        return (main + self.base) << INDEX_BITS | place

    def etcd_revision_of(self, revision: int) -> int:
        """The etcd revision that contains a Holdfast revision; negative or 0 for a revision of an earlier era."""
        return (revision >> INDEX_BITS) - self.base

    def expected_etcd_revision(self, compare: Compare) -> int:
        """The etcd revision that a compare expects. A revision that no commit had must not turn into "missing" (0)."""
        return max(self.etcd_revision_of(compare.revision), 0) or -1 if compare.revision else 0

    def data(self, key: str) -> bytes:
        return f"{self._data}{key}".encode()

    def data_range(self, prefix: str, after: str = "") -> tuple[bytes, bytes]:
        """Start and end of an etcd range for `range`."""
        end = upper_bound(prefix)
        low = f"{after}\0" if after and after >= prefix else prefix
        return self.data(low), self.data(end) if end else self.watched[1]

    def is_data(self, raw: bytes) -> bool:
        return raw.startswith(self._data_bytes)

    def key(self, raw: bytes) -> str:
        return raw[len(self._data_bytes) :].decode()

    def entry(self, pair: Any) -> StoredEntry:
        value: bytes = pair.value
        if len(value) < _HEADER_BYTES:
            name = pair.key.decode(errors="replace")
            raise StoreFailed(f"etcd key {name}: not written by Holdfast; next: delete it, or restore the cell")
        place = int.from_bytes(value[:_HEADER_BYTES], "big")
        return StoredEntry(
            self.key(pair.key),
            value[_HEADER_BYTES:],
            self.revision_of(pair.mod_revision, place),
            self.revision_of(pair.create_revision, 0),
        )

    def head_revision(self, pairs: Any) -> int:
        """The cell's newest revision, from its head key."""
        for pair in pairs:
            return self.revision_of(pair.mod_revision, int(pair.value) - 1)
        return 0

    def log(self, log: str, segment: str = "") -> bytes:
        """The directory of a log, or of one of its segments."""
        return self.logs + f"{log}/{segment}{'/' if segment else ''}".encode()


def prefix_end(prefix: bytes) -> bytes:
    """End of the range of all keys with a prefix that ends in `/`."""
    return prefix[:-1] + b"0"
