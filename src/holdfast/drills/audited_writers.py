"""The writer and the time of each recorded change, from the audit logs of the platform's cells.

- A record names the principal of a commit. A commit with a term was made by the authority, for that principal.
- Cells whose log is not in a local SQLite file keep the writers that the ownership table allows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.drills.change_recorder import RecordedChange, group_value, in_commit_order
from holdfast.drills.platform_observer import Item
from holdfast.gate.audit import AUDIT_LOG, AuditRecord, decode_record
from holdfast.model.ownership import owners
from holdfast.model.times import parse_time
from holdfast.platform.layout import Layout, Platform
from holdfast.store import schema
from holdfast.store.history import HistoryReader

AUTHORITY = "authority"
RECORDS_MAX = 200_000
"""Audit records read per cell: the newest ones, as many as a cell keeps."""
CLOCK_TOLERANCE_S = 1.0
"""A record is written before its commit is delivered. A record that is older belongs to another change."""

_Key = tuple[str, str, str, str]
"""Cell, kind, namespace and name."""


class Author(msgspec.Struct, frozen=True):
    """`role` committed the change; `requested_by` is the role that asked the authority for it. It replaced the revision
    `replaced`, or created the object with this `uid`."""

    role: str
    at_s: float
    requested_by: str = ""
    replaced: int = 0
    uid: str = ""


def role_of(principal: str) -> str:
    """The role of a principal: a controller's name, `agent`, `region`, `join`, or `operator` for a person."""
    parts = principal.split(":")
    if parts[0] != "holdfast" or len(parts) < 2:
        return "operator"
    if parts[1] == "controller":
        return parts[2]
    return "agent" if parts[1] in ("node", "hollow") else parts[1]


def read_authors(layout: Layout, platform: Platform, *, since_s: float) -> dict[_Key, list[Author]]:
    """The authors of all changes since the wall-clock time `since_s`, as far as local files record them."""
    found: dict[_Key, list[Author]] = {}
    for cell, _ in platform.cells:
        path = layout.cell(cell) / "store.sqlite"
        if not path.exists():
            continue
        reader = HistoryReader(schema.open_reader(path))
        try:
            with reader.snapshot():
                newest = reader.meta()["sequence"]
                rows = reader.log(AUDIT_LOG, max(0, newest - RECORDS_MAX), newest, RECORDS_MAX)
        finally:
            reader.close()
        index_records(found, cell, (decode_record(row.value) for row in rows), since_s=since_s)
    return found


def index_records(
    found: dict[_Key, list[Author]], cell: str, records: Iterable[AuditRecord], *, since_s: float
) -> None:
    """Adds the authors that the records of one cell name."""
    for record in records:
        at_s = parse_time(record.time)
        if record.result != "Committed" or at_s < since_s - CLOCK_TOLERANCE_S:
            continue
        role = role_of(record.principal)
        asked_by = role if record.term and role != AUTHORITY else ""
        writer = AUTHORITY if record.term else role
        for entry in record.entries:
            key = (cell, entry.kind, entry.namespace, entry.name)
            found.setdefault(key, []).append(Author(writer, at_s, asked_by, entry.before, entry.uid))


def with_authors(
    steps: Sequence[RecordedChange], authors: dict[_Key, list[Author]], *, began_at: float
) -> list[RecordedChange]:
    """The changes with the roles and times of their audit records. `began_at` is the wall-clock time of second 0."""
    return in_commit_order([found for step in steps for found in _with_authors(step, authors, began_at)])


def _with_authors(step: RecordedChange, authors: dict[_Key, list[Author]], began_at: float) -> list[RecordedChange]:
    """The change with its author. If versions in between were not observed, because the watch had to list again, it is
    divided among the authors of all of them."""
    latest_s = began_at + step.at_s + CLOCK_TOLERANCE_S
    known = [a for a in authors.get((step.cell, step.kind, step.namespace, step.name), []) if a.at_s <= latest_s]
    by_role = {author.role: author for author in known if _is_part_of(step, author)}
    if len(by_role) < 2 or step.before is None or step.after is None:
        return [_written_by(step, author, began_at) for author in list(by_role.values())[-1:]] or [step]
    ordered = sorted(by_role.values(), key=lambda author: author.replaced)
    groups: dict[str, list[str]] = {author.role: [] for author in ordered}
    for group in step.groups:
        writers = owners(step.kind, group)
        groups[next((role for role in groups if role in writers), ordered[-1].role)].append(group)
    found: list[RecordedChange] = []
    before = step.before
    for author in ordered:
        after = _with_groups(step.kind, before, step.after, groups[author.role])
        part = msgspec.structs.replace(
            step, before=before, after=after, groups=tuple(groups[author.role]), revision=author.replaced + 1
        )
        if part.groups:
            found.append(_written_by(part, author, began_at))
        before = after
    return found or [_written_by(step, ordered[-1], began_at)]


def _with_groups(kind: str, old: Item, new: Item, groups: Sequence[str]) -> Item:
    """The old version with these field groups of the new one."""
    item = copy.deepcopy(old)
    for group in groups:
        changed, former = group_value(kind, new, group) or {}, group_value(kind, old, group) or {}
        if not isinstance(changed, dict) or not isinstance(former, dict):
            *path, leaf = group.split(".")
            _inner(item, path)[leaf] = changed
            continue
        target = _inner(item, group.split("."))
        for name in sorted({*changed, *former}):
            if changed.get(name) is None:
                target.pop(name, None)
            else:
                target[name] = changed[name]
    return item


def _inner(item: Item, path: Sequence[str]) -> Item:
    for name in path:
        if not isinstance(item.get(name), dict):
            item[name] = {}
        item = item[name]
    return item


def _is_part_of(step: RecordedChange, author: Author) -> bool:
    """Whether the author replaced the version before the change, or one between it and the version after it."""
    if step.before is None:
        return not author.replaced and author.uid == (step.after or {})["metadata"]["uid"]
    first = _revision(step.before)
    after = _revision(step.after) if step.after is not None else step.revision
    return first <= author.replaced < max(after, first + 1)


def _revision(item: Item) -> int:
    return int(item["metadata"]["resourceVersion"])


def _written_by(step: RecordedChange, author: Author, began_at: float) -> RecordedChange:
    return msgspec.structs.replace(
        step,
        at_s=min(step.at_s, author.at_s - began_at),
        roles=(author.role,),
        requested_by=author.requested_by,
        audited=True,
    )
