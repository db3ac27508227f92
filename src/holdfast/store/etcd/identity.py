"""Detects a cluster, or data, other than the one this process used before.

Two marks: a random identity among the cell's keys, written once, and a small file beside the process with the cluster,
that identity and the cell's head. If a cluster was replaced, wiped or rolled back, the file does not match and the cell
refuses to start: continuing would lose acknowledged writes and run work twice.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

import msgspec

from holdfast.model.errors import Ambiguous, StoreFailed
from holdfast.store.etcd import wire
from holdfast.store.etcd.calls import EtcdCalls
from holdfast.store.etcd.keys import INDEX_BITS, EtcdKeys
from holdfast.store.etcd.logs import FIRST_SEGMENT

MARK_FILE = "etcd.json"


class DataMark(msgspec.Struct, frozen=True, rename="camel"):
    cluster: str
    identity: str
    head: int = 0


class DataMarkFile:
    """The file; `folder` is None for a process without a state directory (a one-off command)."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / MARK_FILE if folder is not None else None

    @property
    def path(self) -> str:
        return str(self._path)

    def read(self) -> DataMark | None:
        if self._path is None:
            return None
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=DataMark)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreFailed(
                f"{self._path}: cannot read it ({error}); it records which etcd data this cell uses"
            ) from error

    def forget(self) -> None:
        """Deletes the file: the data is being replaced on purpose."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def write(self, mark: DataMark) -> None:
        if self._path is None:
            return
        new = self._path.with_name(f".{MARK_FILE}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(mark))
        os.replace(new, self._path)


async def read_base(calls: EtcdCalls, keys: EtcdKeys) -> None:
    """Reads the number that is added to etcd's revisions."""
    response = await calls.read("Range", wire.read(keys.base_key))
    keys.base = int(response.kvs[0].value) if response.kvs else 0


async def establish_identity(calls: EtcdCalls, keys: EtcdKeys, above: int) -> tuple[str, int]:
    """The identity of the cell's data, created if missing, and the etcd revision at which it was created. The revisions
    of new data are above `above`."""
    response = await calls.read("Range", wire.read(keys.identity))
    base = max(0, (above >> INDEX_BITS) + 1 - response.header.revision) if above else 0
    request = wire.TxnRequest(
        compare=[wire.at_revision(keys.identity, 0)],
        success=[
            wire.put_op(keys.identity, uuid.uuid4().hex.encode()),
            wire.put_op(keys.log_segment, FIRST_SEGMENT.encode()),
            wire.put_op(keys.base_key, str(base).encode()),
        ],
    )
    if not response.kvs:
        # If there is no response, the next read shows the result. A late write changes nothing: it compares with 0.
        with contextlib.suppress(Ambiguous):
            await calls.write("Txn", request)
        response = await calls.read("Range", wire.read(keys.identity))
        await read_base(calls, keys)
    for pair in response.kvs:
        return pair.value.decode(), pair.create_revision
    raise StoreFailed("etcd: cannot write the cell's identity; next: start the cell again")


def check_mark(known: DataMark | None, now: DataMark, file: DataMarkFile) -> None:
    """Refuses data that differs from what this process used, or an older state of it."""
    if known is None:
        return
    advice = (
        f"next: holdfast restore, if the cell was restored on purpose; delete {file.path} only if this process never "
        "used that data"
    )
    if known.cluster != now.cluster:
        raise StoreFailed(f"etcd: another cluster (expected {known.cluster}, found {now.cluster}); {advice}")
    if known.identity != now.identity:
        raise StoreFailed(
            f"etcd: the cell's data was wiped or replaced (expected identity {known.identity}, found {now.identity}); "
            f"{advice}"
        )
    if now.head < known.head:
        raise StoreFailed(f"etcd: the cell's data is old (expected revision {known.head}, found {now.head}); {advice}")
