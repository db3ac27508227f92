"""Append-only logs in etcd: records in commit order, although many processes append concurrently.

A record's key is chosen before its commit, but its order is known only afterwards. A log is therefore divided into
segments: every appending commit compares the revision of the segment key, so all records of one segment were committed
before any of the next. Within a segment, records are ordered by the etcd revision that wrote them, which is also the
record's sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from holdfast.model.errors import Fault
from holdfast.store.contract import Append, LogRecord
from holdfast.store.etcd import wire
from holdfast.store.etcd.calls import ETCD_PAGE_KEYS, EtcdCalls
from holdfast.store.etcd.keys import INDEX_BITS, EtcdKeys, prefix_end

# Records per segment of a log in etcd. At the limit a new segment begins, so that trimming deletes whole segments.
ETCD_LOG_SEGMENT_RECORDS = 1_000

_DIGITS = 16
_DELETES = 100
FIRST_SEGMENT = "0" * _DIGITS


class LogSegment:
    """`name` is the etcd revision at which the previous segment began, so names sort by age. `revision` is that of the
    segment key."""

    def __init__(self, name: str, revision: int) -> None:
        self.name = name
        self.revision = revision


class EtcdLogs:
    def __init__(self, calls: EtcdCalls, keys: EtcdKeys, writer: str) -> None:
        self._calls = calls
        self._keys = keys
        self._writer = writer
        self._record_count = 0
        self.segment = LogSegment(FIRST_SEGMENT, 0)
        self._in_segment = 0
        self._segment_task: asyncio.Task[None] | None = None

    def observe(self, pair: Any) -> None:
        """The segment key from a read or the watch."""
        if pair.mod_revision > self.segment.revision:
            self.segment = LogSegment(pair.value.decode(), pair.mod_revision)
            self._in_segment = 0

    def operations(self, appends: tuple[Append, ...]) -> tuple[list[Any], list[Any]]:
        """The compares and writes that append these records."""
        if not appends:
            return [], []
        segment = self.segment
        puts = []
        for place, append in enumerate(appends):
            self._record_count += 1
            key = self._keys.log(append.log, segment.name) + f"{self._writer}-{self._record_count:08x}".encode()
            puts.append(wire.put_op(key, place.to_bytes(2, "big") + append.value))
        return [wire.at_revision(self._keys.log_segment, segment.revision)], puts

    def note_appended(self, records: int) -> None:
        """Starts a new segment when this one is full. The first process to notice does it for all."""
        self._in_segment += records
        if self._in_segment >= ETCD_LOG_SEGMENT_RECORDS and self._segment_task is None:
            self._segment_task = asyncio.get_running_loop().create_task(self._start_segment(), name="log segment")

    async def refresh(self) -> None:
        response = await self._calls.read("Range", wire.read(self._keys.log_segment))
        for pair in response.kvs:
            self.observe(pair)

    async def close(self) -> None:
        if self._segment_task is not None:
            await asyncio.gather(self._segment_task, return_exceptions=True)

    async def _start_segment(self) -> None:
        segment = self.segment
        # The old segment's key was written at its revision; everything in the new segment is committed after that.
        name = f"{segment.revision:0{_DIGITS}x}"
        try:
            await self._calls.write(
                "Txn",
                wire.TxnRequest(
                    compare=[wire.at_revision(self._keys.log_segment, segment.revision)],
                    success=[wire.put_op(self._keys.log_segment, name.encode())],
                ),
            )
            await self.refresh()
        except Fault:
            self._in_segment = 0  # retried when another segment's worth of records was appended
        finally:
            self._segment_task = None

    @property
    def position(self) -> int:
        """The last sequence of the newest etcd revision that this process knows: its next commit has a later one."""
        return ((self._calls.revision + 1) << INDEX_BITS) - 1

    async def read(self, log: str, after: int, limit: int) -> tuple[LogRecord, ...]:
        found: list[LogRecord] = []
        async for _, pairs in self._segments(log, await self._segment_of(log, after)):
            records = sorted((_record(pair) for pair in pairs), key=lambda record: record.sequence)
            found += (record for record in records if record.sequence > after)
            if len(found) >= limit:
                break
        return tuple(found[:limit])

    async def trim(self, log: str, keep: int) -> None:
        """Deletes the oldest records beyond `keep`, whole segments at once where possible.

        Everything is read at one etcd revision. Several servers of a cell may trim at once: each deletes only records
        that were beyond `keep` at its revision, so together they keep that many.
        """
        of_log = self._keys.log(log)
        counted = await self._calls.read(
            "Range", wire.RangeRequest(key=of_log, range_end=prefix_end(of_log), count_only=True)
        )
        spare, at = counted.count - keep, counted.header.revision
        if spare <= 0:
            return
        async for segment, pairs in self._segments(log, "", keys_only=True, at=at):
            if len(pairs) <= spare and segment < self.segment.name:
                low = self._keys.log(log, segment)
                await self._calls.write("DeleteRange", wire.DeleteRangeRequest(key=low, range_end=prefix_end(low)))
                spare -= len(pairs)
            else:
                folder = _range_of(self._keys.log(log, segment))
                whole = await self._calls.read("Range", wire.read(*folder, revision=at))
                oldest = sorted(whole.kvs, key=lambda pair: _record(pair).sequence)[:spare]
                for start in range(0, len(oldest), _DELETES):
                    some = [wire.delete_op(pair.key) for pair in oldest[start : start + _DELETES]]
                    await self._calls.write("Txn", wire.TxnRequest(success=some))
                spare -= len(oldest)
            if spare <= 0:
                return

    async def _segment_of(self, log: str, after: int) -> str:
        """A segment from which on every record after this sequence is found; "" for the first.

        A segment is named by the start of the previous one, so the last segment named before the record may already
        follow the record's own segment. One step further back is safe.
        """
        folder = self._keys.log(log)
        name = f"{after >> INDEX_BITS:0{_DIGITS}x}"
        for _ in range(2):
            request = wire.RangeRequest(
                key=folder,
                range_end=self._keys.log(log, name),
                limit=1,
                keys_only=True,
                sort_order=wire.DESCEND,
                sort_target=wire.BY_KEY,
            )
            response = await self._calls.read("Range", request)
            if not response.kvs:
                return ""
            name = _segment_name(folder, response.kvs[0].key)
        return name

    async def _segments(
        self, log: str, first: str, *, keys_only: bool = False, at: int = 0
    ) -> AsyncIterator[tuple[str, list[Any]]]:
        """Every segment from `first` on, oldest first, with all its records; `at` an etcd revision, or now."""
        folder = self._keys.log(log)
        low = self._keys.log(log, first) if first else folder
        end = prefix_end(folder)
        held: list[Any] = []
        name = ""
        while True:
            page = wire.read(low, end, limit=ETCD_PAGE_KEYS, revision=at, keys_only=keys_only)
            response = await self._calls.read("Range", page)
            for pair in response.kvs:
                own = _segment_name(folder, pair.key)
                if own != name and held:
                    yield name, held
                    held = []
                name = own
                held.append(pair)
            if not response.more:
                break
            low = response.kvs[-1].key + b"\0"
        if held:
            yield name, held


def _record(pair: Any) -> LogRecord:
    place = int.from_bytes(pair.value[:2], "big")
    return LogRecord(pair.mod_revision << INDEX_BITS | place, pair.value[2:])


def _segment_name(folder: bytes, key: bytes) -> str:
    name: str = key[len(folder) :].partition(b"/")[0].decode()
    return name


def _range_of(folder: bytes) -> tuple[bytes, bytes]:
    return folder, prefix_end(folder)
