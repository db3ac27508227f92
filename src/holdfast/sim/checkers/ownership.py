"""S5 and S6: placement only by the authority under its current term; every field only by its owner.

Who wrote is read from the audit record inside the same transaction, so a write without its record is a breach too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from holdfast.model.kinds import Kind
from holdfast.model.ownership import OWNERS, UNOWNED, deleters, is_mirrored_here, owners
from holdfast.sim.checkers import Commit, Found
from holdfast.store.contract import Txn

PLACEMENT = frozenset({"Binding", "Reservation", "LeasePage", "Decision"})
TERM_KEY = "/terms/authority"
ELECTED = "/leases/holdfast-system/"


class _Audited(msgspec.Struct, frozen=True, gc=False):
    """As much of an audit record as is asked for here."""

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
    """What an identity may write as; a table of its own, beside the gate's."""
    parts = principal.split(":")
    if parts[:2] == ["holdfast", "controller"]:
        return frozenset({parts[2]})
    if parts[:2] in (["holdfast", "node"], ["holdfast", "hollow"]):
        return frozenset({"agent"})
    if parts[:2] in (["holdfast", "region"], ["holdfast", "join"]):
        return frozenset({parts[1]})
    return frozenset({"operator", "user"})


class OwnershipChecker:
    """One cell's. Tokens are judged by the term as it was before the commit, which is why it is kept here."""

    def __init__(self, cell: str) -> None:
        self._cell = cell
        self._term = 0
        self._top = 0

    def check(self, commit: Commit, writer: str) -> Iterator[Found]:
        under = next((c.revision for c in commit.txn.compares if c.key == TERM_KEY), None)
        yield from self._token(commit, under, writer)
        roles = frozenset({"authority"}) if under is not None else roles_of(writer)
        for change in commit.changed:
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
                    yield "S6", f"{change.key} removed by {writer}, who may not delete it", about
                continue
            if change.old is None or (mirrored and "link" in roles):
                continue  # what a creator may set of the status is the gate's business; spec and metadata are its own
            for group in changed_groups(kind.name, change.old, change.new):
                allowed = owners(kind.name, group, mirrored_here=mirrored)
                if not roles & allowed:
                    whose = ", ".join(sorted(allowed)) or "nobody"
                    yield "S6", f"{change.key} {group} changed by {writer}; it belongs to {whose}", about

    def _new_term(self, term: Any) -> Iterator[Found]:
        revision = term.revision if term is not None else 0
        if revision <= self._top:
            yield "S5", f"the authority's term went from {self._top} to {revision}", (TERM_KEY,)
        self._term, self._top = revision, max(self._top, revision)

    def _token(self, commit: Commit, under: int | None, writer: str) -> Iterator[Found]:
        placed = [change for change in commit.changed if change.kind.name in PLACEMENT]
        if not placed:
            return
        keys = tuple(change.key for change in placed)
        if under is not None:
            if under != self._term:
                yield "S5", f"{keys} committed under token {under}, the term is at {self._term}", keys
            return
        for change in placed:
            old, new = change.old, change.new
            if new is None and change.kind.name == "Decision":
                continue  # a record of the past holds nothing: whoever may delete it may
            if old is None or new is None or old.spec != new.spec:
                yield "S5", f"{change.key} written by {writer or 'nobody'}, without the authority's term", keys


def elections(commit: Commit) -> Iterator[Found]:
    """Who leads is changed by whoever wins, with the term, or said again by whoever leads, under it; by nobody else.

    For a store's own transactions: recorded histories do not have what was compared.
    """
    for change in commit.changed:
        term = f"/terms/{change.key.removeprefix(ELECTED)}"
        if not change.key.startswith(ELECTED) or term not in commit.state:
            continue  # something else, or a sign of life that nobody is elected by
        won = any(other.key == term for other in commit.changed)
        if not won and not any(compare.key == term for compare in commit.txn.compares):
            yield "S5", f"{change.key} was written by someone who neither won nor holds {term}", (change.key, term)


def _finalizers_of(kind: Kind) -> frozenset[str]:
    """Whoever removes the last finalizer of a terminating object removes the object."""
    return (
        frozenset({"assign", "release", "collect"}) if kind.name in ("Workload", "Replica", "Tenant") else frozenset()
    )


@cache
def _attributes(kind: str) -> tuple[tuple[str, tuple[tuple[str, tuple[str, ...], frozenset[str]], ...]], ...]:
    """The groups of a kind, by the attribute they begin with: name, path of attributes from there, and the fields below
    it that belong to deeper groups."""
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
    """Field groups of the ownership table whose content differs; conditions are each writer's own."""
    before, after = old.metadata, new.metadata
    if (before.labels, before.annotations) != (after.labels, after.annotations):
        yield "metadata"
    for top, groups in _attributes(kind):
        was, becomes = getattr(old, top, None), getattr(new, top, None)
        if was == becomes:
            continue
        for group, path, below in groups:
            one, two = _at(was, path), _at(becomes, path)
            if one == two:
                continue
            whole = one is None or two is None or not below
            if whole or any(getattr(one, f) != getattr(two, f) for f in one.__struct_fields__ if f not in below):
                yield group


def _at(item: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        item = getattr(item, part, None)
    return item


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
