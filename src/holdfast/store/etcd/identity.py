"""Whether this is the cluster, and the data, that this process worked with before.

Two marks: a random identity among the cell's keys, written once; and a small file beside the process that remembers the
cluster, that identity, and how far the cell had come. A cluster that was exchanged, wiped or rolled back does not agree
with the file, and the cell refuses to start on it: going on would lose what was acknowledged, and run work twice.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

import msgspec

from holdfast.model.errors import Ambiguous, StoreFailed
from holdfast.store.etcd import wire
from holdfast.store.etcd.calls import Calls
from holdfast.store.etcd.keys import Keys
from holdfast.store.etcd.logs import FIRST_EPOCH

NAME = "etcd.json"


class Mark(msgspec.Struct, frozen=True, rename="camel"):
    cluster: str
    identity: str
    head: int = 0


class MarkFile:
    """The file; None for a process that has no place of its own (a one-off command)."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / NAME if folder is not None else None

    @property
    def path(self) -> str:
        return str(self._path)

    def read(self) -> Mark | None:
        if self._path is None:
            return None
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Mark)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreFailed(
                f"{self._path} cannot be read ({error}): it says which etcd data this cell uses"
            ) from error

    def forget(self) -> None:
        """What was known of the data no longer holds: it is replaced on purpose."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def write(self, mark: Mark) -> None:
        if self._path is None:
            return
        new = self._path.with_name(f".{NAME}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(mark))
        os.replace(new, self._path)


async def establish(calls: Calls, keys: Keys) -> tuple[str, int]:
    """The identity of the cell's data, a new one where there is none yet, and etcd's revision that began it."""
    request = wire.TxnRequest(
        compare=[wire.at_revision(keys.identity, 0)],
        success=[
            wire.put_op(keys.identity, uuid.uuid4().hex.encode()),
            wire.put_op(keys.epoch, FIRST_EPOCH.encode()),
        ],
    )
    answer = await calls.read("Range", wire.read(keys.identity))
    if not answer.kvs:
        # After no answer the read that follows tells; a late one changes nothing, as it asks that there is none.
        with contextlib.suppress(Ambiguous):
            await calls.write("Txn", request)
        answer = await calls.read("Range", wire.read(keys.identity))
    for pair in answer.kvs:
        return pair.value.decode(), pair.create_revision
    raise StoreFailed("the cell's identity could not be written to etcd: start again")


def check(known: Mark | None, now: Mark, file: MarkFile) -> None:
    """Refuses data that is not what this process knew, or an older state of it."""
    if known is None:
        return
    advice = (
        "Nothing was written. If the cell was restored on purpose, use `holdfast restore`, which tells its peers; "
        f"remove {file.path} only if this process never belonged to that data"
    )
    if known.cluster != now.cluster:
        raise StoreFailed(
            f"etcd is cluster {now.cluster}, and this cell's data is in cluster {known.cluster}. {advice}"
        )
    if known.identity != now.identity:
        raise StoreFailed(
            f"the cell's data in etcd is {now.identity}, and this process worked with {known.identity}: it was wiped "
            f"or exchanged. {advice}"
        )
    if now.head < known.head:
        raise StoreFailed(f"the cell's data in etcd is at {now.head} and was at {known.head}: it went back. {advice}")
