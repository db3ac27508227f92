"""Server-side apply: merges a manager's configuration, using the fields it owned before. Pure.

Fields that the manager no longer sets are removed, unless another manager owns them too. A field that another manager
owns with another value is a conflict, unless forced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.errors import Cause
from holdfast.model.schema import Schema
from holdfast.server.managed_fields import (
    APPLY,
    BEFORE_FIRST_APPLY,
    MISSING,
    UPDATE,
    ManagedFieldsEntry,
    Owner,
    Owners,
    Path,
    Paths,
    item_key,
    owned_paths,
    set_key,
    value_at,
)
from holdfast.server.status import HttpRefusal

Normalize = Callable[[dict[str, Any]], dict[str, Any]]


class ApplyResult(msgspec.Struct, frozen=True):
    data: dict[str, Any]
    owners: Owners


def apply(
    schema: Schema,
    live: dict[str, Any] | None,
    config: dict[str, Any],
    owners: Owners,
    owner: Owner,
    *,
    force: bool,
    now: str,
    api_version: str,
    normalize: Normalize,
) -> ApplyResult:
    """The object after the apply. `normalize` converts data to its stored form, so that `1000m` equals `1`."""
    only_status = owner.subresource == "status"
    wanted = owned_paths(schema, config, only_status=only_status)
    if live is None:
        return ApplyResult(config, {owner: ManagedFieldsEntry(wanted, now, api_version)})
    if not owners:
        everything = owned_paths(schema, live, only_status=only_status)
        owners = {Owner(BEFORE_FIRST_APPLY, UPDATE): ManagedFieldsEntry(everything, now, api_version)}
    before = owners[owner].paths if owner in owners else frozenset()
    others = {other: entry for other, entry in owners.items() if other != owner}
    theirs: Paths = frozenset().union(*(entry.paths for entry in others.values()))
    data = _remove_paths(schema, live, before - wanted - theirs, theirs)
    data = merge(schema, data, config)
    result = normalize(data)
    contested = _find_conflicts(schema, live, result, wanted, others)
    if contested and not force:
        raise _conflict(contested)
    taken = frozenset(path for _, path in contested)
    kept = {
        other: msgspec.structs.replace(entry, paths=_existing(schema, result, entry.paths - taken))
        for other, entry in others.items()
    }
    unchanged = owner in owners and owners[owner].paths == wanted and result == normalize(live)
    kept[owner] = ManagedFieldsEntry(wanted, owners[owner].time if unchanged else now, api_version)
    return ApplyResult(data, {other: entry for other, entry in kept.items() if entry.paths or other == owner})


def _find_conflicts(
    schema: Schema, live: dict[str, Any], result: dict[str, Any], wanted: Paths, others: Owners
) -> list[tuple[Owner, Path]]:
    """Fields that this apply would change and another manager owns."""
    found: list[tuple[Owner, Path]] = []
    for other, entry in sorted(others.items(), key=lambda row: row[0]):
        for path in sorted(wanted & entry.paths):
            held = value_at(schema, live, path)
            if path[-1].startswith(("k:", "v:")) or isinstance(held, dict):
                continue  # the presence of an item is never contested, only its fields
            if held is not MISSING and held != value_at(schema, result, path):
                found.append((other, path))
    return found


def _conflict(contested: list[tuple[Owner, Path]]) -> HttpRefusal:
    causes = tuple(
        Cause(path_text(path), "FieldManagerConflict", f'conflict with "{other.manager}"{_manager_suffix(other)}')
        for other, path in contested
    )
    by_owner: dict[str, list[str]] = {}
    for other, path in contested:
        by_owner.setdefault(f'"{other.manager}"{_manager_suffix(other)}', []).append(path_text(path))
    count = len(contested)
    noun = "conflict" if count == 1 else "conflicts"
    if count == 1:
        [(name, [field])] = by_owner.items()
        message = f"Apply failed with 1 conflict: conflict with {name}: {field}"
    else:
        listed = "\n".join(
            f"conflicts with {name}:\n" + "\n".join(f"- {field}" for field in fields)
            for name, fields in by_owner.items()
        )
        message = f"Apply failed with {count} {noun}: {listed}"
    return HttpRefusal(409, "Conflict", message, causes)


def _manager_suffix(owner: Owner) -> str:
    if owner.operation == APPLY and not owner.subresource:
        return ""
    how = f' with subresource "{owner.subresource}"' if owner.subresource else ""
    return f"{how} using v1" if owner.operation == UPDATE else how


def path_text(path: Path) -> str:
    """A path in readable form: `.spec.template.ports[name="http"].port`."""
    text = ""
    for element in path:
        kind, rest = element[:2], element[2:]
        if kind == "f:":
            text += f".{rest}"
        elif kind == "k:":
            keys = msgspec.json.decode(rest)
            text += "[" + ",".join(f'{name}="{value}"' for name, value in keys.items()) + "]"
        else:
            text += f"[={rest}]"
    return text


def _existing(schema: Schema, data: dict[str, Any], paths: Paths) -> Paths:
    return frozenset(path for path in paths if value_at(schema, data, path) is not MISSING)


# Merge and removal ----------------------------------------------------------------------------------------------


def merge(schema: Schema, live: Any, config: Any) -> Any:
    """Merges maps by key, keyed lists by their keys, sets by union; replaces everything else."""
    if isinstance(config, dict) and isinstance(live, dict) and (schema.fields or schema.values is not None):
        made = dict(live)
        for key, value in config.items():
            field = schema.fields.get(key) or schema.values or Schema()
            made[key] = merge(field, live[key], value) if key in live else value
        return made
    if schema.list_type == "map" and schema.items is not None and isinstance(live, list | tuple):
        made_list = list(live)
        at = {item_key(schema, item): index for index, item in enumerate(made_list)}
        for item in config:
            index = at.get(item_key(schema, item))
            if index is None:
                made_list.append(item)
            else:
                made_list[index] = merge(schema.items, made_list[index], item)
        return made_list
    if schema.list_type == "set" and isinstance(live, list | tuple):
        return [*live, *(item for item in config if item not in live)]
    return config


def _remove_paths(schema: Schema, live: dict[str, Any], gone: Paths, theirs: Paths) -> dict[str, Any]:
    """`live` without the paths that have no owner left, shortest path first, so that whole items are removed at
    once.
    """
    if not gone:
        return live
    data = copy.deepcopy(live)
    for path in sorted(gone, key=lambda p: (len(p), p)):
        if any(other[: len(path)] == path for other in theirs):
            continue  # another manager owns a field below it
        _remove_path(schema, data, path)
    return data


def _remove_path(schema: Schema, data: Any, path: Path) -> None:
    """Removes one path, and containers that become empty by it."""
    element, rest = path[0], path[1:]
    if element.startswith("f:"):
        name = element[2:]
        if not isinstance(data, dict) or name not in data:
            return
        if not rest:
            del data[name]
            return
        field = schema.fields.get(name) or schema.values or Schema()
        _remove_path(field, data[name], rest)
        if data[name] in ({}, []) and name not in ("metadata", "spec", "status"):
            del data[name]
        return
    if not isinstance(data, list):
        return
    for index, item in enumerate(data):
        same = (
            set_key(item) == element
            if element.startswith("v:")
            else (isinstance(item, dict) and item_key(schema, item) == element)
        )
        if same:
            if rest:
                _remove_path(schema.items or Schema(), item, rest)
            else:
                del data[index]
            return
