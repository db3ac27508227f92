"""Schemas of the next and the previous release, for version-skew simulations.

A process of another release runs the same code. Its messages and stored objects are rewritten as JSON:

- The next release adds unknown fields at every level, a status block, a stored kind, and through its own writes an
  unknown condition type, labels and annotations.
- The previous release neither sends, reads nor stores the fields in `MISSING_FIELDS`.

Decision 0020 defines compatible additions. The rewrite never makes the incompatible ones: another value of a closed
vocabulary, a finalizer, an owner of an unknown kind.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from holdfast.model import codec
from holdfast.model.kinds import BY_NAME, Kind, kind_of, kind_of_store_key
from holdfast.model.meta import Condition
from holdfast.model.ownership import is_mirrored_here
from holdfast.model.writes import Create, Notice, SetStatus, Write
from holdfast.store.contract import Append, Put, Remove, StoredEntry, Txn

R = TypeVar("R", bound=msgspec.Struct)


class ReleaseVersion(enum.StrEnum):
    PREVIOUS = "former release"
    CURRENT = "present release"
    NEXT = "next release"


UNKNOWN = "tomorrow"
UNKNOWN_NULL = "tomorrowNull"
UNKNOWN_KIND_KEY = "/tomorrows/"
UNKNOWN_VALUE = {"why": "unheard of", "many": [1, 2.5, {"deep": [None, {"er": "still"}]}]}
UNKNOWN_FIELDS = {UNKNOWN: UNKNOWN_VALUE}
UNKNOWN_LABEL = "holdfast.dev/tomorrow"
UNKNOWN_CONDITION = Condition(
    type="Tomorrow", status="True", reason="HeardOfTomorrow", message="this release does not know it"
)


class MissingField(msgspec.Struct, frozen=True):
    """A field that the previous release does not know. `of` is a kind or message type; `path` may lead through
    lists."""

    kind: str
    path: str
    why: str


MISSING_FIELDS = (
    MissingField("Node", "status.execution.cachedArtifacts", "a preference: without it no node has cached artifacts"),
    MissingField("Node", "status.execution.agentVersion", "informational"),
    MissingField("Node", "status.execution.isolation", "informational"),
    MissingField(
        "Node",
        "status.execution.quarantine",
        "evidence: without it replicas are scheduled there and fail as on any node",
    ),
    MissingField("Replica", "status.execution.pid", "informational"),
    MissingField("Replica", "status.execution.lastExit", "informational; the phase decides"),
    MissingField("Replica", "status.repair.message", "informational"),
    MissingField("Assignment", "status.failing", "informational; the serving count decides"),
    MissingField(
        "Assignment",
        "status.ordinals",
        "without it a region has released an ordinal only when it has no replica left, so moves wait",
    ),
    MissingField(
        "Assignment", "status.revision", "without it a workload that scales down shows as not serving for a moment"
    ),
    MissingField("Assignment", "status.pendingEvictions", "order of disruption shares; blocked evictions count more"),
    MissingField("Region", "status.report.policyTrial", "a policy guard without counts waits for them"),
    MissingField(
        "Region", "status.report.peers", "without witnesses a region that stops reporting is declared lost later"
    ),
    MissingField(
        "PlacementResponse", "incarnation", "only a restored cell raises it; without it every response is accepted"
    ),
    MissingField("PersistedState", "incarnation", "the same, in the agent's state file"),
    MissingField("PlacementResponse", "results.facts", "informational; result and reason decide"),
    MissingField("PlacementResponse", "results.message", "informational"),
)
"""Optional fields that may be absent, with the consequence. Fields that limit something are not among them and must not
be dropped by any release (disruptionShare, protected, runUntil, quotaReleased, recoverySlots, tenures, epochs, expiry
times)."""


# Trees of plain data --------------------------------------------------------------------------------------------------


def written_by(release: ReleaseVersion, kind: type[Any], tree: Any) -> Any:
    """A message or object as a process of this release writes it."""
    if release is ReleaseVersion.NEXT:
        return _with_unknown_fields(kind, tree, top=True)
    return read_by(release, kind.__name__, tree)


def read_by(release: ReleaseVersion, name: str, tree: Any) -> Any:
    """A message or object as a process of this release reads it. Changes the given tree."""
    if release is ReleaseVersion.PREVIOUS:
        for path in _missing_paths(name):
            _drop(tree, path)
    return tree


def _with_unknown_fields(kind: Any, value: Any, *, top: bool = False) -> Any:
    shape = _shape(kind)
    if shape is None or value is None:
        return value
    if shape.fields is None:
        if isinstance(value, dict):
            return {name: _with_unknown_fields(shape.items, inner) for name, inner in value.items()}
        return [_with_unknown_fields(shape.items, inner) for inner in value]
    if isinstance(value, list):
        return [*value, UNKNOWN_VALUE]
    known = {name: _with_unknown_fields(shape.fields.get(name), inner) for name, inner in value.items()}
    # Every release writes metadata first (`model/codec.py`). Inside of it, unknown fields may come first.
    return {**known, UNKNOWN: UNKNOWN_VALUE} if top else {UNKNOWN_NULL: None, **known, UNKNOWN: UNKNOWN_VALUE}


class _Shape(msgspec.Struct, frozen=True):
    """A struct with its JSON field names, or a list or map with its item type."""

    fields: dict[str, Any] | None = None
    items: Any = None


@cache
def _shape(kind: Any) -> _Shape | None:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = [found for part in get_args(kind) if (found := _shape(part)) is not None]
        return inner[0] if len(inner) == 1 else None
    if origin in (tuple, list, dict):
        item = get_args(kind)[0 if origin is not dict else 1]
        return _Shape(items=item) if _shape(item) is not None else None
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _Shape(fields={field.encode_name: field.type for field in msgspec.structs.fields(kind)})
    return None


@cache
def _missing_paths(name: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(missing.path.split(".")) for missing in MISSING_FIELDS if missing.kind == name)


def _drop(tree: Any, path: Sequence[str]) -> None:
    if isinstance(tree, list):
        for item in tree:
            _drop(item, path)
    elif isinstance(tree, dict):
        if len(path) == 1:
            tree.pop(path[0], None)
        elif path[0] in tree:
            _drop(tree[path[0]], path[1:])


# Stored values --------------------------------------------------------------------------------------------------------


def stored_by(release: ReleaseVersion, txn: Txn) -> Txn:
    """A transaction as a process of this release stores it, without decoded objects."""
    appends = txn.appends
    if release is ReleaseVersion.NEXT:
        appends = tuple(
            Append(a.log, msgspec.json.encode({**msgspec.json.decode(a.value), **UNKNOWN_FIELDS})) for a in appends
        )
    return Txn(txn.compares, tuple(_put(release, write) for write in txn.writes), appends)


def _put(release: ReleaseVersion, write: Put | Remove) -> Put | Remove:
    kind = kind_of_store_key(write.key)
    if kind is None or isinstance(write, Remove):
        return write
    return Put(write.key, msgspec.json.encode(written_by(release, kind.type, msgspec.json.decode(write.value))))


def entry_read_by(release: ReleaseVersion, entry: StoredEntry | None) -> StoredEntry | None:
    """A stored entry as a process of this release reads it."""
    kind = kind_of_store_key(entry.key) if entry is not None and release is ReleaseVersion.PREVIOUS else None
    if entry is None or kind is None or not _missing_paths(kind.name):
        return entry
    value = msgspec.json.encode(read_by(release, kind.name, msgspec.json.decode(entry.value)))
    return StoredEntry(entry.key, value, entry.revision, entry.created)


def object_read_by(release: ReleaseVersion, kind: Kind, item: Any) -> Any:
    """An object without the fields that the release does not know."""
    if item is None or release is not ReleaseVersion.PREVIOUS or not _missing_paths(kind.name):
        return item
    tree = read_by(release, kind.name, msgspec.json.decode(codec.encode(item)))
    return codec.decode(kind, msgspec.json.encode(tree), item.revision)


def record_left_by(release: ReleaseVersion, record: R) -> R:
    """An agent's state file as the next process reads it after this release has written it."""
    if release is ReleaseVersion.CURRENT:
        return record
    tree = written_by(release, type(record), msgspec.json.decode(msgspec.json.encode(record)))
    return msgspec.json.decode(msgspec.json.encode(tree), type=type(record))


# Writes ---------------------------------------------------------------------------------------------------------------


def next_release_writes(writes: Sequence[Write], cell: str) -> tuple[Write, ...]:
    """Writes of the next release: created objects get an unknown label, statuses an unknown condition.

    Copies of another cell's objects are not changed.
    """
    return tuple(_next_release_write(write, cell) for write in writes)


def _next_release_write(write: Write, cell: str) -> Write:
    match write:
        case Create():
            meta = write.object.metadata
            if is_mirrored_here(kind_of(write.object).name, cell, meta.name):
                return write
            marked = msgspec.structs.replace(
                meta,
                labels={**meta.labels, UNKNOWN_LABEL: "label"},
                annotations={**meta.annotations, UNKNOWN_LABEL: "annotation"},
            )
            return Create(msgspec.structs.replace(write.object, metadata=marked))
        case SetStatus():
            if not write.blocks or is_mirrored_here(write.kind, cell, write.key.name):
                return write
            conditions = tuple(c for c in write.conditions if c.type != UNKNOWN_CONDITION.type)
            return msgspec.structs.replace(write, conditions=(*conditions, UNKNOWN_CONDITION))
        case _:
            return write


def next_release_notices(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    """All notices, and for each a second one with an unknown reason."""
    return tuple(
        copied for notice in notices for copied in (notice, msgspec.structs.replace(notice, reason="SeenByTomorrow"))
    )


def kind_type(name: str) -> type[Any]:
    return BY_NAME[name].type
