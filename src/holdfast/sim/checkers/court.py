"""All checkers of a world: shown every commit of every disk, every acknowledgement, and every run of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.model import codec
from holdfast.model.kinds import kind_of_store_key
from holdfast.model.meta import Object
from holdfast.sim.checkers import Violation
from holdfast.sim.checkers.ownership import TERM_KEY, check_owners, check_token
from holdfast.sim.checkers.placement import PlacementChecker
from holdfast.store.contract import Committed, Put, Txn

VIOLATIONS_KEPT = 20


class Court:
    """`commits` counts what was checked. A run with a violation has failed, however it goes on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._placement: dict[str, PlacementChecker] = {}
        self._now: dict[str, dict[str, Any]] = {}
        self._written: dict[str, dict[int, str]] = {}
        self._last: dict[str, int] = {}
        self.violations: list[Violation] = []
        self.commits = 0

    def broken(self, promise: str, cell: str, what: str) -> None:
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(Violation(promise, self._clock(), cell, what))

    def witness(self, cell: str) -> Callable[[Txn, Committed], None]:
        """What a disk calls with each commit, at the instant it takes effect."""
        state = self._now.setdefault(cell, {})
        written = self._written.setdefault(cell, {})
        placement = self._placement.setdefault(cell, PlacementChecker())

        def see(txn: Txn, committed: Committed) -> None:
            self.commits += 1
            term = state.get(TERM_KEY)
            term_revision = term.revision if term is not None else 0
            changed: list[tuple[str, Any, Any]] = []
            for write, revision in zip(txn.writes, committed.revisions, strict=True):
                if revision <= self._last.get(cell, 0):
                    self.broken("S9", cell, f"revision {revision} came after {self._last[cell]}")
                self._last[cell] = revision
                written[revision] = write.key
                kind = kind_of_store_key(write.key)
                if kind is None:
                    continue
                old = state.get(write.key)
                new = codec.decode(kind, write.value, revision) if isinstance(write, Put) else None
                if new is None:
                    state.pop(write.key, None)
                else:
                    state[write.key] = new
                    self._generation(cell, write.key, old, new)
                changed.append((write.key, old, new))
                placement.apply(write.key, old, new)
            for promise, what in (
                *check_token(txn, changed, term_revision),
                *check_owners(cell, txn, changed),
                *placement.check(),
            ):
                self.broken(promise, cell, what)

        return see

    def acknowledged(self, cell: str, items: tuple[Object | None, ...]) -> None:
        """S9: whatever a caller was told is stored must be on the disk."""
        written = self._written.get(cell, {})
        for item in items:
            if item is not None and item.revision and item.revision not in written:
                self.broken("S9", cell, f"{item.key} was acknowledged at {item.revision}, which no commit wrote")

    def _generation(self, cell: str, key: str, old: Any, new: Any) -> None:
        observed = getattr(getattr(new, "status", None), "observed_generation", 0)
        if observed > new.metadata.generation:
            self.broken("observedGeneration", cell, f"{key} observed {observed} of {new.metadata.generation}")
        if old is not None and old.uid == new.uid:
            before = getattr(getattr(old, "status", None), "observed_generation", 0)
            if observed < before:
                self.broken("observedGeneration", cell, f"{key} went back from {before} to {observed}")

    def state(self, cell: str) -> dict[str, Any]:
        """What is on a cell's disk, decoded, by key."""
        return self._now.get(cell, {})
