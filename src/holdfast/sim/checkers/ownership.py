"""S5 and S6: placement only by the authority under its current term; every field only by its owner.

Who wrote is read from the audit record inside the same transaction, so a write without its record is a breach too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model.kinds import Kind, kind_of
from holdfast.model.ownership import OWNERS, UNOWNED, deleters, is_mirrored_here, owners
from holdfast.store.contract import Txn

PLACEMENT = frozenset({"Binding", "Reservation", "LeasePage", "Decision"})
TERM_KEY = "/terms/authority"


def writer_of(txn: Txn) -> str:
    """The principal in the transaction's audit record."""
    for append in txn.appends:
        if append.log == "audit":
            return str(msgspec.json.decode(append.value).get("principal", ""))
    return ""


def roles_of(principal: str) -> frozenset[str]:
    """What an identity may write as; a table of its own, beside the gate's."""
    parts = principal.split(":")
    if parts[:2] == ["holdfast", "controller"]:
        return frozenset({parts[2]})
    if parts[:2] == ["holdfast", "node"]:
        return frozenset({"agent"})
    if parts[:2] == ["holdfast", "region"]:
        return frozenset({"region"})
    return frozenset({"operator", "user"})


def acting_roles(txn: Txn) -> frozenset[str]:
    """As whom a transaction was made. The authority commits under its own term; its record names who asked."""
    if any(c.key == TERM_KEY for c in txn.compares):
        return frozenset({"authority"})
    return roles_of(writer_of(txn))


def check_token(txn: Txn, changed: list[tuple[str, Any, Any]], term_revision: int) -> Iterator[tuple[str, str]]:
    """S5 for one transaction; `term_revision` is the authority's term before it."""
    kinds = sorted({kind_of(new if new is not None else old).name for _, old, new in changed} & PLACEMENT)
    if not kinds:
        return
    compared = {c.key: c.revision for c in txn.compares}
    if TERM_KEY in compared:
        if compared[TERM_KEY] != term_revision:
            yield "S5", f"{kinds} committed under token {compared[TERM_KEY]}, the term is at {term_revision}"
        return
    for key, old, new in changed:
        kind = kind_of(new if new is not None else old)
        if kind.name in PLACEMENT and (old is None or new is None or old.spec != new.spec):
            yield "S5", f"{key} written by {writer_of(txn) or 'nobody'}, without the authority's term"


def check_owners(cell: str, txn: Txn, changed: list[tuple[str, Any, Any]]) -> Iterator[tuple[str, str]]:
    """S6 for one transaction."""
    writer = writer_of(txn)
    roles = acting_roles(txn)
    for key, old, new in changed:
        kind = kind_of(new if new is not None else old)
        if kind.name in UNOWNED or kind.name == "LeasePage":
            continue
        if not writer:
            yield "S6", f"{key} written without an audit record"
            continue
        mirrored = is_mirrored_here(kind.name, cell) and kind.name != "Endpoint"
        if new is None:
            allowed = deleters(kind.name, mirrored_here=mirrored) | _finalizers_of(kind)
            if not roles & allowed:
                yield "S6", f"{key} removed by {writer}, who may not delete it"
            continue
        for group in () if mirrored and "link" in roles else _changed_groups(kind, old, new):
            allowed = owners(kind.name, group, mirrored_here=mirrored)
            if not roles & allowed:
                yield "S6", f"{key} {group} changed by {writer}; it belongs to {', '.join(sorted(allowed)) or 'nobody'}"


def _finalizers_of(kind: Kind) -> frozenset[str]:
    """Whoever removes the last finalizer of a terminating object removes the object."""
    return (
        frozenset({"assign", "release", "collect"}) if kind.name in ("Workload", "Replica", "Tenant") else frozenset()
    )


def _changed_groups(kind: Kind, old: Any, new: Any) -> Iterator[str]:
    """Field groups of the ownership table whose content differs, deepest first; conditions are judged with `status`."""
    after = msgspec.to_builtins(new)
    if old is None:
        return  # what a creator may set of the status is the gate's business; spec and metadata are its own
    before = msgspec.to_builtins(old)
    groups = sorted(OWNERS[kind.name], key=len, reverse=True)
    for group in groups:
        if group == "metadata":
            if _labels(before) != _labels(after):
                yield group
            continue
        parts = group.split(".")
        one, two = _take(before, parts), _take(after, parts)
        if group == "status":
            one, two = _without_conditions(one), _without_conditions(two)
        if one != two:
            yield group


def _labels(item: dict[str, Any]) -> tuple[Any, Any]:
    return item["metadata"].get("labels"), item["metadata"].get("annotations")


def _take(tree: dict[str, Any], parts: list[str]) -> Any:
    """Removes and returns the part, so that what is left belongs to the group above."""
    for part in parts[:-1]:
        tree = tree.get(part) or {}
    return tree.pop(parts[-1], None) if isinstance(tree, dict) else None


def _without_conditions(status: Any) -> Any:
    if not isinstance(status, dict):
        return status
    return {k: v for k, v in status.items() if k not in ("conditions", "observedGeneration")}
