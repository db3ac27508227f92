"""Recent commits in order, the watches that follow them, and subscribers that are called synchronously.

A watch has no queue, only a revision: it continues from there in the recent commits, or in history if the revision is
older. So a slow watcher costs no memory, and a watch whose wait was cancelled can be resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

from holdfast.model.errors import BadRequest, Expired, Fault
from holdfast.store.contract import Change
from holdfast.store.ring import Ring

# Newest changes of a store held in memory for watches. A watch from an older revision reads them from the store.
WATCH_RING_EVENTS = 2_000
# Changes that a store hands to a watcher at once. The rest follows in the next chunk.
WATCH_CHUNK_EVENTS = 1_000

Batch = Sequence[Change]
"""All changes of one commit."""

BatchCallback = Callable[[Batch], None]
FaultCallback = Callable[[Fault], None]


@runtime_checkable
class PublishingStore(Protocol):
    """A store in this process that calls its subscribers with a commit before the committer's call returns."""

    def subscribe(self, on_batch: BatchCallback, on_fault: FaultCallback, *, after: int) -> Callable[[], None]:
        """Calls `on_batch` with everything after `after`, then with every commit. Returns an unsubscribe function."""


class Feed:
    """Publishes one store's commits from a revision on."""

    def __init__(self, revision: int, keep_events: int = 0) -> None:
        self._recent: Ring[Change] = Ring(revision, keep_events)
        self._waiting: list[asyncio.Future[None]] = []
        self._subscribers: list[tuple[BatchCallback, FaultCallback]] = []
        self._failure: Fault | None = None

    @property
    def floor(self) -> int:
        """Every change above it is available here."""
        return self._recent.floor

    def append(self, batch: Batch) -> None:
        """Publishes the next commit to subscribers."""
        if batch:
            self._recent.append(batch)
            for on_batch, _ in self._subscribers:
                on_batch(batch)

    def wake(self) -> None:
        """Wakes the watchers; called once after a run of `append`."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, fault: Fault) -> None:
        """Ends every watch, present and future."""
        self._failure = fault
        subscribers, self._subscribers = self._subscribers, []
        for _, on_fault in subscribers:
            on_fault(fault)
        self.wake()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def after(self, revision: int) -> list[Change]:
        """Whole commits above `revision`, as many as one watch item may hold."""
        return self._recent.after(revision, WATCH_CHUNK_EVENTS)

    def newest_first(self, revision: int) -> Sequence[Batch]:
        """Commits with a change above `revision`, newest first, to be undone for a read of the past."""
        return self._recent.batches_above(revision)[::-1]

    def drop_through(self, revision: int) -> None:
        self._recent.drop_through(revision)

    def subscribe(self, on_batch: BatchCallback, on_fault: FaultCallback, *, after: int) -> Callable[[], None]:
        self.check()
        if after < self.floor:
            raise Expired(f"revision {after}: too old for a subscription; next: list again")
        missed = self._recent.after(after)
        if missed:
            on_batch(missed)
        row = (on_batch, on_fault)
        self._subscribers.append(row)

        def end() -> None:
            if row in self._subscribers:
                self._subscribers.remove(row)

        return end

    async def changed(self) -> None:
        """Returns when something new may be available. Safe to cancel."""
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
            raise BadRequest(f"watch: invalid revision {after} (expected 0 or a positive number)")
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
                # Compaction announces itself before it deletes, so the result is complete if this check passes.
                self._check_compacted()
                if not changes:
                    # Everything up to the floor is on disk, so there was no change in between.
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
            raise Expired(f"revision {self._after}: later changes are compacted up to {compacted}; next: list again")
