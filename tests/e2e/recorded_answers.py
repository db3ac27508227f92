"""Judges the six answers of a drill's report by the stores' histories and audit logs, without code of `drills`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.platforms import ROOT

from holdfast.model import codec
from holdfast.model.kinds import kind_of_store_key
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.reasons import Reason
from holdfast.model.times import parse_time
from holdfast.model.workload import WorkloadType
from holdfast.sim.checkers import ObservedChange
from holdfast.sim.history_verdict import CHECKED
from holdfast.sim.recorded_history import AuditIndex, RecordedHistory, read_sqlite

Report = dict[str, Any]
NOT_CONTROLLERS = {"link", "grant-sync", "collect"}
DESIRED = {"Workload", "Assignment", "Override", "SchedulerPolicy", "PolicyRevision", "RecoveryBudget", "Quota", "Node"}
NO_ACTIONS = {"GrantCopy", "Grant", "RecoverySlot", "Endpoint", "Lease", "LeasePage", "Event", "Term", "Decision"}
TOLERANCE_S = 0.3
"""Between the time in an audit record and its commit, and between the drill's clock and the records."""
STATES: dict[str, Callable[[Any], str]] = {
    "Recovery": lambda item: item.status.phase.value,
    "Override": lambda item: str(item.status.phase),
    "Node": lambda item: item.status.contact.state.value,
    "Region": lambda item: item.status.health.state.value,
}
"""States whose changes the sixth answer must name, each with both values."""


class CommittedChange(msgspec.Struct, frozen=True):
    """One change with its audit record. `at_s` counts from the failure."""

    cell: str
    at_s: float
    principal: str
    term: int
    change: ObservedChange

    @property
    def kind(self) -> str:
        return str(self.change.kind.name)

    @property
    def name(self) -> str:
        return str(self.change.item.metadata.name)


def committed_changes(state: Path, report: Report) -> list[CommittedChange]:
    """All audited changes from the failure until the undo, by time."""
    began, ended = parse_time(report["startedAt"]), parse_time(report["undoneAt"])
    found: list[CommittedChange] = []
    for path in sorted(state.glob("cells/*/store.sqlite")):
        found += _in_cell(read_sqlite(path.parent.name, path), began)
    return sorted((c for c in found if 0 <= c.at_s <= ended - began), key=lambda c: c.at_s)


def _in_cell(history: RecordedHistory, began: float) -> Iterator[CommittedChange]:
    authors = AuditIndex(history.audit)
    known: dict[str, Any] = {
        entry.key: codec.decode(kind, entry.value, entry.revision)
        for entry in history.first
        if (kind := kind_of_store_key(entry.key)) is not None
    }
    for commit in history.commits:
        observed: list[ObservedChange] = []
        for change in commit:
            kind = kind_of_store_key(change.key)
            if kind is None:
                continue
            old = known.pop(change.key, None)
            new = codec.decode(kind, change.entry.value, change.revision) if change.entry is not None else None
            if new is not None:
                known[change.key] = new
            observed.append(ObservedChange(change.key, kind, old, new))
        # A Decision has no record of its own if it is committed with its Bindings.
        records = [record for one in observed if (record := authors.of(one)) is not None]
        for one in observed if records else ():
            record = authors.of(one) or records[0]
            yield CommittedChange(history.cell, parse_time(record.time) - began, record.principal, record.term, one)


def check_answers(state: Path, report: Report) -> None:
    """Asserts that the six answers are right and complete. Changes in a cell whose store was replaced are not judged,
    if the answer says that it did not observe them."""
    answers: dict[str, list[str]] = report["questions"]
    stated = [line for line in answers["Which controller acted first?"] if line.startswith("not observed: ")]
    unobserved = {line.partition(" changes in ")[2].partition(" ")[0] for line in stated}
    assert unobserved <= ({"global"} if report["drill"] == "global-store-loss" else set())
    every = committed_changes(state, report)
    changes = [one for one in every if one.cell not in unobserved]
    assert changes, "the history has no change of this drill"
    _check_desired_state(answers["What desired state changed?"], changes)
    _check_first_controller(answers["Which controller acted first?"], changes, every)
    _check_page(report["drill"], answers["Which controller acted first?"][0])
    _check_progress(answers["What partial progress was recorded?"], changes)
    _check_invariants(answers["Which invariant held?"])
    _check_telemetry(answers["Which telemetry proves it?"], changes)
    _check_path(answers["What was the repair or rollback path?"], changes)


def _role(principal: str) -> str:
    found = re.fullmatch(r"holdfast:controller:(.+)", principal)
    return found[1] if found else ""


def _check_desired_state(lines: list[str], changes: list[CommittedChange]) -> None:
    """Every changed spec in its home cell is named with its writer, and so is every break-glass override."""
    for one in changes:
        if one.kind == "Override" and one.name.startswith(f"break-glass-{one.cell}-") and one.change.old is None:
            assert any(f"{one.cell}: a user created Override {one.name}" in line for line in lines), lines
        home = one.change.kind.home.value == ("global" if one.cell == "global" else "region")
        old, new = one.change.old, one.change.new
        if one.kind not in DESIRED or not home or old is None or new is None or old.spec == new.spec:
            continue
        if one.change.kind.name == "Node" and _role(one.principal) == "" and "holdfast:node" in one.principal:
            continue
        writer = _role(one.principal) or "a user"
        assert any(f"{one.cell}: {writer} changed {one.kind} " in line and one.name in line for line in lines), (
            f"{writer} changed {one.kind} {one.name} in {one.cell} at +{one.at_s:.1f} s; the answer has only {lines}"
        )


def _is_action(one: CommittedChange) -> bool:
    """A change that is certainly an action of a controller: a new object, a changed spec or a changed state. The link
    of a region acts when it holds the region's work."""
    if one.kind == "Region" and one.cell == one.name and _holds_work(one.change.old) != _holds_work(one.change.new):
        return True
    if not _role(one.principal) or _role(one.principal) in NOT_CONTROLLERS or one.change.new is None:
        return False
    if one.kind in (
        "GrantCopy",
        "Grant",
        "RecoverySlot",
        "Endpoint",
        "Lease",
        "LeasePage",
        "Event",
        "Term",
        "Decision",
    ):
        return False
    old, new = one.change.old, one.change.new
    if old is None:
        return True
    return bool(old.spec != new.spec or (one.kind in STATES and STATES[one.kind](old) != STATES[one.kind](new)))


def _holds_work(region: Any) -> bool:
    conditions = region.status.conditions if region is not None else ()
    return any(c.type == "HoldsWork" and c.status == "True" for c in conditions)


def _is_batch(item: Any) -> bool:
    return bool(item.spec.type is WorkloadType.BATCH)


def _is_rebalanced(change: ObservedChange) -> bool:
    released = change.item.status.release
    return released is not None and released.reason is Reason.REBALANCED


def _workload_of(one: CommittedChange) -> tuple[str, str, str]:
    """Cell, tenant and workload of a regional object; the workload is empty for objects of no workload."""
    item = one.change.item
    return one.cell, item.metadata.namespace, str(getattr(getattr(item, "spec", None), "workload", ""))


def _check_first_controller(lines: list[str], changes: list[CommittedChange], every: list[CommittedChange]) -> None:
    """No certain action comes before the first one that the answer names, and that one was committed by its writer.
    A batch may proceed by itself, and a workload may be rebalanced, so that their changes are no certain reactions.
    `every` has also the changes of cells that were not observed throughout, among which the named one may be."""
    batches = {_workload_of(one) for one in changes if one.kind == "Replica" and _is_batch(one.change.item)}
    moved = {_workload_of(one) for one in changes if one.kind == "Replica" and _is_rebalanced(one.change)}
    moved |= {("global", tenant, workload) for _, tenant, workload in moved}
    changes = [one for one in changes if _workload_of(one) not in batches | moved]
    if lines[0] == "none: no controller wrote":
        assert not any(map(_is_action, changes))
        return
    named = re.match(r"\+([\d.]+) s (\S+) \((\S+)\) (created|changed) (\w+) ([^\s,]+)", lines[0])
    assert named is not None, lines[0]
    at_s, role, cell, name = float(named[1]), named[2], named[3], named[6].rpartition("/")[2]
    same = [
        one
        for one in every
        if one.cell == cell and one.name == name and one.kind == named[5] and abs(one.at_s - at_s) <= TOLERANCE_S
    ]
    writers = {"authority" if one.term else _role(one.principal) for one in same}
    assert role in writers, f"{lines[0]}: written by {writers or 'nobody'}"
    earlier = [one for one in changes if _is_action(one) and one.at_s < at_s - TOLERANCE_S]
    assert not earlier, f"{lines[0]}, but {earlier[0].principal} wrote {earlier[0].kind} {earlier[0].name} before"


def acts_first(drill: str) -> set[str]:
    """The controllers that may act first in a drill, by the table of docs/failures.md."""
    page = (ROOT / "docs" / "failures.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{drill}`"))
    return set(re.split(r", | or ", row.split("|")[3].partition(":")[0].strip()))


def _check_page(drill: str, line: str) -> None:
    """The page names the controller that acts first."""
    assert line.split()[2] in acts_first(drill), f"docs/failures.md says {sorted(acts_first(drill))}; found {line}"


def _check_progress(lines: list[str], changes: list[CommittedChange]) -> None:
    """As many replicas began to serve as the histories show."""
    began = sum(
        one.kind == "Replica"
        and one.change.new is not None
        and stage(one.change.new) is Stage.SERVING
        and (one.change.old is None or stage(one.change.old) is not Stage.SERVING)
        for one in changes
    )
    told = next((int(line.split()[1]) for line in lines if line.startswith("Serving: ")), 0)
    assert told == began, f"{began} replicas began to serve; the answer says {told}"


def _check_invariants(lines: list[str]) -> None:
    """Every property that a history shows was judged, and none was violated."""
    text = "\n".join(lines)
    for what in CHECKED:
        assert f"judged: {what}" in text, what
    assert re.search(r"the recorded history of every cell, \d+ commits: 0 violation", text)
    judged = set(re.findall(r"\bS(\d+)\b", "\n".join(line for line in lines if line.startswith("judged: "))))
    assert judged == {str(number) for number in range(1, 11)}


def _check_telemetry(lines: list[str], changes: list[CommittedChange]) -> None:
    """Recorded decisions are counted by cell and policy revision."""
    made = Counter(
        (one.cell, one.change.new.spec.policy_revision)
        for one in changes
        if one.kind == "Decision" and one.change.old is None and one.change.new is not None
    )
    for (cell, revision), count in made.items():
        assert f"{cell}: {count} Decision(s) by policy revision {revision}" in lines, (cell, revision, count, lines)


def _check_path(lines: list[str], changes: list[CommittedChange]) -> None:
    """The path has every change of a state, is not the drill's own undo, and names the writers."""
    own = [line for line in lines if not line.startswith(("undone by the drill", "cleanup check"))]
    assert own and own != ["none: no repair or rollback was recorded"], lines
    text = "\n".join(own)
    for one in changes:
        old, new = one.change.old, one.change.new
        regional_copy = one.cell != "global" and one.kind != "Node"
        if one.kind not in STATES or old is None or new is None or regional_copy:
            continue
        before, after = STATES[one.kind](old), STATES[one.kind](new)
        if before != after:
            change = f"{_role(one.principal)} ({one.cell}): {one.kind} {one.name} "
            found = [line for line in own if change in line and line.endswith(f"{before or 'unset'} → {after}")]
            assert found, f"{change}{before} → {after} at +{one.at_s:.1f} s is not in the answer:\n{text}"
    terms = [one for one in changes if one.kind == "Term" and one.change.old is not None]
    assert all(f" {one.name}, term " in text for one in terms if one.cell != "global")
