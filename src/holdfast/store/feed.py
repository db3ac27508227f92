"""Recent commits in order, the watches that follow them, and the readers that are told at once.

A watch holds no queue of its own, only a revision: it reads on from there in the recent commits, and in history where
it is further back. So a slow watcher costs no memory, and a watch that was cancelled while it waited can be resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

from holdfast.model import limits
from holdfast.model.errors import BadRequest, Expired, Fault
from holdfast.store.contract import Change
from holdfast.store.ring import Ring

Batch = Sequence[Change]
"""All changes of one commit."""

Told = Callable[[Batch], None]
Failed = Callable[[Fault], None]


@runtime_checkable
class Publishes(Protocol):
    """A store in this process: it tells its subscribers of a commit before the committer hears that it is done."""

    def subscribe(self, told: Told, failed: Failed, *, after: int) -> Callable[[], None]:
        """First what followed `after`, then every commit as it is published. Returns what ends it."""


class Feed:
    """Follows one store from a revision on. Nothing is told or woken before it is published."""

    def __init__(self, revision: int, keep_events: int = 0) -> None:
        self._recent: Ring[Change] = Ring(revision, keep_events)
        self._waiting: list[asyncio.Future[None]] = []
        self._subscribers: list[tuple[Told, Failed]] = []
        self._failure: Fault | None = None

    @property
    def floor(self) -> int:
        """Every change above it is here."""
        return self._recent.floor

    def append(self, batch: Batch) -> None:
        """The next commit, now published."""
        if batch:
            self._recent.append(batch)
            for told, _ in self._subscribers:
                told(batch)

    def wake(self) -> None:
        """Lets watchers look; called once after a run of `append`."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, fault: Fault) -> None:
        """Ends every watch, now and later."""
        self._failure = fault
        subscribers, self._subscribers = self._subscribers, []
        for _, failed in subscribers:
            failed(fault)
        self.wake()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def after(self, revision: int) -> list[Change]:
        """Whole commits above `revision`, as many as one item of a watch may hold."""
        return self._recent.after(revision, limits.WATCH_CHUNK_EVENTS)

    def backwards(self, revision: int) -> Sequence[Batch]:
        """The commits with a change above `revision`, newest first: what must be undone to read the past."""
        return self._recent.batches_above(revision)[::-1]

    def drop_through(self, revision: int) -> None:
        self._recent.drop_through(revision)

    def subscribe(self, told: Told, failed: Failed, *, after: int) -> Callable[[], None]:
        self.check()
        if after < self.floor:
            raise Expired(f"revision {after} is too old to follow from: list again")
        missed = self._recent.after(after)
        if missed:
            told(missed)
        row = (told, failed)
        self._subscribers.append(row)

        def end() -> None:
            if row in self._subscribers:
                self._subscribers.remove(row)

        return end

    async def changed(self) -> None:
        """Returns when something new may be there. Holds nothing when it is cancelled."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)


class Watch:
    """An endless reader of one prefix. `history` reads whole commits after a revision that the feed has dropped."""

    def __init__(
        self,
        feed: Feed,
        prefix: str,
        after: int,
        compacted: Callable[[], int],
        history: Callable[[int], Awaitable[Sequence[Change]]] | None = None,
    ) -> None:
        if after < 0:
            raise BadRequest(f"a watch cannot follow revision {after}: revisions are positive, 0 means from the first")
        self._feed = feed
        self._prefix = prefix
        self._after = after
        self._compacted = compacted
        self._history = history

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Sequence[Change]:
        while True:
            self._feed.check()
            self._check_compacted()
            if self._after < self._feed.floor and self._history is not None:
                changes = await self._history(self._after)
                # What was read is whole only if compaction had not begun on it: it says so before it deletes.
                self._check_compacted()
                if not changes:
                    # Everything up to the floor is on disk, and there was nothing in between.
                    self._after = max(self._after, self._feed.floor)
            else:
                changes = self._feed.after(self._after)
                if not changes:
                    await self._feed.changed()
            if changes:
                self._after = changes[-1].revision
                matching = [change for change in changes if change.key.startswith(self._prefix)]
                if matching:
                    return matching

    def _check_compacted(self) -> None:
        compacted = self._compacted()
        if self._after < compacted:
            raise Expired(f"changes after revision {self._after} are compacted up to {compacted}: list again")
