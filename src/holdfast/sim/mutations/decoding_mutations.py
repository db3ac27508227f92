"""Mutations of the code that decodes messages and stored objects of another release."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.client import wire
from holdfast.model import schema
from holdfast.model.errors import BadRequest
from holdfast.model.kinds import BY_NAME, Kind
from holdfast.sim.mutations.patch import Mutation, Patch
from holdfast.store import kind_cache


def _check(kind: Kind, data: bytes) -> None:
    """The strict check that applies to users' writes."""
    found = schema.Findings()
    schema.walk(schema.schema_of(kind), msgspec.json.decode(data), found)
    if found.unknown:
        raise BadRequest(f"{kind.name}: unknown field {found.unknown[0]!r}")


def unknown_refused(patch: Patch) -> None:
    """Messages of other processes are decoded strictly."""
    decode = wire.__dict__["decode_object"]
    blocks = wire.__dict__["_blocks"]

    def strictly(data: Any, kind: Kind | None = None) -> Any:
        named = kind or BY_NAME.get(msgspec.json.decode(data).get("kind", ""))
        if named is not None:
            _check(named, bytes(data))
        return decode(data, kind)

    def known_blocks(form: Any) -> Any:
        for text in wire._unknown_blocks(form):
            raise BadRequest(text)
        return blocks(form)

    patch.set(wire, "decode_object", strictly)
    patch.set(wire, "_blocks", known_blocks)


def unknown_stops_the_cell(patch: Patch) -> None:
    """Stored objects are decoded strictly: objects of the next release count as corrupt."""
    read = kind_cache.__dict__["object_of"]

    def strictly(kind: Kind, entry: Any) -> Any:
        if entry.attached is None:
            try:
                _check(kind, entry.value)
            except BadRequest as wrong:
                raise msgspec.ValidationError(wrong.message) from wrong
        return read(kind, entry)

    patch.set(kind_cache, "object_of", strictly)


TABLE = (
    Mutation("unknown-field-refused", "a message with an unknown field is refused", unknown_refused),
    Mutation(
        "unknown-field-stops-cell", "a stored object with an unknown field counts as corrupt", unknown_stops_the_cell
    ),
)
