"""Follows a cell in etcd with one ordered watch and publishes every commit as a whole.

Commits are published in order, each once, none skipped. If etcd has compacted a gap, `floor` is raised and every watch
from before it ends with `Expired`. A member that falls silent or has lost its leader is replaced by another; the watch
resumes after the last published commit, so nothing is published twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import structlog

from holdfast.model import limits
from holdfast.model.errors import Expired, Fault, Retryable, StoreFailed, Unavailable
from holdfast.store.contract import Change, StoredEntry
from holdfast.store.etcd import faults, wire
from holdfast.store.etcd.calls import ETCD_CALL_TIMEOUT_S, EtcdCalls
from holdfast.store.etcd.keys import EtcdKeys
from holdfast.store.feed import WATCH_CHUNK_EVENTS

# Interval at which the watch on etcd requests progress while it is silent.
ETCD_PROBE_EVERY_S = 5.0
# Maximum silence of the watch on etcd. After that, it moves to another member. Two progress requests fit into it.
ETCD_WATCH_SILENCE_MAX_S = 12.0

_log = structlog.get_logger()

AttachedLookup = Callable[[str, bytes], Any]
"""Returns the decoded object of a value that this process just wrote; None for other writers' values."""


class EtcdCommit:
    """The events of one transaction: changes of objects, and of the cell's own keys."""

    def __init__(self, main: int) -> None:
        self.main = main
        self.changes: list[Change] = []
        self.facts: dict[bytes, Any] = {}
        """Cell key → its new key-value; None if it was deleted."""


def group_commits(
    keys: EtcdKeys, events: Sequence[Any], attached: AttachedLookup = lambda key, value: None
) -> list[EtcdCommit]:
    """Groups events into commits, in order. The index of a change is its position among its transaction's objects."""
    found: list[EtcdCommit] = []
    for event in events:
        pair = event.kv
        if not found or found[-1].main != pair.mod_revision:
            found.append(EtcdCommit(pair.mod_revision))
        commit = found[-1]
        gone = event.type == wire.DELETED
        if not keys.is_data(pair.key):
            commit.facts[pair.key] = None if gone else pair
            continue
        revision = keys.revision_of(commit.main, len(commit.changes))
        previous = keys.entry(event.prev_kv) if event.HasField("prev_kv") else None
        entry: StoredEntry | None = None
        if not gone:
            entry = keys.entry(pair)
            if entry.revision != revision:
                raise StoreFailed(
                    f"etcd key {entry.key}: written by another program at etcd revision {commit.main}; next: stop that "
                    "program, then restart this process"
                )
            own = attached(entry.key, entry.value)
            if own is not None:
                entry = StoredEntry(entry.key, entry.value, entry.revision, entry.created, own)
        commit.changes.append(Change(keys.key(pair.key), revision, entry, previous))
    return found


class EtcdTail:
    def __init__(
        self,
        calls: EtcdCalls,
        keys: EtcdKeys,
        head: int,
        main: int,
        *,
        publish: Callable[[EtcdCommit], None],
        read_head: Callable[[], Awaitable[tuple[int, int]]],
        attached: AttachedLookup,
    ) -> None:
        """`head` was the cell's head at etcd revision `main`. `read_head` returns both from a linearizable read."""
        self.head = head
        self._main = main
        self.floor = 0
        """Unpublished changes at or before it are lost to watches."""
        self._calls = calls
        self._keys = keys
        self._publish = publish
        self._read_head = read_head
        self._attached = attached
        self._lagging = asyncio.Event()

    def nudge(self) -> None:
        """A durable commit was not seen here for too long: the watched member lags."""
        self._lagging.set()

    async def run(self) -> None:
        """Runs until a fault that no other member can resolve, and raises it."""
        pause_s = limits.BACKOFF_FIRST_S
        while True:
            before = self.head
            try:
                await self._follow()
            except Expired:
                await self._skip_gap()
            except Retryable as fault:
                _log.info("etcd_watch_interrupted", reason=fault.message, revision=self.head)
                pause_s = limits.BACKOFF_FIRST_S if self.head > before else min(pause_s * 2, limits.RECONNECT_MAX_S)
                await asyncio.sleep(pause_s)

    async def _follow(self) -> None:
        head, main = await self._read_head()
        if head < self.head:
            raise StoreFailed(
                f"etcd: the cell's data was wiped or restored, so the cell stopped writing (expected revision "
                f"{self.head} or newer, found {head}); next: holdfast restore"
            )
        # If nothing was missed, the watch starts at etcd's present revision, however old the last commit is.
        if head == self.head:
            self._main = main
        self._lagging.clear()
        stream, address = await self._calls.watch()
        low, high = self._keys.watched
        created = wire.WatchCreateRequest(key=low, range_end=high, start_revision=self._main + 1, prev_kv=True)
        try:
            await stream.write(wire.WatchRequest(create_request=created))
            await self._read(stream, address)
        except grpc.aio.AioRpcError as error:
            self._calls.next_member(address)
            if faults.needs_login(error):
                await self._calls.login_again()
            raise faults.definite_fault(error, address) or faults.unavailable_fault(error, address) from error
        except asyncio.InvalidStateError as error:
            self._calls.next_member(address)
            raise Unavailable(f"etcd at {address}: the watch ended") from error
        finally:
            stream.cancel()

    async def _read(self, stream: Any, address: str) -> None:
        """Reads until the stream ends. Requests progress when it is quiet."""
        loop = asyncio.get_running_loop()
        reading: asyncio.Task[Any] = asyncio.ensure_future(stream.read())
        nudged = asyncio.ensure_future(self._lagging.wait())
        last_response_s = loop.time()
        try:
            while True:
                await asyncio.wait({reading, nudged}, timeout=ETCD_PROBE_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    response = reading.result()
                    if response is grpc.aio.EOF:
                        self._calls.next_member(address)
                        raise Unavailable(f"etcd at {address}: the watch ended")
                    last_response_s = loop.time()
                    self._apply_response(response, address)
                    reading = asyncio.ensure_future(stream.read())
                    continue
                if nudged.done() or loop.time() - last_response_s > ETCD_WATCH_SILENCE_MAX_S:
                    self._calls.next_member(address)
                    raise Unavailable(f"etcd at {address}: the watch lags or is silent")
                await stream.write(wire.WatchRequest(progress_request=wire.WatchProgressRequest()))
        finally:
            for task in (reading, nudged):
                task.cancel()
            await asyncio.gather(reading, nudged, return_exceptions=True)

    def _apply_response(self, response: Any, address: str) -> None:
        self._calls.check_cluster(response.header)
        if response.canceled:
            if response.compact_revision:
                raise Expired(f"etcd: compacted up to revision {response.compact_revision}")
            if "permission denied" in response.cancel_reason:
                raise StoreFailed(
                    f"etcd at {address}: watch refused ({response.cancel_reason}); "
                    "next: grant the user the cell's prefix"
                )
            raise Unavailable(f"etcd at {address}: watch cancelled ({response.cancel_reason})")
        for commit in group_commits(self._keys, response.events, self._attached):
            if commit.changes and commit.changes[-1].revision <= self.head:
                continue
            self._check_commit(commit)
            self._main = commit.main
            if commit.changes:
                self.head = commit.changes[-1].revision
            self._publish(commit)

    def _check_commit(self, commit: EtcdCommit) -> None:
        """Every commit of a cell writes the head key; a change without it was made by another program."""
        keys = self._keys
        if any(key in commit.facts and commit.facts[key] is None for key in (keys.head, keys.identity)):
            raise StoreFailed("etcd: the cell's data was deleted, so the cell stopped writing; next: holdfast restore")
        mark = commit.facts.get(keys.head)
        if commit.changes and (mark is None or int(mark.value) != len(commit.changes)):
            changed = commit.changes[0].key
            raise StoreFailed(
                f"etcd key {changed}: written by another program at etcd revision {commit.main}; next: stop that "
                "program, then restart this process"
            )

    async def _skip_gap(self) -> None:
        """The missed changes are compacted: every watch must list again from here."""
        head, self._main = await self._read_head()
        _log.warning("etcd_watch_expired", was=self.head, now=head)
        self.head = self.floor = max(head, self.head)
        self._publish(EtcdCommit(self._keys.etcd_revision_of(head)))


async def past_commits(calls: EtcdCalls, keys: EtcdKeys, main: int, through: int) -> list[EtcdCommit]:
    """The commits from an etcd revision on, up to `through` or as many as one watch item may hold."""
    stream, address = await calls.watch()
    low, high = keys.watched
    found: list[EtcdCommit] = []
    changes = 0
    created = wire.WatchCreateRequest(key=low, range_end=high, start_revision=main, prev_kv=True)
    try:
        async with asyncio.timeout(ETCD_CALL_TIMEOUT_S):
            await stream.write(wire.WatchRequest(create_request=created))
            while changes < WATCH_CHUNK_EVENTS and (not found or found[-1].main < through):
                response = await stream.read()
                if response is grpc.aio.EOF:
                    raise Unavailable(f"etcd at {address}: the watch ended")
                if response.canceled:
                    if response.compact_revision:
                        oldest = keys.revision_of(response.compact_revision, 0)
                        raise Expired(f"history: compacted up to {oldest}; next: list again")
                    raise Unavailable(f"etcd at {address}: watch cancelled ({response.cancel_reason})")
                made = group_commits(keys, response.events)
                found += made
                changes += sum(len(commit.changes) for commit in made)
    except TimeoutError:
        calls.next_member(address)
        raise Unavailable(f"etcd at {address}: no past changes received within {ETCD_CALL_TIMEOUT_S:g} s") from None
    except grpc.aio.AioRpcError as error:
        calls.next_member(address)
        fault: Fault = faults.definite_fault(error, address) or faults.unavailable_fault(error, address)
        raise fault from error
    finally:
        stream.cancel()
    return [commit for commit in found if commit.main <= through]
