"""Reads the lines of a watch: `{"type": "ADDED", "object": {…}}`, bookmarks, and the error that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.client.contract import Seen
from holdfast.client.wire import decode_object, fault_of
from holdfast.model.errors import Unavailable
from holdfast.model.kinds import Kind


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"


class _Bookmark(msgspec.Struct):
    metadata: _Meta


class _Code(msgspec.Struct):
    code: int = 500


_line = msgspec.json.Decoder(_Line)
_bookmark = msgspec.json.Decoder(_Bookmark)
_code = msgspec.json.Decoder(_Code)


def seen_in(kind: Kind, lines: Sequence[bytes]) -> list[Seen[Any]]:
    """The changes of whole lines. Raises the fault of an ERROR line, after which the stream is over."""
    batch: list[Seen[Any]] = []
    for text in lines:
        if not text.strip():
            continue
        line = _line.decode(text)
        match line.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                item = decode_object(line.object, kind)
                batch.append(Seen(object=item, old=None, deleted=line.type == "DELETED", revision=item.revision))
            case "BOOKMARK":
                revision = int(_bookmark.decode(line.object).metadata.resource_version)
                batch.append(Seen(object=None, old=None, deleted=False, revision=revision))
            case "ERROR":
                raise fault_of(_code.decode(line.object).code, bytes(line.object))
            case other:
                raise Unavailable(f"the watch of {kind.plural} sent a line of unknown type {other!r}")
    return batch
