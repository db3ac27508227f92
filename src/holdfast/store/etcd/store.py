"""A cell's store on an etcd cluster, shared by any number of processes.

Reads of the newest state and commits are linearizable: they go to etcd, and they return only after this process has
seen by its own watch everything they depend on, so `head`, reads and watches advance together. Reads of the past and
watches use etcd's history, back to the compacted revision.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any

import structlog

from holdfast.foundation import metrics
from holdfast.model import limits
from holdfast.model.errors import Ambiguous, BadRequest, Conflict, Expired, Fault, StoreFailed, Unavailable
from holdfast.store.contract import Change, Committed, LogRecord, StoredEntry, StorePage, Txn, compare_conflict
from holdfast.store.etcd import identity, wire
from holdfast.store.etcd.calls import ETCD_PAGE_KEYS, EtcdCalls
from holdfast.store.etcd.identity import DataMark, DataMarkFile
from holdfast.store.etcd.keys import LAST_INDEX, EtcdKeys
from holdfast.store.etcd.logs import EtcdLogs
from holdfast.store.etcd.tail import EtcdCommit, EtcdTail, past_commits
from holdfast.store.etcd.target import EtcdTarget
from holdfast.store.etcd.transaction import ETCD_TXN_RESERVE, EtcdTransaction
from holdfast.store.feed import WATCH_RING_EVENTS, Feed, Watch

# Time for a commit to appear in this server's watch. After that, the watch moves to another member.
ETCD_PUBLISH_TIMEOUT_S = 3.0
# Interval at which the newest revision is noted in a file beside the process. A wiped cluster is detected by it.
ETCD_MARKER_EVERY_S = 5.0

_log = structlog.get_logger()


class EtcdStore:
    """Created by `open_store`. Used from one event loop only."""

    def __init__(
        self, cell: str, calls: EtcdCalls, keys: EtcdKeys, mark: DataMark, *, born: int, main: int, file: DataMarkFile
    ) -> None:
        """`mark.head` was the cell's head at etcd revision `main`; no key of the cell is older than `born`."""
        self._first_revision = born
        self.cell = cell
        self.max_writes = calls.target.operations - ETCD_TXN_RESERVE
        self._calls = calls
        self._keys = keys
        self._mark = mark
        self._file = file
        self._logs = EtcdLogs(calls, keys, uuid.uuid4().hex[:12])
        self._feed = Feed(mark.head, WATCH_RING_EVENTS)
        self._tail = EtcdTail(
            calls, keys, mark.head, main, publish=self._publish, read_head=self._read_head, attached=self._attached
        )
        self._compacted = 0
        self._pending_values: dict[str, tuple[bytes, Any]] = {}
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: Fault | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # The contract

    @property
    def head(self) -> int:
        return self._tail.head

    @property
    def compacted(self) -> int:
        return self._compacted

    def revision_back(self, changes: int) -> int:
        """Counted in etcd revisions, so that all cells of a cluster compact about the same past."""
        return max(0, self._keys.revision_of(self._keys.etcd_revision_of(self.head) - changes, LAST_INDEX))

    async def newest_revision(self) -> int:
        head, _ = await self._read_head()
        await self._wait_published(head)
        return head

    async def get(self, key: str, *, at: int | None = None) -> StoredEntry | None:
        if at is not None:
            page = await self._past(self._keys.data(key), b"", at, 1)
            return next((entry for entry in page.entries if entry.key == key), None)
        found, head, _ = await self._read_now(self._keys.data(key), b"", 1)
        await self._wait_published(head)
        return self._keys.entry(found.kvs[0]) if found.kvs else None

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> StorePage:
        low, high = self._keys.data_range(prefix, after)
        if at is not None:
            return await self._past(low, high, at, limit)
        first, head, main = await self._read_now(low, high, limit or ETCD_PAGE_KEYS)
        entries = [self._keys.entry(pair) for pair in first.kvs]
        more = first.more
        while more and not limit:
            rest = await self._calls.read(
                "Range", wire.read(self._keys.data(f"{entries[-1].key}\0"), high, limit=ETCD_PAGE_KEYS, revision=main)
            )
            entries += map(self._keys.entry, rest.kvs)
            more = rest.more
        await self._wait_published(head)
        return StorePage(tuple(entries), head, bool(limit) and more)

    async def commit(self, txn: Txn) -> Committed:
        self._check()
        self._in_flight += 1
        self._idle.clear()
        try:
            return await self._commit(txn)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        return Watch(self._feed, prefix, after, lambda: max(self._compacted, self._tail.floor), self._past_changes)

    async def compact(self, revision: int) -> None:
        self._check()
        if revision > self.head:
            raise BadRequest(f"revision {revision}: cannot be compacted (newest revision {self.head})")
        if revision <= self._compacted:
            return
        await self._calls.write(
            "Txn", wire.TxnRequest(success=[wire.put_op(self._keys.compacted, str(revision).encode())])
        )
        self._compacted = max(self._compacted, revision)
        metrics.STORE_COMPACTED.set(self._compacted)
        self._feed.wake()
        # A commit that is only partly compacted must stay complete in etcd.
        head = await self._head_at(self._keys.etcd_revision_of(revision))
        main = self._keys.etcd_revision_of(revision) if revision >= head else self._keys.etcd_revision_of(revision) - 1
        if main >= self._first_revision:
            # Another process, or etcd itself, may have compacted further already.
            with contextlib.suppress(Expired):
                await self._calls.write("Compact", wire.CompactionRequest(revision=main))
        _log.info("history_compacted", cell=self.cell, revision=revision)

    async def refuse_past(self) -> None:
        """Makes every watch from before now list again, without discarding history. For a restore: a reader of an
        earlier era would otherwise keep objects that the restored cell never had."""
        self._check()
        put = wire.put_op(self._keys.compacted, str(self.head).encode())
        await self._calls.write("Txn", wire.TxnRequest(success=[put]))
        self._compacted = max(self._compacted, self.head)

    @property
    def log_position(self) -> int:
        return self._logs.position

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]:
        self._check()
        return await self._logs.read(log, after, limit)

    async def trim_log(self, log: str, *, keep: int) -> None:
        self._check()
        await self._logs.trim(log, keep)

    async def close(self) -> None:
        """Waits for commits in flight, then disconnects from the cluster."""
        if isinstance(self._failure, Unavailable):
            return
        closed = Unavailable(f"the store of cell {self.cell} is closed")
        stopped, self._failure = self._failure, self._failure or closed
        if stopped is None:
            await self._idle.wait()
            self._save_mark()
        await self._logs.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._calls.close()
        self._feed.fail(self._failure)
        self._failure = closed

    # Lifecycle

    async def start(self) -> None:
        for pair in (await self._calls.read("Range", wire.read(self._keys.compacted))).kvs:
            self._compacted = int(pair.value)
        await self._logs.refresh()
        self._save_mark()
        for name, work in (("etcd watch", self._run_tail()), ("etcd mark", self._keep_mark())):
            self._tasks.append(asyncio.create_task(work, name=f"{name} {self.cell}"))

    async def _run_tail(self) -> None:
        try:
            await self._tail.run()
        except Fault as fault:
            self._fail(fault)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log.exception("etcd_watch_failed", cell=self.cell)
            self._fail(StoreFailed(f"store of cell {self.cell}: the etcd watch crashed ({error})"))

    async def _keep_mark(self) -> None:
        """Saves the cell's newest revision on local disk, so that a wiped cluster is detected at the next start."""
        while True:
            await asyncio.sleep(ETCD_MARKER_EVERY_S)
            self._save_mark()

    def _save_mark(self) -> None:
        if self.head > self._mark.head or self._mark.head == 0:
            self._mark = DataMark(self._mark.cluster, self._mark.identity, self.head)
        try:
            self._file.write(self._mark)
        except OSError as error:
            _log.warning("etcd_mark_write_failed", path=self._file.path, reason=str(error))

    def _fail(self, fault: Fault) -> None:
        if self._failure is None:
            self._failure = fault
            _log.error("store_stopped", cell=self.cell, error=fault.message, commits_unknown=self._in_flight)
            self._feed.fail(fault)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Writes

    async def _commit(self, txn: Txn) -> Committed:
        draft = EtcdTransaction(self._keys, txn, self.max_writes)
        before = self.head
        for _ in range(limits.COMMIT_ROUNDS_MAX):
            await self._look_up_removals(draft)
            compares, puts = self._logs.operations(txn.appends)
            request = draft.request(compares, puts)
            for write in draft.puts:
                self._pending_values[write.key] = (write.value, write.attached)
            try:
                reply = await self._stop_on_failure(self._calls.write("Txn", request))
            finally:
                for write in draft.puts:
                    self._pending_values.pop(write.key, None)
            if reply.succeeded:
                return await self._committed(draft, reply, len(txn.appends), before)
            await self._raise_conflict(draft, reply)
            if txn.appends:
                await self._logs.refresh()
        raise Conflict(f"commit: concurrent changes won all {limits.COMMIT_ROUNDS_MAX} attempts; next: retry")

    async def _committed(self, draft: EtcdTransaction, reply: Any, records: int, before: int) -> Committed:
        if records:
            self._logs.note_appended(records)
        if not draft.changes:
            head = self._keys.head_revision(reply.responses[0].response_range.kvs)
            await self._wait_published(head)
            return Committed(head, draft.revisions(0, head))
        main = reply.header.revision
        revisions = draft.revisions(main, before)
        await self._wait_published(self._keys.revision_of(main, draft.changes - 1))
        metrics.STORE_COMMITS.inc()
        metrics.STORE_KEY_WRITES.inc(draft.changes)
        return Committed(revisions[-1], revisions)

    async def _raise_conflict(self, draft: EtcdTransaction, reply: Any) -> None:
        """Raises Conflict if a compare of the caller failed; returns if only one of our own compares did."""
        found = [response.response_range for response in reply.responses]
        for compare, now in zip(draft.compares, found, strict=False):
            if (now.kvs[0].mod_revision if now.kvs else 0) == self._keys.expected_etcd_revision(compare):
                continue
            metrics.STORE_CONFLICTS.inc()
            # Read again for its index; this also waits until the winning commit is visible here.
            entry = await self.get(compare.key)
            raise compare_conflict(compare, entry.revision if entry is not None else 0)
        draft.clear_removals()

    async def _look_up_removals(self, draft: EtcdTransaction) -> None:
        """Looks up which keys to remove exist: only those get a revision, so it must be known before the commit."""
        unknown = draft.unknown_removals()
        if not unknown:
            return
        reads = [wire.read_op(self._keys.data(key), keys_only=True) for key in unknown]
        reply = await self._stop_on_failure(self._calls.read("Txn", wire.TxnRequest(success=reads)))
        for key, response in zip(unknown, reply.responses, strict=True):
            pairs = response.response_range.kvs
            draft.set_removal(key, pairs[0].mod_revision if pairs else 0)

    def _attached(self, key: str, value: bytes) -> Any:
        held = self._pending_values.get(key)
        return held[1] if held is not None and held[0] == value else None

    # Reads

    async def _read_now(self, low: bytes, high: bytes, limit: int) -> tuple[Any, int, int]:
        """Keys from one linearizable read, the cell's head at that moment, and the etcd revision of both.

        Two reads rather than one transaction, because an etcd that is out of space refuses every transaction.
        """
        for _ in range(limits.READ_ATTEMPTS):
            self._check()
            found = await self._stop_on_failure(self._calls.read("Range", wire.read(low, high, limit=limit)))
            main = found.header.revision
            # That revision may have been compacted in the meantime; then read again.
            with contextlib.suppress(Expired):
                return found, await self._head_at(main), main
        raise Unavailable("etcd: every revision read was compacted at once; next: retry")

    async def _read_head(self) -> tuple[int, int]:
        reply = await self._stop_on_failure(self._calls.read("Range", wire.read(self._keys.head)))
        return self._keys.head_revision(reply.kvs), reply.header.revision

    async def _head_at(self, main: int) -> int:
        """The cell's newest revision as of an etcd revision."""
        if main < self._first_revision:
            return 0
        reply = await self._stop_on_failure(self._calls.read("Range", wire.read(self._keys.head, revision=main)))
        return self._keys.head_revision(reply.kvs)

    async def _past(self, low: bytes, high: bytes, at: int, limit: int) -> StorePage:
        self._check()
        if at > self.head and at > await self.newest_revision():
            raise BadRequest(f"revision {at}: in the future (newest revision {self.head})")
        self._check_past(at)
        main = self._keys.etcd_revision_of(at)
        if main < self._first_revision:
            return StorePage((), at, False)
        undone = await self._undone(at)
        start = low
        # Each undone key may replace a key that was read, or add one.
        wanted = limit + len(undone) + 1 if limit else 0
        entries: dict[str, StoredEntry] = {}
        more = True
        while more and (not wanted or len(entries) < wanted):
            size = min(wanted - len(entries), ETCD_PAGE_KEYS) if wanted else ETCD_PAGE_KEYS
            reply = await self._stop_on_failure(
                self._calls.read("Range", wire.read(low, high, limit=size if high else 0, revision=main))
            )
            for pair in reply.kvs:
                entry = self._keys.entry(pair)
                entries[entry.key] = entry
            more = reply.more
            if more:
                low = reply.kvs[-1].key + b"\0"
        last = max(entries) if entries and more else None
        for key, before in undone.items():
            raw = self._keys.data(key)
            if not (start <= raw < high if high else raw == start):
                continue
            if last is not None and key > last:
                continue
            entries.pop(key, None)
            if before is not None:
                entries[key] = before
        self._check_past(at)
        found = tuple(entries[key] for key in sorted(entries))
        chosen = found[:limit] if limit else found
        return StorePage(chosen, at, len(found) > len(chosen) or more)

    async def _undone(self, at: int) -> dict[str, StoredEntry | None]:
        """Values replaced by later changes of the commit that contains `at`: etcd can be read only after whole
        commits.
        """
        main = self._keys.etcd_revision_of(at)
        if await self._head_at(main) <= at:
            return {}
        await self._head_at(main - 1)  # raises Expired if this commit is partly compacted
        undone: dict[str, StoredEntry | None] = {}
        for commit in await self._stop_on_failure(past_commits(self._calls, self._keys, main, main)):
            for change in commit.changes:
                if change.revision > at:
                    undone[change.key] = change.previous
        return undone

    async def _past_changes(self, after: int) -> Sequence[Change]:
        """Whole commits after a revision that the feed has dropped."""
        through = self._keys.etcd_revision_of(self._feed.floor)
        main = max(self._keys.etcd_revision_of(after), self._first_revision - 1)
        if after >= await self._head_at(main):
            main += 1
        else:
            await self._head_at(main - 1)  # raises Expired if this commit is partly compacted
        if main > through:
            return ()
        commits = await self._stop_on_failure(past_commits(self._calls, self._keys, main, through))
        return [change for commit in commits for change in commit.changes if change.revision > after]

    async def _stop_on_failure(self, call: Awaitable[Any]) -> Any:
        """The response to a call. A fault that means that the data is no longer ours stops the store."""
        try:
            reply = await call
        except StoreFailed as fault:
            self._fail(fault)
            raise
        if isinstance(self._failure, StoreFailed):
            raise self._failure
        return reply

    def _check_past(self, at: int) -> None:
        if at < self._compacted:
            raise Expired(f"revision {at}: compacted (oldest available {self._compacted}); next: list again")

    # Publication

    async def _wait_published(self, revision: int) -> None:
        """Returns when this process has published the revision, which is durable already.

        If the watched member lags, another one is watched. If none can be followed for long, raises `Ambiguous`: the
        commit happened but is not visible here yet.
        """
        loop = asyncio.get_running_loop()
        patience = loop.time() + ETCD_PUBLISH_TIMEOUT_S
        deadline = loop.time() + limits.COMMIT_DEADLINE_S
        while self.head < revision:
            self._feed.check()
            if loop.time() >= deadline:
                raise Ambiguous(f"revision {revision}: durable in etcd, but not visible here yet; next: read back")
            try:
                # Not `wait_for`: its task would start to wait only after the change may have arrived.
                async with asyncio.timeout_at(patience):
                    await self._feed.changed()
            except TimeoutError:
                self._tail.nudge()
                patience = loop.time() + ETCD_PUBLISH_TIMEOUT_S

    def _publish(self, commit: EtcdCommit) -> None:
        keys = self._keys
        for key, pair in commit.facts.items():
            if pair is None:
                continue
            if key == keys.log_segment:
                self._logs.observe(pair)
            elif key == keys.compacted:
                self._compacted = max(self._compacted, int(pair.value))
        self._feed.append(commit.changes)
        self._feed.wake()


async def open_store(cell: str, target: EtcdTarget, folder: Path | None = None, *, above: int = 0) -> EtcdStore:
    """Opens a cell's store. Refuses a cluster or data that differs from what `folder` remembers. The revisions of a new
    store are above `above`."""
    calls = EtcdCalls(target, first=zlib.crc32(cell.encode()))
    keys = EtcdKeys(cell)
    file = DataMarkFile(folder)
    try:
        version = await calls.open()
        await identity.read_base(calls, keys)
        known = file.read()
        if known is not None:
            held = await calls.read("Range", wire.read(keys.identity))
            now_identity = held.kvs[0].value.decode() if held.kvs else "gone"
            now = DataMark(f"{calls.cluster_id:x}", now_identity, (await _head(calls, keys))[0])
            identity.check_mark(known, now, file)
        own, born = await identity.establish_identity(calls, keys, above)
        head, main = await _head(calls, keys)
        mark = DataMark(f"{calls.cluster_id:x}", own, head)
        store = EtcdStore(cell, calls, keys, mark, born=born, main=main, file=file)
        await store.start()
    except BaseException:
        await calls.close()
        raise
    _log.info(
        "etcd_opened", cell=cell, version=version, cluster=mark.cluster, endpoints=calls.addresses, head=mark.head
    )
    return store


async def erase(cell: str, target: EtcdTarget) -> None:
    """Deletes a cell's data. Processes that still run on it detect this and stop."""
    calls = EtcdCalls(target)
    keys = EtcdKeys(cell)
    try:
        await calls.open()
        await calls.write("DeleteRange", wire.DeleteRangeRequest(key=keys.root, range_end=keys.root_end))
    finally:
        await calls.close()


async def _head(calls: EtcdCalls, keys: EtcdKeys) -> tuple[int, int]:
    reply = await calls.read("Range", wire.read(keys.head))
    return keys.head_revision(reply.kvs), reply.header.revision
