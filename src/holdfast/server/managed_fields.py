"""Field ownership: the managedFields of an object as sets of paths, and how a plain write changes them.

A path is a tuple of FieldsV1 elements (`f:spec`, `k:{"name":"http"}`, `v:"x"`). Identity and bookkeeping fields have no
owner.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.model import limits
from holdfast.model.meta import ManagedFields
from holdfast.model.schema import Schema
from holdfast.server.request_bodies import MAX_NESTING

# managedFields entries of operation Update per object. The oldest are merged into one entry, as in Kubernetes.
MANAGED_FIELDS_UPDATES_MAX = 10

Path = tuple[str, ...]
Paths = frozenset[Path]
APPLY, UPDATE = "Apply", "Update"
ANCIENT = "ancient-changes"
BEFORE_FIRST_APPLY = "before-first-apply"
# Field paths owned by one manager per object. The rest has no owner.
MAX_PATHS = 20_000

_UNOWNED_TOP = frozenset({"apiVersion", "kind"})
_UNOWNED_META = frozenset(
    {
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
    }
)
MISSING = object()


class Owner(msgspec.Struct, frozen=True, order=True):
    manager: str
    operation: str
    subresource: str = ""


class ManagedFieldsEntry(msgspec.Struct, frozen=True):
    paths: Paths
    time: str
    api_version: str


Owners = dict[Owner, ManagedFieldsEntry]


def parse(entries: Iterable[ManagedFields]) -> Owners:
    """Entries of an unknown fieldsType are skipped; they own nothing here."""
    owners: Owners = {}
    for entry in entries:
        if entry.fields_type not in ("", "FieldsV1") or not entry.operation:
            continue
        paths = frozenset(_unfold(entry.fields_v1))
        owners[Owner(entry.manager, entry.operation, entry.subresource)] = ManagedFieldsEntry(
            paths, entry.time, entry.api_version
        )
    return owners


def render(owners: Owners) -> tuple[ManagedFields, ...]:
    """Oldest first; of equal times Apply entries before Update entries. Empty entries are omitted."""
    rows = sorted(owners.items(), key=lambda row: (row[1].time, row[0].operation, row[0].manager, row[0].subresource))
    return tuple(
        ManagedFields(
            manager=owner.manager,
            operation=owner.operation,
            api_version=entry.api_version,
            time=entry.time,
            fields_type="FieldsV1",
            fields_v1=_fold(entry.paths),
            subresource=owner.subresource,
        )
        for owner, entry in rows
        if entry.paths
    )


def _unfold(fields: Any, at: Path = ()) -> Iterator[Path]:
    if not isinstance(fields, dict) or len(at) > MAX_NESTING:
        return
    children = [key for key in fields if key != "."]
    if at and ("." in fields or not children):
        yield at
    for key in children:
        yield from _unfold(fields[key], (*at, key))


@lru_cache(limits.SHARED_PARTS_CACHED)
def _fold(paths: Paths) -> dict[str, Any]:
    """Cached and shared by all owners of the same fields. Must not be modified."""
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    _simplify(tree)
    return tree


def _simplify(tree: dict[str, Any]) -> None:
    """A leaf is `{}`; only a node with children has a `.` entry for itself."""
    for child in tree.values():
        if list(child) == ["."]:
            child.clear()
        else:
            _simplify({key: value for key, value in child.items() if key != "."})


def owned_paths(schema: Schema, data: dict[str, Any], *, only_status: bool = False) -> Paths:
    """Every path that a manager who wrote all of `data` would own."""
    found: list[Path] = []
    for key, value in data.items():
        if key in _UNOWNED_TOP or (key == "status") is not only_status:
            continue
        field = schema.fields.get(key)
        if field is None or (key == "metadata" and not isinstance(value, dict)):
            continue
        if key == "metadata":
            ours = {name: inner for name, inner in value.items() if name not in _UNOWNED_META}
            if ours:
                _collect(field, ours, ("f:metadata",), found)
        else:
            _collect(field, value, (f"f:{key}",), found)
    return frozenset(found[:MAX_PATHS])


def _collect(schema: Schema, value: Any, at: Path, found: list[Path]) -> None:
    if isinstance(value, dict) and value and (schema.fields or schema.values is not None):
        if schema.optional:
            found.append(at)
        for key, inner in value.items():
            field = schema.fields.get(key) or schema.values
            if field is not None:
                _collect(field, inner, (*at, f"f:{key}"), found)
    elif schema.list_type == "map" and schema.items is not None and value:
        for item in value:
            key = (*at, item_key(schema, item))
            found.append(key)
            _collect(schema.items, item, key, found)
    elif schema.list_type == "set" and value:
        found += [(*at, set_key(item)) for item in value]
    else:
        found.append(at)


def item_key(schema: Schema, item: dict[str, Any]) -> str:
    keys = {name: item.get(name) for name in schema.list_keys}
    return "k:" + json.dumps(keys, separators=(",", ":"), sort_keys=True)


def set_key(item: Any) -> str:
    return "v:" + json.dumps(item)


def value_at(schema: Schema, data: Any, path: Path) -> Any:
    """The value at a path, or MISSING."""
    for element in path:
        if element.startswith("f:"):
            if not isinstance(data, dict) or element[2:] not in data:
                return MISSING
            data = data[element[2:]]
            schema = schema.fields.get(element[2:]) or schema.values or Schema()
            continue
        if not isinstance(data, list | tuple):
            return MISSING
        if element.startswith("v:"):
            data = next((item for item in data if set_key(item) == element), MISSING)
        else:
            keyed = (item for item in data if isinstance(item, dict) and item_key(schema, item) == element)
            data = next(keyed, MISSING)
        if data is MISSING:
            return MISSING
        schema = schema.items or Schema()
    return data


def after_update(
    schema: Schema,
    owners: Owners,
    old: dict[str, Any] | None,
    new: dict[str, Any],
    owner: Owner,
    *,
    now: str,
    api_version: str,
    only_status: bool = False,
) -> Owners:
    """Ownership after a plain write: changed fields belong to the writer, removed fields to nobody. Without a change
    every entry stays.
    """
    paths = owned_paths(schema, new, only_status=only_status)
    if old is None and not owners:
        return {owner: ManagedFieldsEntry(paths, now, api_version)} if paths else {}
    if old is None:
        changed = paths
    else:
        changed = frozenset(
            path for path in paths if _differs(value_at(schema, old, path), value_at(schema, new, path), path)
        )
    gone = frozenset(
        path
        for entry in owners.values()
        for path in entry.paths
        if path not in paths and _is_in_scope(path, only_status) and value_at(schema, new, path) is MISSING
    )
    if not changed and not gone:
        return owners
    made = {
        other: entry
        if not entry.paths & (changed | gone)
        else msgspec.structs.replace(entry, paths=entry.paths - gone - (changed if other != owner else frozenset()))
        for other, entry in owners.items()
    }
    if changed:
        held = made[owner].paths if owner in made else frozenset()
        made[owner] = ManagedFieldsEntry(held | changed, now, api_version)
    return cap_update_entries({other: entry for other, entry in made.items() if entry.paths})


def _is_in_scope(path: Path, only_status: bool) -> bool:
    return (path[0] == "f:status") is only_status


def _differs(old: Any, new: Any, path: Path) -> bool:
    if path[-1].startswith("k:") or (isinstance(old, dict) and isinstance(new, dict)):
        return old is MISSING  # the creator owns the item's presence; its fields are compared separately
    return bool(old is MISSING or old != new)


def cap_update_entries(owners: Owners) -> Owners:
    """Keeps a bounded number of Update entries and merges older ones into one, so that they do not accumulate."""
    updates = sorted((entry.time, owner) for owner, entry in owners.items() if owner.operation == UPDATE)
    if len(updates) <= MANAGED_FIELDS_UPDATES_MAX:
        return owners
    excess = [owner for _, owner in updates if owner.manager != ANCIENT]
    excess = excess[: len(updates) - MANAGED_FIELDS_UPDATES_MAX]
    made = {owner: entry for owner, entry in owners.items() if owner not in excess}
    for owner in excess:
        entry = owners[owner]
        into = Owner(ANCIENT, UPDATE, owner.subresource)
        held = made.get(into)
        made[into] = ManagedFieldsEntry(
            entry.paths | held.paths if held else entry.paths, entry.time, entry.api_version
        )
    return made
