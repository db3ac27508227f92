"""Follows a cell in etcd by one ordered watch, and publishes every commit whole.

What always holds: commits are published in order, each once, none skipped. Where a gap cannot be closed, as etcd has
compacted it, `floor` says so and every watch from before ends with `Expired`. A member that falls silent, or that has
lost its leader, is left for another one; nothing is published twice, as the watch resumes behind what was published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import structlog

from holdfast.model import limits
from holdfast.model.errors import Expired, Fault, Retryable, StoreFailed, Unavailable
from holdfast.store.contract import Change, Entry
from holdfast.store.etcd import faults, wire
from holdfast.store.etcd.calls import Calls
from holdfast.store.etcd.keys import Keys, main_of, revision_of

_log = structlog.get_logger()

Attached = Callable[[str, bytes], Any]
"""The object that this process has in hand for a value it just wrote; None for anyone else's."""


class Commit:
    """The events of one transaction: the changes of objects, and of the cell's own facts."""

    def __init__(self, main: int) -> None:
        self.main = main
        self.changes: list[Change] = []
        self.facts: dict[bytes, Any] = {}
        """Fact → its key-value as it is now; None where it was deleted."""


def commits_of(keys: Keys, events: Sequence[Any], attached: Attached = lambda key, value: None) -> list[Commit]:
    """Events as commits, in order. The place of a change is its position among its transaction's objects."""
    found: list[Commit] = []
    for event in events:
        pair = event.kv
        if not found or found[-1].main != pair.mod_revision:
            found.append(Commit(pair.mod_revision))
        commit = found[-1]
        gone = event.type == wire.DELETED
        if not keys.is_data(pair.key):
            commit.facts[pair.key] = None if gone else pair
            continue
        revision = revision_of(commit.main, len(commit.changes))
        previous = keys.entry(event.prev_kv) if event.HasField("prev_kv") else None
        entry: Entry | None = None
        if not gone:
            entry = keys.entry(pair)
            if entry.revision != revision:
                raise StoreFailed(
                    f"{entry.key} at etcd's revision {commit.main} is not where Holdfast would have written it: "
                    "something else writes under this cell's prefix; stop it, then restart"
                )
            own = attached(entry.key, entry.value)
            if own is not None:
                entry = Entry(entry.key, entry.value, entry.revision, entry.created, own)
        commit.changes.append(Change(keys.key(pair.key), revision, entry, previous))
    return found


class Tail:
    def __init__(
        self,
        calls: Calls,
        keys: Keys,
        head: int,
        main: int,
        *,
        publish: Callable[[Commit], None],
        read_head: Callable[[], Awaitable[tuple[int, int]]],
        attached: Attached,
    ) -> None:
        """`read_head` answers the cell's head and the revision of etcd's that it was read at, linearizably.

        `head` was the cell's at etcd's revision `main`.
        """
        self.head = head
        self._main = main
        self.floor = 0
        """Changes at or before it that were not published are lost to watches."""
        self._calls = calls
        self._keys = keys
        self._publish = publish
        self._read_head = read_head
        self._attached = attached
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """A commit is durable and was not seen here for too long: the member that is watched lags."""
        self._nudged.set()

    async def run(self) -> None:
        """Until a fault that no other member can cure; raises it."""
        pause_s = limits.BACKOFF_FIRST_S
        while True:
            before = self.head
            try:
                await self._follow()
            except Expired:
                await self._jump()
            except Retryable as fault:
                _log.info("etcd_watch_interrupted", reason=fault.message, revision=self.head)
                pause_s = limits.BACKOFF_FIRST_S if self.head > before else min(pause_s * 2, limits.RECONNECT_MAX_S)
                await asyncio.sleep(pause_s)

    async def _follow(self) -> None:
        head, main = await self._read_head()
        if head < self.head:
            raise StoreFailed(
                f"this cell's head in etcd went back from {self.head} to {head}: its data was wiped or restored under "
                "it; nothing more is written. Use `holdfast restore`"
            )
        # Where nothing was missed it starts behind what etcd has by now, however long ago the last commit was.
        if head == self.head:
            self._main = main
        self._nudged.clear()
        stream, address = await self._calls.watch()
        low, high = self._keys.watched
        created = wire.WatchCreateRequest(key=low, range_end=high, start_revision=self._main + 1, prev_kv=True)
        try:
            await stream.write(wire.WatchRequest(create_request=created))
            await self._read(stream, address)
        except grpc.aio.AioRpcError as error:
            self._calls.leave(address)
            if faults.wants_login(error):
                await self._calls.login_again()
            raise faults.definite(error, address) or faults.unanswered(error, address) from error
        except asyncio.InvalidStateError as error:
            self._calls.leave(address)
            raise Unavailable(f"the watch on etcd at {address} has ended") from error
        finally:
            stream.cancel()

    async def _read(self, stream: Any, address: str) -> None:
        """Reads until the stream ends; asks for a sign of life when it is quiet."""
        loop = asyncio.get_running_loop()
        reading: asyncio.Task[Any] = asyncio.ensure_future(stream.read())
        nudged = asyncio.ensure_future(self._nudged.wait())
        heard = loop.time()
        try:
            while True:
                await asyncio.wait(
                    {reading, nudged}, timeout=limits.ETCD_PROBE_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
                if reading.done():
                    answer = reading.result()
                    if answer is grpc.aio.EOF:
                        self._calls.leave(address)
                        raise Unavailable(f"etcd at {address} ended the watch")
                    heard = loop.time()
                    self._take(answer, address)
                    reading = asyncio.ensure_future(stream.read())
                    continue
                if nudged.done() or loop.time() - heard > limits.ETCD_SILENCE_S:
                    self._calls.leave(address)
                    raise Unavailable(f"the watch on etcd at {address} lags or is silent")
                await stream.write(wire.WatchRequest(progress_request=wire.WatchProgressRequest()))
        finally:
            for task in (reading, nudged):
                task.cancel()
            await asyncio.gather(reading, nudged, return_exceptions=True)

    def _take(self, answer: Any, address: str) -> None:
        self._calls.see(answer.header)
        if answer.canceled:
            if answer.compact_revision:
                raise Expired(f"etcd has compacted up to {answer.compact_revision}")
            if "permission denied" in answer.cancel_reason:
                raise StoreFailed(
                    f"etcd at {address} refuses the watch: {answer.cancel_reason}; grant the user the prefix"
                )
            raise Unavailable(f"etcd at {address} cancelled the watch: {answer.cancel_reason}")
        for commit in commits_of(self._keys, answer.events, self._attached):
            if commit.changes and commit.changes[-1].revision <= self.head:
                continue
            self._check(commit)
            self._main = commit.main
            if commit.changes:
                self.head = commit.changes[-1].revision
            self._publish(commit)

    def _check(self, commit: Commit) -> None:
        """Every commit of ours writes the head last; whatever does not is not ours."""
        keys = self._keys
        if any(key in commit.facts and commit.facts[key] is None for key in (keys.head, keys.identity)):
            raise StoreFailed(
                "this cell's data in etcd was deleted under it: nothing more is written. Use `holdfast restore`"
            )
        mark = commit.facts.get(keys.head)
        if commit.changes and (mark is None or int(mark.value) != len(commit.changes)):
            changed = commit.changes[0].key
            raise StoreFailed(
                f"{changed} was changed in etcd at revision {commit.main} by something other than Holdfast: stop it, "
                "then restart this process"
            )

    async def _jump(self) -> None:
        """What was missed is compacted: everyone lists again from here."""
        head, self._main = await self._read_head()
        _log.warning("etcd_watch_expired", was=self.head, now=head)
        self.head = self.floor = max(head, self.head)
        self._publish(Commit(main_of(head)))


async def past_commits(calls: Calls, keys: Keys, main: int, through: int) -> list[Commit]:
    """The commits from a revision of etcd's on, up to `through` or as many as one item of a watch may hold."""
    stream, address = await calls.watch()
    low, high = keys.watched
    found: list[Commit] = []
    changes = 0
    created = wire.WatchCreateRequest(key=low, range_end=high, start_revision=main, prev_kv=True)
    try:
        async with asyncio.timeout(limits.ETCD_CALL_S):
            await stream.write(wire.WatchRequest(create_request=created))
            while changes < limits.WATCH_CHUNK_EVENTS and (not found or found[-1].main < through):
                answer = await stream.read()
                if answer is grpc.aio.EOF:
                    raise Unavailable(f"etcd at {address} ended the watch")
                if answer.canceled:
                    if answer.compact_revision:
                        raise Expired(
                            f"history is compacted up to {revision_of(answer.compact_revision, 0)}: list again"
                        )
                    raise Unavailable(f"etcd at {address} cancelled the watch: {answer.cancel_reason}")
                made = commits_of(keys, answer.events)
                found += made
                changes += sum(len(commit.changes) for commit in made)
    except TimeoutError:
        calls.leave(address)
        raise Unavailable(f"etcd at {address} did not deliver its history in time") from None
    except grpc.aio.AioRpcError as error:
        calls.leave(address)
        fault: Fault = faults.definite(error, address) or faults.unanswered(error, address)
        raise fault from error
    finally:
        stream.cancel()
    return [commit for commit in found if commit.main <= through]
