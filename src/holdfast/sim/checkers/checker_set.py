"""The invariant checkers of one simulation. They see every commit of every store, every acknowledged write and every
task run."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec

from holdfast.client.contract import WatchEvent
from holdfast.model import codec
from holdfast.model.kinds import kind_of_store_key
from holdfast.model.meta import Object
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit, Violation
from holdfast.sim.checkers.array_indexes import ArrayIndexesChecker
from holdfast.sim.checkers.churn import ChurnChecker
from holdfast.sim.checkers.cron_runs import CronRunsChecker
from holdfast.sim.checkers.decisions import DecisionsChecker
from holdfast.sim.checkers.device_use import conflicting_tasks
from holdfast.sim.checkers.disruption import DisruptionChecker
from holdfast.sim.checkers.expiry import ExpiryChecker
from holdfast.sim.checkers.failback import FailbackChecker
from holdfast.sim.checkers.maintenance import MaintenanceChecker
from holdfast.sim.checkers.ownership import OwnershipChecker, check_elections, writer_of
from holdfast.sim.checkers.placement import PlacementChecker
from holdfast.sim.checkers.protection import ProtectionChecker
from holdfast.sim.checkers.quota import QuotaChecker
from holdfast.sim.checkers.rebalancing import RebalancingChecker
from holdfast.sim.checkers.records import RecordsChecker
from holdfast.sim.checkers.removals import RemovalChecker
from holdfast.sim.checkers.single_instance import SingleInstanceChecker
from holdfast.sim.checkers.volumes import VolumesChecker
from holdfast.sim.commit_history import CommitHistory, writer_label
from holdfast.sim.coverage import Coverage
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.machine import Machine, TaskRun
from holdfast.sim.ports import EPOCH_S
from holdfast.sim.releases import ReleaseVersion, object_read_by
from holdfast.store.contract import Committed, Put, Txn

VIOLATIONS_MAX = 20
UNJUDGED_AFTER_RESTORE = frozenset({"S9", "S10", "identity", "observedGeneration", "oscillation", "ticks", "array"})
"""Not checked once a store was restored: acknowledged writes after the backup are lost, and generations go back."""
HEARTBEAT_KINDS = frozenset({"Lease", "LeasePage", "Region"})


class CheckerSet:
    """`commits` counts the checked commits. A run with a violation has failed."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._now: dict[str, dict[str, Any]] = {}
        self._records: dict[str, RecordsChecker] = {}
        self._quota = QuotaChecker(self.state)
        self._running = SingleInstanceChecker()
        self._disruption = DisruptionChecker()
        self.removals = RemovalChecker()
        self._replacing = False
        """Whether the present commit replaces a whole store: it is observed, not checked."""
        self._losing = False
        """Whether the present commit is the loss of one record: it is observed, not checked."""
        self._replaced = False
        """Whether a store was replaced by an older one in this run."""
        self._failback = FailbackChecker()
        self._arrays = ArrayIndexesChecker()
        self._volumes = VolumesChecker()
        self._override_ends: dict[str, float] = {}
        self._checked: frozenset[str] | None = None
        """The checked invariants; None: all."""
        self.churn = ChurnChecker()
        self.history = CommitHistory()
        self.coverage = Coverage()
        self.violations: list[Violation] = []
        self.commits = 0
        self.change_count = 0
        """Number of stored changes; of heartbeat kinds only creations and deletions."""
        self.on_violation: Callable[[], None] | None = None
        """Called at every violation."""
        self.on_commit: Callable[[ObservedCommit], None] | None = None
        """Called after every commit."""

    def check_only(self, invariants: frozenset[str]) -> None:
        """Only these invariants are checked from now on."""
        self._checked = invariants

    def report(self, cell: str, found: Iterable[Finding], writer: str = "") -> None:
        for invariant, what, objects in found:
            if self._replacing or self._losing or (self._replaced and invariant in UNJUDGED_AFTER_RESTORE):
                continue
            checked = self._checked is None or invariant in self._checked
            if checked and len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(Violation(invariant, self._loop.time(), cell, what, objects, writer))
                if self.on_violation is not None:
                    self.on_violation()

    def commit_observer(
        self,
        cell: str,
        clock: Callable[[], float],
        way_s: Callable[[], float],
        by: Callable[[], ReleaseVersion] = lambda: ReleaseVersion.CURRENT,
    ) -> Callable[[Txn, Committed], None]:
        """The observer of a cell's commits. `clock` is the cell's wall clock, `way_s` the latency of the commit, `by`
        the release of the process that made it."""
        state = self._now.setdefault(cell, {})
        records = self._records[cell] = RecordsChecker(cell)
        ownership = OwnershipChecker(cell)
        placement = PlacementChecker(cell)
        protection = ProtectionChecker()
        expiry = ExpiryChecker(cell, self._override_ends, self._running.excluded_clocks, clock)
        decisions = DecisionsChecker(cell)
        rebalancing = RebalancingChecker()
        cron_runs = CronRunsChecker()
        maintenance = MaintenanceChecker(cell)

        def see(txn: Txn, committed: Committed) -> None:
            self.commits += 1
            self.report(cell, records.check_revisions(txn, committed))
            changed, revisions = self._apply(state, txn, committed)
            at_s = self._loop.time()
            commit = ObservedCommit(cell, at_s, EPOCH_S + at_s, txn, tuple(changed), state, way_s())
            writer = writer_of(txn)
            author = writer_label(txn, writer)
            self.history.add(commit, author)
            self.coverage.observe(commit)
            found = chain(
                self._running.observe(commit),
                expiry.check(commit),
                records.check(commit, revisions),
                ownership.check(_as_known_to(by(), commit), writer),
                check_elections(commit),
                placement.check(commit),
                protection.check(commit),
                decisions.check(commit),
                self._quota.check(commit),
                self._failback.check(commit),
                self._disruption.check(commit),
                rebalancing.check(commit),
                cron_runs.check(commit),
                maintenance.check(commit),
                self._arrays.check(commit),
                self._volumes.check(commit),
                self.churn.check(commit),
            )
            self.report(cell, found, author)
            if self.on_commit is not None:
                self.on_commit(commit)
            if self._replacing:
                self.removals.store_replaced(commit)
            else:
                self.report(cell, self.removals.check(commit, writer), author)

        return see

    @contextmanager
    def replacing_store(self) -> Iterator[None]:
        """Commits inside the block replace a store as a whole."""
        self._replacing = self._replaced = True
        try:
            yield
        finally:
            self._replacing = False

    @contextmanager
    def losing_record(self) -> Iterator[None]:
        """Commits inside the block are no writes: the store loses a record."""
        self._losing = True
        try:
            yield
        finally:
            self._losing = False

    def _apply(self, state: dict[str, Any], txn: Txn, committed: Committed) -> tuple[list[ObservedChange], list[int]]:
        changed: list[ObservedChange] = []
        revisions: list[int] = []
        for write, revision in zip(txn.writes, committed.revisions, strict=True):
            kind = kind_of_store_key(write.key)
            if kind is None:
                continue
            old = state.get(write.key)
            new = None
            if isinstance(write, Put):
                self._loop.mix_into_digest(zlib.crc32(write.value) + revision)
                new = state[write.key] = codec.decode(kind, write.value, revision)
            else:
                state.pop(write.key, None)
            self.change_count += kind.name not in HEARTBEAT_KINDS or old is None or new is None
            changed.append(ObservedChange(write.key, kind, old, new))
            revisions.append(revision)
        return changed, revisions

    def acknowledged(self, cell: str, items: Sequence[Object | None]) -> None:
        self.report(cell, self._records[cell].acknowledged(items))

    def watched(self, cell: str, kind: str, after: int, batch: Sequence[WatchEvent[Any]]) -> None:
        self.report(cell, self._records[cell].watched(kind, after, batch))

    def watch_crossed_tenants(self, cell: str, kind: str, namespace: str, others: Sequence[str]) -> None:
        what = f"a watch of {kind} in namespace {namespace} delivered {', '.join(others[:3])}"
        self.report(cell, [("tenancy", what, ())])

    def skew_detected(self, cell: str, what: str) -> None:
        self.report(cell, [("skew", what, ())])

    def commit_attempted(self, cell: str, at_s: float) -> None:
        """Counts a commit attempt, successful or not."""
        if found := (*self.churn.commit_attempted(cell, at_s), *self.churn.steps_taken(self._loop.steps, at_s)):
            self.report(cell, found)

    def livelocked(self, process: str, what: str) -> None:
        """Records that the run ended in a livelock, whichever invariants are checked."""
        self.violations.append(Violation("livelock", self._loop.time(), process, what))

    def exclude_clock(self, name: str) -> None:
        """Excludes a clock that drifts beyond the bound: S7 is not checked for leases on it."""
        self._running.excluded_clocks.add(name)

    def reasons_reported(self, reasons: Iterable[str]) -> None:
        self.coverage.reasons.update(reasons)

    def task_started(self, machine: Machine, work: TaskRun) -> None:
        self._failback.task_started(machine.name, work)
        running = self._running.task_started(machine, work)
        found = chain(running, conflicting_tasks(machine, work), self._volumes.task_started(machine, work))
        self.report(machine.name, found, f"agent {machine.name}")

    def task_stopped(self, region: str, node: str, work: TaskRun) -> None:
        self.report(region, self.removals.task_stopped(region, node, work, self.state(region)), f"agent {node}")

    def state(self, cell: str) -> dict[str, Any]:
        """The decoded objects of a cell's store, by key."""
        return self._now.setdefault(cell, {})


def _as_known_to(release: ReleaseVersion, commit: ObservedCommit) -> ObservedCommit:
    """The commit without fields that the release does not know. Dropping an unknown field is not a
    write (decision 0020)."""
    if release is ReleaseVersion.CURRENT:
        return commit
    changed = tuple(
        ObservedChange(c.key, c.kind, object_read_by(release, c.kind, c.old), c.new) for c in commit.changes
    )
    return msgspec.structs.replace(commit, changes=changed)
