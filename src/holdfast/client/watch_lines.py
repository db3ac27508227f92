"""Decodes the lines of a watch: `{"type": "ADDED", "object": {…}}`, bookmarks, and the ERROR line that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.client.contract import WatchEvent
from holdfast.client.wire import decode_object, fault_of
from holdfast.model import limits
from holdfast.model.errors import Unavailable
from holdfast.model.kinds import Kind
from holdfast.model.shared_parts import share_parts

# Longest line of a watch stream. A longer one ends the watch. Above MAX_OBJECT_BYTES after JSON escaping.
WATCH_LINE_BYTES_MAX = 8 * 1024 * 1024
WATCH_SILENCE_S = 2.5 * limits.BOOKMARK_EVERY_S
"""A watch without an event or bookmark for this long is considered dead."""


class _WatchLine(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"


class _Bookmark(msgspec.Struct):
    metadata: _Meta


class _Code(msgspec.Struct):
    code: int = 500


_line_decoder = msgspec.json.Decoder(_WatchLine)
_bookmark_decoder = msgspec.json.Decoder(_Bookmark)
_code_decoder = msgspec.json.Decoder(_Code)


def parse_events(kind: Kind, lines: Sequence[bytes]) -> list[WatchEvent[Any]]:
    """The events of complete lines. Raises the fault of an ERROR line, which ends the stream."""
    batch: list[WatchEvent[Any]] = []
    for text in lines:
        if not text.strip():
            continue
        line = _line_decoder.decode(text)
        match line.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                item = decode_object(line.object, kind)
                batch.append(WatchEvent(object=item, old=None, deleted=line.type == "DELETED", revision=item.revision))
            case "BOOKMARK":
                revision = int(_bookmark_decoder.decode(line.object).metadata.resource_version)
                batch.append(WatchEvent(object=None, old=None, deleted=False, revision=revision))
            case "ERROR":
                raise fault_of(_code_decoder.decode(line.object).code, bytes(line.object))
            case other:
                raise Unavailable(f"watch of {kind.plural}: unknown event type {other}")
    return batch


def parse_shared_events(kind: Kind, lines: Sequence[bytes]) -> list[WatchEvent[Any]]:
    """The events, for components: they keep what they read and never change it, so objects may share their parts."""
    batch = parse_events(kind, lines)
    for event in batch:
        if event.object is not None:
            share_parts(event.object)
    return batch
