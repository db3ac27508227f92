"""Finds changed fields that a principal does not own (S6), by comparing an object before and after, group by group.

The ownership table is `model/ownership.py`; getters are compiled once per kind. Whether a principal may touch an object
at all is decided in `gate/scope.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.model.kinds import ALL, Kind
from holdfast.model.meta import Object
from holdfast.model.ownership import FINALIZERS, GARBAGE_COLLECTOR, OPERATOR, OWNERS, UNOWNED, owners
from holdfast.model.principal import Principal

_ROLES_KEPT = 1024
"""Cache size of `_unowned_fields`, in pairs of kind and roles."""
# Status fields that every owner of a part of the status may set.
_SHARED_STATUS = frozenset({"conditions", "observedGeneration"})


class OwnedField(msgspec.Struct, frozen=True):
    """One field of `spec` or `status`: path, getter, default and owning roles."""

    path: str
    get: Any
    default: Any
    roles: frozenset[str]


class KindOwnership(msgspec.Struct, frozen=True):
    """The compiled ownership of one kind, for its home cell or for a cell with mirrors."""

    creators: frozenset[str]
    spec: tuple[OwnedField, ...]
    status: tuple[OwnedField, ...]
    status_roles: frozenset[str]
    """All owners of any part of the status. They may set conditions and observedGeneration."""
    top_level: tuple[OwnedField, ...] = ()
    """Fields beside `metadata`, `spec` and `status`. Unless the table names others, the creators own them."""


def field_default(field: Any) -> Any:
    """The default of a struct field, or NODEFAULT."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _fields(kind: Kind, section: str, mirrored: bool) -> tuple[OwnedField, ...]:
    part = next((f for f in msgspec.structs.fields(kind.type) if f.name == section), None)
    if part is None:
        return ()
    return tuple(
        OwnedField(
            path=f"{section}.{f.encode_name}",
            get=attrgetter(f"{section}.{f.name}"),
            default=field_default(f),
            roles=owners(kind.name, f"{section}.{f.encode_name}", mirrored_here=mirrored),
        )
        for f in msgspec.structs.fields(part.type)
    )


def _top_level_fields(kind: Kind, mirrored: bool) -> tuple[OwnedField, ...]:
    """Fields beside metadata, spec and status, such as the rules of a Role or the data of a Secret."""
    creators = owners(kind.name, "metadata", mirrored_here=mirrored)
    return tuple(
        OwnedField(
            path=f.encode_name,
            get=attrgetter(f.name),
            default=field_default(f),
            roles=owners(kind.name, f.encode_name, mirrored_here=mirrored) or creators,
        )
        for f in msgspec.structs.fields(kind.type)
        if f.name not in ("metadata", "spec", "status")
    )


def _compile(kind: Kind, mirrored: bool) -> KindOwnership:
    status = _fields(kind, "status", mirrored)
    everyone: frozenset[str] = frozenset().union(
        owners(kind.name, "status", mirrored_here=mirrored), *(f.roles for f in status)
    )
    shared = tuple(
        msgspec.structs.replace(f, roles=everyone) if f.path.rpartition(".")[2] in _SHARED_STATUS else f for f in status
    )
    return KindOwnership(
        creators=owners(kind.name, "metadata", mirrored_here=mirrored),
        spec=_fields(kind, "spec", mirrored),
        status=shared,
        status_roles=everyone,
        top_level=_top_level_fields(kind, mirrored),
    )


_TABLES = {
    mirrored: {kind.name: _compile(kind, mirrored) for kind in ALL if kind.name not in UNOWNED}
    for mirrored in (False, True)
}

for _kind, _groups in OWNERS.items():
    for _group in _groups:
        if _group.count(".") > 1:
            raise ValueError(f"{_kind}.{_group}: ownership is compared only two levels deep")


def ownership_of(kind: Kind, *, mirrored_here: bool) -> KindOwnership | None:
    """The compiled ownership of a kind; None if the kind has no field owners."""
    return _TABLES[mirrored_here].get(kind.name)


@lru_cache(_ROLES_KEPT)
def _unowned_fields(kind: str, mirrored: bool, roles: frozenset[str]) -> tuple[OwnedField, ...]:
    """The fields of a kind that none of the roles owns."""
    table = _TABLES[mirrored][kind]
    return tuple(field for field in (*table.spec, *table.status, *table.top_level) if not roles & field.roles)


def unowned_changes(
    who: Principal, kind: Kind, before: Object | None, after: Object, *, mirrored_here: bool
) -> Iterator[tuple[str, frozenset[str]]]:
    """Every changed group that none of the principal's roles owns, with the roles that do."""
    table = ownership_of(kind, mirrored_here=mirrored_here)
    if table is None:
        return
    roles = who.roles
    if before is None:
        if not roles & table.creators:
            yield "metadata", table.creators
        for field in _unowned_fields(kind.name, mirrored_here, roles):
            if field.get(after) != field.default:
                yield field.path, field.roles
        return
    yield from _metadata_not_owned(who, table, before, after, mirrored_here=mirrored_here)
    for name, fields in (("spec", table.spec), ("status", table.status)):
        if getattr(before, name, None) == getattr(after, name, None):
            continue
        for field in fields:
            if not roles & field.roles and field.get(before) != field.get(after):
                yield field.path, field.roles
    for field in table.top_level:
        if not roles & field.roles and field.get(before) != field.get(after):
            yield field.path, field.roles


def _metadata_not_owned(
    who: Principal, table: KindOwnership, before: Object, after: Object, *, mirrored_here: bool
) -> Iterator[tuple[str, frozenset[str]]]:
    old, new = before.metadata, after.metadata
    if old is new:
        return
    owns_metadata = bool(who.roles & table.creators)
    for path, was, becomes in (
        ("metadata.labels", old.labels, new.labels),
        ("metadata.annotations", old.annotations, new.annotations),
    ):
        if not owns_metadata and was != becomes:
            yield path, table.creators
    if not owns_metadata and old.owner_references != new.owner_references:
        # The garbage collector removes references to deleted owners; it never adds one.
        only_removed = all(ref in old.owner_references for ref in new.owner_references)
        if not (GARBAGE_COLLECTOR in who.roles and only_removed):
            yield "metadata.ownerReferences", table.creators
    if old.finalizers != new.finalizers and not mirrored_here:
        yield from _finalizers_not_owned(who, owns_metadata, table, old.finalizers, new.finalizers)


def _finalizers_not_owned(
    who: Principal, owns_metadata: bool, table: KindOwnership, old: tuple[str, ...], new: tuple[str, ...]
) -> Iterator[tuple[str, frozenset[str]]]:
    if OPERATOR in who.roles:
        return
    for name in old:
        if name in new:
            continue
        if name in FINALIZERS:
            role = FINALIZERS[name][0]
            if role not in who.roles:
                yield f"metadata.finalizers[{name}]", frozenset({role, OPERATOR})
        elif not owns_metadata:
            yield f"metadata.finalizers[{name}]", table.creators | {OPERATOR}
    for name in new:
        if name in old or owns_metadata:
            continue
        role = FINALIZERS.get(name, ("", 0.0))[0]
        if role not in who.roles:
            yield f"metadata.finalizers[{name}]", table.creators | ({role} if role else frozenset())
