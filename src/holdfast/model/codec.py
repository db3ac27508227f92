"""Encodes objects to stored bytes and to API bytes, and decodes them.

A stored value is the object's JSON without apiVersion, kind and resourceVersion, which follow from the key and the
revision. `wire_bytes` inserts them without decoding, so that one stored byte string serves every reader and watcher.
Invariant: every value begins with `{"metadata":{"` (checked by `encode`).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast.model.kinds import ALL, Kind, kind_of
from holdfast.model.meta import Object
from holdfast.model.shared_parts import share_parts, share_status_parts

_OPENING = b'{"metadata":{'
_STATUS = b',"status":'
_encoder = msgspec.json.Encoder()
_decoders: dict[str, msgspec.json.Decoder[Any]] = {kind.name: msgspec.json.Decoder(kind.type) for kind in ALL}

# Kinds whose JSON ends with the status. Their status can be replaced without encoding the rest.
_status_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    kind.name: msgspec.json.Decoder(msgspec.structs.fields(kind.type)[-1].type)
    for kind in ALL
    if kind.type.__struct_fields__ == ("metadata", "spec", "status")
}

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


def encode(item: Object) -> bytes:
    """The bytes to store."""
    if item.metadata.resource_version:
        item = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=""))
    value = _encoder.encode(item)
    if not value.startswith(b'{"metadata":{"'):
        raise ValueError(f"{kind_of(item).name}: metadata is missing")
    return value


def decode(kind: Kind, value: bytes, revision: int) -> Any:
    """The object stored as `value` at `revision`."""
    return with_revision(decode_value(kind, value), revision)


def decode_value(kind: Kind, value: bytes) -> Any:
    """The object in stored bytes, without a revision."""
    item = _decoders[kind.name].decode(value)
    share_parts(item)
    return item


def replace_status(kind: Kind, value: bytes, before: Any, after: Any) -> tuple[bytes, Any] | None:
    """The new stored bytes and their object, if `after` differs from `before` (stored as `value`) only in the status.

    The bytes and objects of everything else are reused. None if more than the status differs, or if `value` does not
    end with the encoded status. Raises like `decode_value` for a status of the wrong type.
    """
    decoder = _status_decoders.get(kind.name)
    if decoder is None or after.spec is not before.spec or after.metadata is not before.metadata:
        return None
    tail = b"".join((_STATUS, _encoder.encode(before.status), b"}"))
    if not value.endswith(tail):
        return None
    encoded = _encoder.encode(after.status)
    status = decoder.decode(encoded)
    share_status_parts(status)
    meta = msgspec.structs.replace(before.metadata, resource_version="")
    item = msgspec.structs.replace(after, metadata=meta, status=status)
    return b"".join((value[: -len(tail)], _STATUS, encoded, b"}")), item


def with_revision(item: O, revision: int) -> O:
    """The object with its revision. It may be changed in place, so it must not be shared yet."""
    if item.metadata.resource_version:
        meta = msgspec.structs.replace(item.metadata, resource_version=str(revision))
        return msgspec.structs.replace(item, metadata=meta)
    msgspec.structs.force_setattr(item.metadata, "resource_version", str(revision))
    return item


def wire_bytes(kind: Kind, value: bytes, revision: int) -> bytes:
    """The JSON that a client sees, built from stored bytes without decoding."""
    head = f'{{"apiVersion":"{kind.api_version}","kind":"{kind.name}","metadata":{{"resourceVersion":"{revision}",'
    return head.encode() + value[len(_OPENING) :]


def object_wire_bytes(item: Object) -> bytes:
    """The JSON that a client sees, built from an object in memory."""
    kind = kind_of(item)
    if not item.metadata.resource_version:
        return f'{{"apiVersion":"{kind.api_version}","kind":"{kind.name}",'.encode() + encode(item)[1:]
    return wire_bytes(kind, encode(item), item.revision)
