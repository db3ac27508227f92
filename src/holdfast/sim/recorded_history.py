"""Checks invariants on the recorded histories of real cells, with the checkers of the simulation.

- Commits are rebuilt from the store's history, and their writer, time and term from the audit log.
- Grants and limits of two cells are compared by epoch (`sim/recorded_grants.py`).
- The disruption budget over all cells is ordered by record times, with a clock tolerance
  (`sim/recorded_disruption.py`).
- An object that this release cannot read (a filter or another enum value of another release) is left out and listed.
- The result lists the properties that a history does not record.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.gate.audit import AUDIT_LOG, AuditRecord, decode_record
from holdfast.link.restore_handshake import GLOBAL_INCARNATION_TERM
from holdfast.model import codec
from holdfast.model.election_term import Term
from holdfast.model.errors import StoreFailed
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of_store_key
from holdfast.model.ownership import UNOWNED
from holdfast.model.quota import grant_name
from holdfast.model.times import parse_time
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit, Violation
from holdfast.sim.checkers.array_indexes import ArrayIndexesChecker
from holdfast.sim.checkers.churn import ChurnChecker
from holdfast.sim.checkers.decisions import DecisionsChecker
from holdfast.sim.checkers.exclusive_succession import ExclusiveSuccessionChecker
from holdfast.sim.checkers.expiry import ExpiryChecker
from holdfast.sim.checkers.leaked_objects import leaked_objects
from holdfast.sim.checkers.ownership import TERM_KEY, OwnershipChecker
from holdfast.sim.checkers.pending_reasons import unexplained_waits
from holdfast.sim.checkers.placement import PlacementChecker
from holdfast.sim.checkers.protection import ProtectionChecker
from holdfast.sim.checkers.quota import GLOBAL, QuotaChecker
from holdfast.sim.checkers.records import RecordsChecker
from holdfast.sim.checkers.removals import RemovalChecker
from holdfast.sim.history_verdict import HistoryVerdict
from holdfast.sim.recorded_disruption import BUDGET_KINDS, CLOCK_SKEW_MAX_S, RecordedDisruption
from holdfast.sim.recorded_grants import RecordedGrants
from holdfast.sim.recorded_rules import RecordedRules, rules_at_rest
from holdfast.store import schema
from holdfast.store.backup import BACKUP_PAGE_RECORDS, RESTORE_MARKER
from holdfast.store.contract import Change, Committed, Compare, LogRecord, Put, Remove, Store, StoredEntry, Txn
from holdfast.store.etcd.keys import INDEX_BITS
from holdfast.store.history import HistoryReader

CommitChanges = tuple[Change, ...]
"""The changes of one commit."""


class RecordedHistory(msgspec.Struct, frozen=True):
    """The history of a cell: its state at the start of the history, and all commits since."""

    cell: str
    first: tuple[StoredEntry, ...]
    commits: tuple[CommitChanges, ...]
    audit: tuple[AuditRecord, ...]


def read_sqlite(cell: str, path: Path) -> RecordedHistory:
    """The history of a cell in a SQLite file, which may be in use."""
    if not path.exists():
        raise StoreFailed(f"{path}: file not found")
    connection = schema.open_reader(path)
    history = HistoryReader(connection)
    try:
        with history.snapshot():
            marks = history.meta()
            first, _ = history.range("", marks["compacted"], "", 0) if marks["compacted"] else ((), False)
            changes = list(_sqlite_changes(history, marks["compacted"], marks["revision"]))
            rows: list[Any] = connection.execute("SELECT revision, last FROM history").fetchall()
            records = history.log(AUDIT_LOG, 0, marks["sequence"], 1 << 62)
    finally:
        history.close()
    last_of: dict[int, int] = dict(rows)
    groups = itertools.groupby(changes, key=lambda change: last_of[change.revision])
    return RecordedHistory(cell, tuple(first), tuple(tuple(group) for _, group in groups), _decoded(records))


def _sqlite_changes(history: HistoryReader, after: int, through: int) -> Iterator[Change]:
    while found := history.changes(after, through):
        yield from found
        after = found[-1].revision


async def read_etcd(cell: str, store: Store) -> RecordedHistory:
    """The history of a cell in etcd since the last compaction."""
    head = await store.newest_revision()
    after = store.compacted
    first = (await store.range("", at=after)).entries if after else ()
    changes: list[Change] = []
    watch = store.watch("", after=after)
    while after < head:
        changes += await anext(watch)
        after = changes[-1].revision
    groups = itertools.groupby(changes, key=lambda change: change.revision >> INDEX_BITS)
    records = [record async for record in _log(store)]
    return RecordedHistory(cell, tuple(first), tuple(tuple(group) for _, group in groups), _decoded(records))


async def _log(store: Store) -> AsyncIterator[LogRecord]:
    after = 0
    while found := await store.read_log(AUDIT_LOG, after=after, limit=BACKUP_PAGE_RECORDS):
        for record in found:
            yield record
        after = found[-1].sequence


def _decoded(records: Iterable[LogRecord]) -> tuple[AuditRecord, ...]:
    return tuple(decode_record(record.value) for record in records)


class AuditIndex:
    """Audit records by change: a record names the replaced revision, or the uid of a created object.

    A mirrored object that is deleted and created again keeps its uid, so that several records name the same creation.
    The log has the order of the commits: a record comes after every revision that it or an earlier record replaced. A
    creation belongs to the last record that comes after smaller revisions only.
    """

    def __init__(self, records: Iterable[AuditRecord]) -> None:
        self._by: dict[tuple[str, str, str, str], list[tuple[int, AuditRecord]]] = {}
        replaced = 0
        for record in records:
            entries = record.entries if record.result == "Committed" else ()
            replaced = max((replaced, *(entry.before for entry in entries)))
            for entry in entries:
                mark = (entry.kind, entry.namespace, entry.name, str(entry.before or entry.uid))
                self._by.setdefault(mark, []).append((replaced, record))

    def of(self, change: ObservedChange) -> AuditRecord | None:
        meta, kind = change.item.metadata, change.kind.name
        unnamed = self._by.get((kind, meta.namespace, meta.name, ""), [])
        if change.old is not None:
            found = self._by.get((kind, meta.namespace, meta.name, str(change.old.revision))) or unnamed
            return found[-1][1] if found else None
        for created in (self._by.get((kind, meta.namespace, meta.name, meta.uid), []), unnamed):
            for replaced, record in reversed(created):
                if replaced < change.item.revision:
                    return record
        return None


def check_histories(
    histories: Sequence[RecordedHistory], *, since_s: float = 0.0, at_rest_s: float = 0.0
) -> HistoryVerdict:
    """Checks the histories of all cells, the global cell first.

    Violations before the wall-clock time `since_s` are left out. With `at_rest_s`, the wall-clock time at which
    the platform was at rest, the last state is also checked for leaked objects and unexplained waits.
    """
    ordered = sorted(histories, key=lambda history: history.cell != GLOBAL)
    grants = RecordedGrants()
    removals = RemovalChecker(CLOCK_SKEW_MAX_S)
    arrays = ArrayIndexesChecker()
    checked = []
    for history in ordered:
        replayed = _HistoryChecker(history, grants, removals, arrays, global_known=ordered[0].cell == GLOBAL)
        replayed.run()
        checked.append(replayed)
    together = RecordedDisruption(commit for replayed in checked for commit in replayed.disrupting).violations()
    found = [*(violation for replayed in checked for violation in replayed.violations), *together]
    if at_rest_s:
        found += _violations_at_rest({replayed.cell: replayed.state for replayed in checked}, at_rest_s)
    return HistoryVerdict(
        violations=tuple(violation for violation in found if violation.wall_s >= since_s),
        at_rest=bool(at_rest_s),
        unreadable=tuple(text for replayed in checked for text in replayed.unreadable),
        commits=sum(replayed.commits for replayed in checked),
        changes=sum(replayed.changes for replayed in checked),
        unattributed=sum(replayed.unattributed for replayed in checked),
        objects=sum(replayed.objects for replayed in checked),
        cells=tuple(history.cell for history in ordered),
        gaps=tuple(gap for replayed in checked for gap in replayed.gaps()),
    )


def _violations_at_rest(states: dict[str, dict[str, Any]], wall_s: float) -> Iterator[Violation]:
    """Leaked objects and unexplained waits in the last states of all cells. Copies of global objects in regions may be
    older than the global cell's, so an owner is looked for in all cells."""
    findings = [*leaked_objects(states, wall_s)]
    for cell, state in states.items():
        findings += [(cell, found) for found in (*unexplained_waits(cell, state, wall_s), *rules_at_rest(state))]
    for cell, (invariant, what, objects) in findings:
        yield Violation(invariant, 0.0, cell, what, objects, wall_s=wall_s)


class _HistoryChecker:
    """Checks one cell. `grants` collects the Grants of the global cell, for the regions."""

    def __init__(
        self,
        history: RecordedHistory,
        grants: RecordedGrants,
        removals: RemovalChecker,
        arrays: ArrayIndexesChecker,
        *,
        global_known: bool,
    ) -> None:
        self._history = history
        self._grants = grants
        self._removals = removals
        self._global_known = global_known
        self._state: dict[str, Any] = {}
        self._present: dict[str, Any] = {}
        self._authors = AuditIndex(history.audit)
        self._records = RecordsChecker(history.cell)
        self._ownership = OwnershipChecker(history.cell)
        self._placement = PlacementChecker(history.cell)
        self._replacing = ExclusiveSuccessionChecker()
        self._quota = QuotaChecker(lambda cell: self._state if cell == history.cell else self._present)
        self._decisions = DecisionsChecker(history.cell)
        self._protection = ProtectionChecker()
        self._expiry = ExpiryChecker(history.cell, {}, set())
        self._unrest = ChurnChecker()
        self._rules = RecordedRules(history.cell, arrays)
        self._keys: set[str] = set()
        self._attributed = False
        self._wall_s = 0.0
        self._first_s = 0.0
        self.violations: list[Violation] = []
        self._removed_without_order: list[Violation] = []
        self.disrupting: list[ObservedCommit] = []
        """Commits that concern disruption budgets, for the check over all cells."""
        self.unreadable: list[str] = []
        """Versions of objects that this release cannot decode, as text."""
        self.commits = self.changes = self.unattributed = self._limits_not_covered = 0

    @property
    def cell(self) -> str:
        return self._history.cell

    @property
    def state(self) -> dict[str, Any]:
        return self._state

    @property
    def objects(self) -> int:
        return len(self._keys)

    def gaps(self) -> Iterator[str]:
        """Checks that this cell's store has no records for."""
        cell = self._history.cell
        if self._history.first:
            known = len(self._history.first)
            yield f"{cell}: the time before its compaction; {known} entries are trusted"
        if self.unattributed:
            yield f"{cell}: S5 and S6 of {self.unattributed} commits older than its audit log"
        if cell != GLOBAL and not self._global_known:
            yield f"{cell}: limits against grants, because the global cell's history is missing"
            yield f"{cell}: orders of removals, because the global cell's history is missing"
        if number := self._limits_not_covered:
            yield f"{cell}: {number} limits against grants that are older than the global cell's history"
        if cell != GLOBAL and self._global_known and self._global_was_restored():
            yield f"{cell}: orders of removals: a restored global cell does not record the orders before its backup"

    def run(self) -> None:
        begun = [Change(entry.key, entry.revision, entry, None) for entry in self._history.first]
        if begun:
            self._load_initial_state(begun)
        filling = bool(self._history.commits) and any(
            change.key == RESTORE_MARKER for change in self._history.commits[0]
        )
        for written in self._history.commits:
            if filling:
                # A restore or migration writes objects in key order. They were checked where they were created.
                filling = not any(change.key == RESTORE_MARKER and change.entry is None for change in written)
                self._load_initial_state(written)
            else:
                self._check(written)
        # Orders between the backup and the restore of the global cell are in no history. A region may act on them, or
        # on a person's confirmation, before it records the restore, so only the end shows what can be judged.
        if self._global_known and not self._global_was_restored():
            self.violations += self._removed_without_order

    def _load_initial_state(self, written: Sequence[Change]) -> None:
        changed, _ = self._apply(written)
        commit = ObservedCommit(self._history.cell, 0.0, 0.0, Txn(), tuple(changed), self._state)
        for _ in (*self._placement.check(commit), *self._ownership.check(commit, "restore")):
            pass
        for _ in (*self._replacing.check(commit), *self._unrest.check(commit), *self._expiry.check(commit)):
            pass
        self._rules.observe(commit)
        self._removals.store_replaced(commit)
        self._remember(commit)
        if self.cell == GLOBAL:
            self._grants.record_initial(commit.changes)

    def _remember(self, commit: ObservedCommit) -> None:
        if any(change.kind.name in BUDGET_KINDS for change in commit.changes):
            self.disrupting.append(msgspec.structs.replace(commit, state={}))

    def _check(self, written: CommitChanges) -> None:
        self.commits += 1
        self.changes += len(written)
        writes = tuple(Put(c.key, c.entry.value) if c.entry is not None else Remove(c.key) for c in written)
        revisions = tuple(change.revision for change in written)
        self._violate(self._records.check_revisions(Txn(writes=writes), Committed(revisions[-1], revisions)))
        changed, current = self._apply(written)
        found = [record for change in changed if (record := self._authors.of(change)) is not None]
        if found:
            self._attributed = True
            self._wall_s = max(self._wall_s, parse_time(found[0].time))
            self._first_s = self._first_s or self._wall_s
        term = next((record.term for record in found if record.term), 0)
        txn = Txn((Compare(TERM_KEY, term),) if term else (), writes)
        at_s = self._wall_s - self._first_s
        commit = ObservedCommit(self._history.cell, at_s, self._wall_s, txn, tuple(changed), self._state)
        self._violate(f for f in self._records.check(commit, current) if not self._check_incarnation(f))
        self._violate(self._placement.check(commit))
        self._violate(self._replacing.check(commit))
        self._violate(self._decisions.check(commit))
        self._violate(self._protection.check(commit))
        self._violate(self._expiry.check(commit))
        self._violate(self._unrest.check(commit))
        self._violate(self._rules.check(commit, global_was_restored=self._global_was_restored()))
        self._remember(commit)
        self._violate(self._quota.check(self._at_named_epochs(commit)))
        self._check_removals(commit, found)
        self._check_author(commit, found)

    def _check_removals(self, commit: ObservedCommit, found: Sequence[AuditRecord]) -> None:
        """Checks on wall-clock times, because the orders are in another cell's history."""
        on_wall = msgspec.structs.replace(commit, at_s=commit.wall_s)
        findings = self._removals.check(on_wall, found[0].principal if found else "")
        self._removed_without_order += self._as_violations(findings)

    def _global_was_restored(self) -> bool:
        """Whether this region has heard of another incarnation of the global cell."""
        term: Term | None = self._state.get(f"/terms/{GLOBAL_INCARNATION_TERM}")
        return term is not None and term.spec.term > 1

    def _check_incarnation(self, found: Finding) -> bool:
        """Whether the finding is allowed: only a restored global cell may return copies to older generations."""
        kind = kind_of_store_key(found[2][0]) if found[2] else None
        mirrored = kind is not None and kind.home.value == GLOBAL and self._history.cell != GLOBAL
        return mirrored and found[0] == "observedGeneration" and self._global_was_restored()

    def _check_author(self, commit: ObservedCommit, found: Sequence[AuditRecord]) -> None:
        # Lease renewals and the pruning of old Decisions have no audit record per object.
        commit = msgspec.structs.replace(commit, changes=tuple(c for c in commit.changes if c.kind.name != "LeasePage"))
        pruned = all(change.kind.name == "Decision" and change.new is None for change in commit.changes)
        if pruned or (not found and not self._attributed):
            owned = [change for change in commit.changes if change.kind.name not in UNOWNED]
            self.unattributed += bool(owned) and not pruned
            commit = msgspec.structs.replace(commit, changes=tuple(c for c in commit.changes if c not in owned))
        self._violate(self._ownership.check(commit, found[0].principal if found else ""))

    def _at_named_epochs(self, commit: ObservedCommit) -> ObservedCommit:
        """The commit, with each Grant presented at the epoch that the region's limit names. Limits whose Grants are not
        recorded are left out."""
        if commit.cell == GLOBAL:
            self._grants.record(commit.changes, commit.wall_s)
            return commit
        judged = [change for change in commit.changes if self._present_grant(change)]
        return msgspec.structs.replace(commit, changes=tuple(judged))

    def _present_grant(self, change: ObservedChange) -> bool:
        """Presents the Grant of a changed limit. Returns whether the change can be judged."""
        copy = change.new
        if not isinstance(copy, GrantCopy):
            return True
        if not self._global_known:
            return False
        if not self._grants.covers(self.cell, self._state, self._wall_s):
            self._limits_not_covered += 1
            return False
        key = f"/grants/{copy.metadata.namespace}/{grant_name(self.cell, copy.spec.grant_class)}"
        self._present.pop(key, None)
        if (grant := self._grants.grant_of_limit(key, copy)) is not None:
            self._present[key] = grant
        return True

    def _apply(self, written: Sequence[Change]) -> tuple[list[ObservedChange], list[int]]:
        changed: list[ObservedChange] = []
        revisions: list[int] = []
        for change in written:
            kind = kind_of_store_key(change.key)
            if kind is None:
                continue
            old = self._state.pop(change.key, None)
            try:
                new = codec.decode(kind, change.entry.value, change.revision) if change.entry is not None else None
            except msgspec.DecodeError as error:
                self.unreadable.append(f"{self.cell}: {change.key} at revision {change.revision}: {error}")
                continue
            if new is not None:
                self._state[change.key] = new
            changed.append(ObservedChange(change.key, kind, old, new))
            self._keys.add(change.key)
            revisions.append(change.revision)
        return changed, revisions

    def _violate(self, found: Iterable[Finding]) -> None:
        self.violations += self._as_violations(found)

    def _as_violations(self, found: Iterable[Finding]) -> list[Violation]:
        at_s = self._wall_s - self._first_s
        return [Violation(p, at_s, self.cell, what, objects, wall_s=self._wall_s) for p, what, objects in found]


def check_platform(state: Path, *, since_s: float = 0.0, at_rest_s: float = 0.0) -> HistoryVerdict:
    """Checks all cells of a platform's directory, or one cell's directory or file."""
    if state.is_file():
        return check_histories([read_sqlite(state.parent.name, state)], since_s=since_s, at_rest_s=at_rest_s)
    files = sorted(state.glob("cells/*/store.sqlite")) or sorted(state.glob("store.sqlite"))
    if not files:
        raise StoreFailed(
            f"{state}: no cell found (expected a platform's directory, a cell's directory or store.sqlite)"
        )
    # The global cell last: every Grant that a region has applied is then in the history that was read.
    files.sort(key=lambda file: file.parent.name == GLOBAL)
    histories = [read_sqlite(file.parent.name, file) for file in files]
    return check_histories(histories, since_s=since_s, at_rest_s=at_rest_s)
