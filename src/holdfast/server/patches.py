"""Patches on plain data: JSON merge patch (RFC 7386), JSON patch (RFC 6902) and a subset of strategic merge patch.

The input is never modified. A malformed patch raises BadRequest; a failed `test` or a missing path raises Invalid.
"""

from __future__ import annotations

import copy
from typing import Any

from holdfast.model.errors import BadRequest, Invalid
from holdfast.server.request_bodies import MAX_BODY_VALUES, MAX_NESTING

# Operations of a JSON patch. More are refused.
MAX_PATCH_OPERATIONS = 1000

OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    made: dict[str, Any] = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge_patch(made.get(key), value)
    return made


def strategic_patch(target: Any, patch: Any) -> Any:
    """A merge patch without the `$…` directives: sufficient for kinds without keyed lists, such as Namespace and
    Event.
    """
    return merge_patch(target, _without_directives(patch))


def _without_directives(patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    return {key: _without_directives(value) for key, value in patch.items() if not key.startswith("$")}


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902, all operations or none."""
    if not isinstance(operations, list):
        raise BadRequest("JSON patch: must be a list of operations")
    if len(operations) > MAX_PATCH_OPERATIONS:
        raise BadRequest(f"JSON patch: too many operations (limit {MAX_PATCH_OPERATIONS})")
    made = copy.deepcopy(target)
    copied = 0
    for index, operation in enumerate(operations):
        if not isinstance(operation, dict) or operation.get("op") not in OPERATIONS:
            raise BadRequest(f"JSON patch operation {index}: invalid op (expected one of {', '.join(OPERATIONS)})")
        if operation["op"] == "copy":
            copied += _count_values(_get(made, _pointer(operation.get("from"), index), index), MAX_BODY_VALUES - copied)
            if copied > MAX_BODY_VALUES:
                raise BadRequest(f"JSON patch operation {index}: copies too many values (limit {MAX_BODY_VALUES})")
        made = _apply(made, operation, index)
    return made


def _count_values(value: Any, limit: int) -> int:
    """The number of values in `value`; stops counting above `limit`. Repeated copies of copies would double it."""
    found = 0
    pending = [value]
    while pending and found <= limit:
        item = pending.pop()
        found += 1
        pending += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return found


def _apply(document: Any, operation: dict[str, Any], index: int) -> Any:
    op = operation["op"]
    path = _pointer(operation.get("path"), index)
    if op in ("add", "replace", "test") and "value" not in operation:
        raise BadRequest(f"JSON patch operation {index} ({op}): value is missing")
    match op:
        case "add":
            return _add(document, path, copy.deepcopy(operation["value"]), index)
        case "remove":
            return _remove(document, path, index)[0]
        case "replace":
            _get(document, path, index)
            if not path:
                return copy.deepcopy(operation["value"])
            parent = _get(document, path[:-1], index)
            parent[_key(parent, path[-1], index)] = copy.deepcopy(operation["value"])
            return document
        case "test":
            if _get(document, path, index) != operation["value"]:
                raise Invalid(f"JSON patch operation {index}: test of {operation['path']} failed (the value differs)")
            return document
    source = _pointer(operation.get("from"), index)
    if op == "copy":
        return _add(document, path, copy.deepcopy(_get(document, source, index)), index)
    if path[: len(source)] == source and path != source:
        raise BadRequest(f"JSON patch operation {index}: cannot move a value into itself")
    document, value = _remove(document, source, index)
    return _add(document, path, value, index)


def _pointer(text: Any, index: int) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise BadRequest(f"JSON patch operation {index}: invalid path (expected a path such as /metadata/labels)")
    parts = [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]
    if len(parts) > MAX_NESTING:
        raise BadRequest(f"JSON patch operation {index}: path too deep (limit {MAX_NESTING})")
    return parts


def _missing(index: int, part: str) -> Invalid:
    return Invalid(f"JSON patch operation {index}: {part[:80]} does not exist")


def _key(parent: Any, part: str, index: int) -> Any:
    """The index or key of an existing child."""
    if isinstance(parent, list):
        if not part.isascii() or not part.isdigit() or len(part) > 9 or int(part) >= len(parent):
            raise _missing(index, part)
        return int(part)
    if not isinstance(parent, dict) or part not in parent:
        raise _missing(index, part)
    return part


def _get(document: Any, path: list[str], index: int) -> Any:
    for part in path:
        document = document[_key(document, part, index)]
    return document


def _add(document: Any, path: list[str], value: Any, index: int) -> Any:
    if not path:
        return value
    parent = _get(document, path[:-1], index)
    last = path[-1]
    if isinstance(parent, list):
        at = len(parent) if last == "-" else None
        if at is None:
            if not last.isascii() or not last.isdigit() or len(last) > 9 or int(last) > len(parent):
                raise _missing(index, last)
            at = int(last)
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise _missing(index, last)
    return document


def _remove(document: Any, path: list[str], index: int) -> tuple[Any, Any]:
    if not path:
        raise BadRequest(f"JSON patch operation {index}: cannot remove the whole object")
    parent = _get(document, path[:-1], index)
    return document, parent.pop(_key(parent, path[-1], index))
