"""The newest commits in order, addressed by revision. Commits are dropped as a whole, oldest first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar


class HasRevision(Protocol):
    @property
    def revision(self) -> int: ...


C = TypeVar("C", bound=HasRevision)


def _last_revision(batch: Sequence[Any]) -> int:
    revision: int = batch[-1].revision
    return revision


class Ring(Generic[C]):
    """Keeps the newest `keep_events` changes, or all of them (0). Every change above `floor` is present."""

    def __init__(self, floor: int, keep_events: int = 0) -> None:
        self.floor = floor
        self._keep_events = keep_events
        self._events = 0
        self._batches: list[Sequence[C]] = []

    def append(self, batch: Sequence[C]) -> None:
        self._batches.append(batch)
        self._events += len(batch)
        if self._keep_events and self._events > self._keep_events:
            self._trim()

    def batches_above(self, revision: int) -> list[Sequence[C]]:
        """The commits with a change above `revision`; the first may begin below it."""
        return self._batches[bisect_right(self._batches, revision, key=_last_revision) :]

    def after(self, revision: int, about: int = 0) -> list[C]:
        """The changes above `revision`, in whole commits, stopping once there are `about` of them (0: all)."""
        found: list[C] = []
        for at in range(bisect_right(self._batches, revision, key=_last_revision), len(self._batches)):
            batch = self._batches[at]
            if batch[0].revision <= revision:
                found += (change for change in batch if change.revision > revision)
            else:
                found += batch
            if about and len(found) >= about:
                break
        return found

    def drop_through(self, revision: int) -> None:
        """Drops the commits that ended at or before `revision`."""
        self._drop(bisect_right(self._batches, revision, key=_last_revision))
        self.floor = max(self.floor, revision)

    def _trim(self) -> None:
        # Drops more than necessary at once, because dropping from the front moves all later elements.
        spare = self._events - self._keep_events * 3 // 4
        at = 0
        while spare > 0 and at < len(self._batches) - 1:
            spare -= len(self._batches[at])
            at += 1
        self._drop(at)

    def _drop(self, count: int) -> None:
        if count:
            self.floor = max(self.floor, _last_revision(self._batches[count - 1]))
            self._events -= sum(map(len, self._batches[:count]))
            del self._batches[:count]
