"""Computes the object that a write results in. Pure; checks no permissions.

Owns uid, generation, timestamps, initial finalizers and the steps of deletion. A write that changes nothing returns the
identical object, so that callers can detect it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.gate.ownership import field_default, ownership_of
from holdfast.model.kinds import ALL, Kind
from holdfast.model.meta import Condition, Object, ObjectMeta, find_condition, with_condition
from holdfast.model.ownership import INITIAL_FINALIZERS
from holdfast.model.principal import Principal
from holdfast.model.writes import SetStatus

PROPAGATION_FINALIZERS = {"Background": "", "Foreground": "foregroundDeletion", "Orphan": "orphan"}
NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
NAME_SUFFIX = 5
_MAX_GENERATED_STEM = 58

_CONTENT: dict[str, tuple[str, ...]] = {
    kind.name: tuple(f.name for f in msgspec.structs.fields(kind.type) if f.name not in ("metadata", "status"))
    for kind in ALL
}
# Kinds whose generation counts changes of the content: of the others nothing observes it.
_COUNTED = frozenset(kind.name for kind in ALL if kind.has_status or kind.name in ("Secret", "ConfigMap"))
_STATUS_TYPES: dict[str, dict[str, Any]] = {}
_NEW_STATUS: dict[str, Callable[[], Any]] = {}
for _kind in ALL:
    for _field in msgspec.structs.fields(_kind.type):
        if _field.name == "status":
            _found = msgspec.structs.fields(_field.type)
            _STATUS_TYPES[_kind.name] = {f.name: f for f in _found} | {f.encode_name: f for f in _found}
            _NEW_STATUS[_kind.name] = _field.type


_EMPTY_STATUS: dict[str, Any] = {name: make() for name, make in _NEW_STATUS.items()}


def generated_name(stem: str, pick: Callable[[str], str]) -> str:
    """A name with this prefix; `pick` chooses one letter."""
    return stem[:_MAX_GENERATED_STEM] + "".join(pick(NAME_LETTERS) for _ in range(NAME_SUFFIX))


def create_object(kind: Kind, given: Object, *, uid: str, now: str, who: Principal) -> Object:
    """A new object as first stored."""
    meta = given.metadata
    starting = tuple(f for f in INITIAL_FINALIZERS.get(kind.name, ()) if f not in meta.finalizers)
    stamped = replace(
        meta,
        uid=uid,
        resource_version="",
        generation=1 if kind.name in _COUNTED else 0,
        creation_timestamp=now,
        deletion_timestamp="",
        deletion_grace_period_seconds=None,
        finalizers=(*starting, *meta.finalizers),
    )
    item = replace(given, metadata=stamped)
    return _with_owned_status(kind, item, who)


def mirror_object(given: Object, before: Object | None, *, uid: str, now: str) -> Object:
    """A copy of an object of the global cell: it keeps identity, generation and status."""
    meta = given.metadata
    if before is None:
        meta = replace(
            meta,
            uid=meta.uid or uid,
            creation_timestamp=meta.creation_timestamp or now,
            generation=meta.generation or int(hasattr(given, "status")),
            resource_version="",
        )
    else:
        meta = replace(meta, uid=meta.uid or before.uid, resource_version=before.metadata.resource_version)
    return replace(given, metadata=meta)


def _with_owned_status(kind: Kind, item: Object, who: Principal) -> Object:
    """A new object starts with an empty status, except for blocks that its creator owns."""
    table = ownership_of(kind, mirrored_here=False)
    make = _NEW_STATUS.get(kind.name)
    if make is None or table is None:
        return item
    status = item.status  # type: ignore[attr-defined]
    if status == _EMPTY_STATUS[kind.name]:
        return item
    kept: dict[str, Any] = {}
    for field in table.status:
        value = field.get(item)
        if value != field.default and who.roles & field.roles:
            kept[_STATUS_TYPES[kind.name][field.path.rpartition(".")[2]].name] = value
    fresh = make(**kept)
    return item if fresh == status else replace(item, status=fresh)


def update_object(kind: Kind, before: Object, given: Object) -> Object:
    """The object with everything but its status from `given`; identity and creation data stay."""
    old, new = before.metadata, given.metadata
    meta = replace(
        old,
        labels=new.labels,
        annotations=new.annotations,
        owner_references=new.owner_references,
        finalizers=new.finalizers,
        managed_fields=new.managed_fields,
    )
    changes: dict[str, Any] = {name: getattr(given, name) for name in _CONTENT[kind.name]}
    if any(getattr(before, name) != value for name, value in changes.items()):
        if kind.name in _COUNTED:
            meta = replace(meta, generation=old.generation + 1)
        return replace(before, metadata=meta, **changes)
    return before if meta == old else replace(before, metadata=meta)


def replace_status(before: Object, given: Object, *, now: str) -> Object:
    """The object with only its status and managedFields from `given`. observedGeneration never decreases."""
    status = given.status  # type: ignore[attr-defined]
    was = before.status  # type: ignore[attr-defined]
    if getattr(status, "observed_generation", 0) < getattr(was, "observed_generation", 0):
        status = replace(status, observed_generation=was.observed_generation)
    undated = [c for c in getattr(status, "conditions", ()) if not c.last_transition_time]
    if undated:
        known: tuple[Condition, ...] = was.conditions
        dated = tuple(c if c.last_transition_time else _with_transition_time(known, c, now) for c in status.conditions)
        status = replace(status, conditions=dated)
    meta = before.metadata
    if given.metadata.managed_fields != meta.managed_fields:
        meta = replace(meta, managed_fields=given.metadata.managed_fields)
    if status == was and meta is before.metadata:
        return before
    return replace(before, metadata=meta, status=status)


def _with_transition_time(known: tuple[Condition, ...], condition: Condition, now: str) -> Condition:
    merged = find_condition(with_condition(known, condition, now), condition.type)
    return merged if merged is not None else condition


def block_types(kind: Kind) -> dict[str, Any]:
    """The status fields of a kind, by JSON name and by Python name."""
    return _STATUS_TYPES.get(kind.name, {})


def set_blocks(kind: Kind, before: Object, write: SetStatus, *, now: str) -> Object:
    """The object with whole status blocks replaced. Raises msgspec.ValidationError for data of the wrong type."""
    status = before.status  # type: ignore[attr-defined]
    known = block_types(kind)
    changes: dict[str, Any] = {}
    for name, value in write.blocks.items():
        field = known[name]
        changes[field.name] = _convert_block(field, value)
    if write.conditions and "conditions" in known:
        changes["conditions"] = _merged_conditions(status.conditions, write.conditions, now)
    if write.observed_generation and "observedGeneration" in known:
        changes["observed_generation"] = max(status.observed_generation, write.observed_generation)
    if all(getattr(status, name) == value for name, value in changes.items()):
        return before
    return replace(before, status=replace(status, **changes))


def _convert_block(field: Any, value: Any) -> Any:
    """A block as its declared type; None resets it to its default."""
    if value is None:
        empty = field_default(field)
        return None if empty is msgspec.NODEFAULT else empty
    if isinstance(value, msgspec.Struct):
        return value
    return msgspec.convert(msgspec.to_builtins(value), field.type)


def _merged_conditions(held: tuple[Condition, ...], given: tuple[Condition, ...], now: str) -> tuple[Condition, ...]:
    """Merges in order. A condition about an older generation never replaces one about a newer generation."""
    for condition in given:
        old = find_condition(held, condition.type)
        if old is not None and 0 < condition.observed_generation < old.observed_generation:
            continue
        held = with_condition(held, condition, now)
    return held


def mark_deleted(kind: Kind, before: Object, propagation: str, *, now: str) -> Object | None:
    """None if nothing blocks the removal; else the object marked for deletion."""
    meta = before.metadata
    if meta.terminating:
        return before if meta.finalizers else None
    extra = PROPAGATION_FINALIZERS[propagation]
    finalizers = meta.finalizers
    if extra and extra not in finalizers and not kind.ephemeral and kind.collected:
        finalizers = (*finalizers, extra)
    if not finalizers:
        return None
    marked: ObjectMeta = replace(
        meta,
        deletion_timestamp=now,
        deletion_grace_period_seconds=0,
        finalizers=finalizers,
        generation=meta.generation + 1 if kind.has_status else 0,
    )
    return replace(before, metadata=marked)
