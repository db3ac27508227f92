"""S5 and S6: placement is written only by the authority under its current term, every field only by its owner.

The writer is read from the audit record in the same transaction. A write without audit record is a violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from holdfast.model.join import NodeIdentity
from holdfast.model.kinds import Kind
from holdfast.model.ownership import OWNERS, UNOWNED, deleters, is_mirrored_here, owners
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit
from holdfast.store.contract import Txn

PLACEMENT_KINDS = frozenset({"Binding", "Reservation", "LeasePage", "Decision"})
TERM_KEY = "/terms/authority"
ELECTION_LEASES = "/leases/holdfast-system/"


class _Audited(msgspec.Struct, frozen=True, gc=False):
    """The part of an audit record that is read here."""

    principal: str = ""


_audited = msgspec.json.Decoder(_Audited)


def writer_of(txn: Txn) -> str:
    """The principal in the transaction's audit record."""
    for append in txn.appends:
        if append.log == "audit":
            return _audited.decode(append.value).principal
    return ""


@cache
def roles_of(principal: str) -> frozenset[str]:
    """The roles of a principal. Independent of the gate's table."""
    parts = principal.split(":")
    if parts[:2] == ["holdfast", "controller"]:
        return frozenset({parts[2]})
    if parts[:2] in (["holdfast", "node"], ["holdfast", "hollow"]):
        return frozenset({"agent"})
    if parts[:2] in (["holdfast", "region"], ["holdfast", "join"]):
        return frozenset({parts[1]})
    return frozenset({"operator", "user"})


class OwnershipChecker:
    """Checker of one cell. Fencing tokens are compared with the term before the commit, so the term is kept here."""

    def __init__(self, cell: str) -> None:
        self._cell = cell
        self._term = 0
        self._top = 0

    def check(self, commit: ObservedCommit, writer: str) -> Iterator[Finding]:
        under = next((c.revision for c in commit.txn.compares if c.key == TERM_KEY), None)
        yield from self._token(commit, under, writer)
        roles = frozenset({"authority"}) if under is not None else roles_of(writer)
        for change in commit.changes:
            if change.key == TERM_KEY:
                yield from self._new_term(change.new)
            kind = change.kind
            if kind.name in UNOWNED or kind.name == "LeasePage":
                continue
            about = (change.key,)
            if not writer:
                yield "S6", f"{change.key} written without an audit record", about
                continue
            mirrored = is_mirrored_here(kind.name, self._cell, change.item.metadata.name) and kind.name != "Endpoint"
            if change.new is None:
                if not roles & (deleters(kind.name, mirrored_here=mirrored) | _finalizers_of(kind)):
                    yield "S6", f"{change.key} deleted by {writer}, which may not delete it", about
                continue
            if change.old is None or (mirrored and "link" in roles):
                continue  # the creator owns spec and metadata; the gate limits its status fields
            for group in changed_groups(kind.name, change.old, change.new):
                allowed = owners(kind.name, group, mirrored_here=mirrored)
                if not roles & allowed and not (group == "spec" and self._is_own_renewal(change, writer)):
                    owner_names = ", ".join(sorted(allowed)) or "none"
                    yield "S6", f"{change.key} {group} changed by {writer} (owner: {owner_names})", about

    def _is_own_renewal(self, change: ObservedChange, writer: str) -> bool:
        """Whether a node renews its own certificate: the join service records that under the node's name."""
        old, new = change.old, change.new
        if not isinstance(old, NodeIdentity) or not isinstance(new, NodeIdentity):
            return False
        renewed = msgspec.structs.replace(old.spec, serial=new.spec.serial, expires_at=new.spec.expires_at)
        return writer == f"holdfast:node:{self._cell}:{new.metadata.name}" and renewed == new.spec

    def _new_term(self, term: Any) -> Iterator[Finding]:
        revision = term.revision if term is not None else 0
        if revision <= self._top:
            yield "S5", f"the authority's term decreased from {self._top} to {revision}", (TERM_KEY,)
        self._term, self._top = revision, max(self._top, revision)

    def _token(self, commit: ObservedCommit, under: int | None, writer: str) -> Iterator[Finding]:
        placed = [change for change in commit.changes if change.kind.name in PLACEMENT_KINDS]
        if not placed:
            return
        keys = tuple(change.key for change in placed)
        if under is not None:
            if under != self._term:
                yield "S5", f"{keys} committed with token {under} (current term {self._term})", keys
            return
        for change in placed:
            old, new = change.old, change.new
            if new is None and change.kind.name == "Decision":
                continue  # an old Decision holds no claim, so its deletion needs no term
            if old is None or new is None or old.spec != new.spec:
                yield "S5", f"{change.key} written by {writer or 'unknown'} without the authority's term", keys


def check_elections(commit: ObservedCommit) -> Iterator[Finding]:
    """Checks that an election lease is written only together with its term (a win) or under it (a renewal).

    Only for transactions of a simulated store, because recorded histories do not contain compares.
    """
    for change in commit.changes:
        term = f"/terms/{change.key.removeprefix(ELECTION_LEASES)}"
        if not change.key.startswith(ELECTION_LEASES) or term not in commit.state:
            continue  # not an election lease
        won = any(other.key == term for other in commit.changes)
        if not won and not any(compare.key == term for compare in commit.txn.compares):
            yield "S5", f"{change.key} was written without winning or holding {term}", (change.key, term)


def _finalizers_of(kind: Kind) -> frozenset[str]:
    """Roles that remove the last finalizer of a terminating object, and so delete it."""
    if kind.name == "VolumeClaim":
        return frozenset({"volume-claim"})
    return (
        frozenset({"assign", "release", "collect"}) if kind.name in ("Workload", "Replica", "Tenant") else frozenset()
    )


@cache
def _attributes(kind: str) -> tuple[tuple[str, tuple[tuple[str, tuple[str, ...], frozenset[str]], ...]], ...]:
    """Field groups of a kind by top attribute: name, attribute path, and nested fields that belong to other groups."""
    groups = [group for group in OWNERS[kind] if group != "metadata"]
    rows: dict[str, list[tuple[str, tuple[str, ...], frozenset[str]]]] = {}
    for group in groups:
        below = {_snake(g[len(group) + 1 :]) for g in groups if g.startswith(f"{group}.")}
        if group == "status":
            below |= {"conditions", "observed_generation"}
        top, *path = (_snake(part) for part in group.split("."))
        rows.setdefault(top, []).append((group, tuple(path), frozenset(below)))
    return tuple((top, tuple(found)) for top, found in rows.items())


def changed_groups(kind: str, old: Any, new: Any) -> Iterator[str]:
    """Field groups whose content differs. Conditions are not compared, because every writer has its own."""
    before, after = old.metadata, new.metadata
    if (before.labels, before.annotations) != (after.labels, after.annotations):
        yield "metadata"
    for top, groups in _attributes(kind):
        old_value, new_value = getattr(old, top, None), getattr(new, top, None)
        if old_value == new_value:
            continue
        for group, path, below in groups:
            old_part, new_part = _at(old_value, path), _at(new_value, path)
            if old_part == new_part:
                continue
            whole = old_part is None or new_part is None or not below
            if whole or any(
                getattr(old_part, f) != getattr(new_part, f) for f in old_part.__struct_fields__ if f not in below
            ):
                yield group


def _at(item: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        item = getattr(item, part, None)
    return item


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
