"""The invariant checkers of one simulation. They see every commit of every store, every acknowledged write and every
task run."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from holdfast.client.contract import Seen
from holdfast.model import codec
from holdfast.model.kinds import kind_of_store_key
from holdfast.model.meta import Object
from holdfast.sim.checkers import Changed, Commit, Found, Violation
from holdfast.sim.checkers.decisions import DecisionsChecker
from holdfast.sim.checkers.disruption import DisruptionChecker
from holdfast.sim.checkers.expiry import ExpiryChecker
from holdfast.sim.checkers.ownership import OwnershipChecker, elections, writer_of
from holdfast.sim.checkers.placement import PlacementChecker
from holdfast.sim.checkers.protection import ProtectionChecker
from holdfast.sim.checkers.quota import QuotaChecker
from holdfast.sim.checkers.records import RecordsChecker
from holdfast.sim.checkers.running import RunningChecker
from holdfast.sim.checkers.unrest import UnrestChecker
from holdfast.sim.coverage import Coverage
from holdfast.sim.history import History, author_of
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.machine import Machine, Work
from holdfast.sim.ports import EPOCH_S
from holdfast.sim.releases import Release, seen_by
from holdfast.store.contract import Committed, Put, Txn

VIOLATIONS_KEPT = 20
SIGNS_OF_LIFE = frozenset({"Lease", "LeasePage", "Region"})


class Court:
    """`commits` counts the checked commits. A run with a violation has failed."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._now: dict[str, dict[str, Any]] = {}
        self._records: dict[str, RecordsChecker] = {}
        self._quota = QuotaChecker(self.state)
        self._running = RunningChecker()
        self._disruption = DisruptionChecker()
        self._override_ends: dict[str, float] = {}
        self.unrest = UnrestChecker()
        self.history = History()
        self.coverage = Coverage()
        self.violations: list[Violation] = []
        self.commits = 0
        self.moved = 0
        """Number of stored changes; of heartbeat kinds only creations and deletions."""
        self.alarm: Callable[[], None] | None = None
        """Called at every violation."""

    def broken(self, cell: str, found: Iterable[Found], writer: str = "") -> None:
        for promise, what, objects in found:
            if len(self.violations) < VIOLATIONS_KEPT:
                self.violations.append(Violation(promise, self._loop.time(), cell, what, objects, writer))
                if self.alarm is not None:
                    self.alarm()

    def witness(
        self,
        cell: str,
        clock: Callable[[], float],
        way_s: Callable[[], float],
        by: Callable[[], Release] = lambda: Release.PRESENT,
    ) -> Callable[[Txn, Committed], None]:
        """The observer of a cell's commits. `clock` is the cell's wall clock, `way_s` the latency of the commit, `by`
        the release of the process that made it."""
        state = self._now.setdefault(cell, {})
        records = self._records[cell] = RecordsChecker(cell)
        ownership = OwnershipChecker(cell)
        placement = PlacementChecker(cell)
        protection = ProtectionChecker()
        expiry = ExpiryChecker(cell, self._override_ends, self._running.distrusted, clock)
        decisions = DecisionsChecker(cell)

        def see(txn: Txn, committed: Committed) -> None:
            self.commits += 1
            self.broken(cell, records.revisions(txn, committed))
            changed, revisions = self._apply(state, txn, committed)
            at_s = self._loop.time()
            commit = Commit(cell, at_s, EPOCH_S + at_s, txn, tuple(changed), state, way_s())
            writer = writer_of(txn)
            author = author_of(txn, writer)
            self.history.add(commit, author)
            self.coverage.see(commit)
            found = chain(
                self._running.learn(commit),
                expiry.check(commit),
                records.check(commit, revisions),
                ownership.check(_as_known_to(by(), commit), writer),
                elections(commit),
                placement.check(commit),
                protection.check(commit),
                decisions.check(commit),
                self._quota.check(commit),
                self._disruption.check(commit),
                self.unrest.check(commit),
            )
            self.broken(cell, found, author)

        return see

    def _apply(self, state: dict[str, Any], txn: Txn, committed: Committed) -> tuple[list[Changed], list[int]]:
        changed: list[Changed] = []
        revisions: list[int] = []
        for write, revision in zip(txn.writes, committed.revisions, strict=True):
            kind = kind_of_store_key(write.key)
            if kind is None:
                continue
            old = state.get(write.key)
            new = None
            if isinstance(write, Put):
                self._loop.note(zlib.crc32(write.value) + revision)
                new = state[write.key] = codec.decode(kind, write.value, revision)
            else:
                state.pop(write.key, None)
            self.moved += kind.name not in SIGNS_OF_LIFE or old is None or new is None
            changed.append(Changed(write.key, kind, old, new))
            revisions.append(revision)
        return changed, revisions

    def acknowledged(self, cell: str, items: Sequence[Object | None]) -> None:
        self.broken(cell, self._records[cell].acknowledged(items))

    def watched(self, cell: str, kind: str, after: int, batch: Sequence[Seen[Any]]) -> None:
        self.broken(cell, self._records[cell].watched(kind, after, batch))

    def crossed(self, cell: str, kind: str, namespace: str, others: Sequence[str]) -> None:
        what = f"a watch of {kind} in namespace {namespace} delivered {', '.join(others[:3])}"
        self.broken(cell, [("tenancy", what, ())])

    def misunderstood(self, cell: str, what: str) -> None:
        self.broken(cell, [("skew", what, ())])

    def asked(self, cell: str, at_s: float) -> None:
        """Counts a commit attempt, successful or not."""
        if found := (*self.unrest.asked(cell, at_s), *self.unrest.worked(self._loop.steps, at_s)):
            self.broken(cell, found)

    def distrust(self, name: str) -> None:
        """Excludes a clock that drifts beyond the bound: S7 is not checked for leases on it."""
        self._running.distrusted.add(name)

    def said(self, reasons: Iterable[str]) -> None:
        self.coverage.reasons.update(reasons)

    def began(self, machine: Machine, work: Work) -> None:
        self.broken(machine.name, self._running.began(machine, work), f"agent {machine.name}")

    def state(self, cell: str) -> dict[str, Any]:
        """The decoded objects of a cell's store, by key."""
        return self._now.setdefault(cell, {})


def _as_known_to(release: Release, commit: Commit) -> Commit:
    """The commit without fields that the release does not know. Dropping an unknown field is no write (decision
    0020)."""
    if release is Release.PRESENT:
        return commit
    changed = tuple(Changed(c.key, c.kind, seen_by(release, c.kind, c.old), c.new) for c in commit.changed)
    return msgspec.structs.replace(commit, changed=changed)
