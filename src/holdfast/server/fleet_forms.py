"""Objects of regions as the global cell shows them: each with its region and, if its region is out of touch, the time
of the region's last answer. Pure.

A Table gets the column Region behind the name and the column Answered at the end. An object gets the label
`topology.kubernetes.io/region`, and the annotation `holdfast.dev/answered-at` if the answer is not current.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.console.region_lists import RegionReply
from holdfast.model.labels import LABEL_REGION
from holdfast.model.times import age_text, seconds_text
from holdfast.server import tables

ANSWERED_AT = "holdfast.dev/answered-at"
NOW = "now"
Fields = dict[str, msgspec.Raw]

_encoder = msgspec.json.Encoder()
_fields = msgspec.json.Decoder(Fields)
_metadata = msgspec.json.Decoder(dict[str, Any])


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


class _TableRow(msgspec.Struct, omit_defaults=True):
    cells: list[Any]
    object: Fields | None = None


class _ColumnName(msgspec.Struct):
    name: str


class _ListBody(msgspec.Struct, rename="camel"):
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    items: list[Fields] = []
    rows: list[_TableRow] = []
    column_definitions: list[_ColumnName] = []


_list_body = msgspec.json.Decoder(_ListBody)


class MarkedPage(msgspec.Struct, frozen=True):
    """Encoded objects or rows of one region. `token` continues the region's list."""

    entries: list[bytes]
    revision: str
    token: str = ""
    remaining: int = 0


class Marking(msgspec.Struct, frozen=True):
    """Where objects come from. `answered` is empty for a current answer, else the time of the region's last one."""

    region: str
    kind: str
    answered: str = ""
    age: str = NOW

    def fields(self, found: Fields) -> Fields:
        """The object with its region."""
        metadata = _metadata.decode(found.get("metadata", msgspec.Raw(b"{}")))
        metadata["labels"] = {**(metadata.get("labels") or {}), LABEL_REGION: self.region}
        if self.answered:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), ANSWERED_AT: self.answered}
        return {**found, "metadata": msgspec.Raw(_encoder.encode(metadata))}

    def row(self, row: _TableRow, columns: list[str]) -> bytes:
        shown = tables.definitions(self.kind)
        names = [column["name"] for column in shown]
        cells = row.cells
        if columns and columns != names:
            # Another release of the region has other columns.
            by_name = dict(zip(columns, cells, strict=False))
            cells = [by_name.get(name) for name in names]
        below = self.fields(row.object) if row.object is not None else None
        return _encoder.encode(_TableRow([*cells[:1], self.region, *cells[1:], self.age], below))


def marking(reply: RegionReply, kind: str, now_s: float) -> Marking:
    if reply.is_current:
        return Marking(reply.region, kind)
    at = seconds_text(reply.at_s)
    return Marking(reply.region, kind, at, f"{age_text(at, now_s)} ago")


def column_definitions(kind: str) -> list[dict[str, Any]]:
    own = tables.definitions(kind)
    region = _column("Region", "region that runs the object")
    answered = _column("Answered", "when the region gave this answer")
    return [*own[:1], region, *own[1:], answered]


def _column(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": "string", "format": "", "description": description, "priority": 0}


def marked_page(reply: RegionReply, kind: str, now_s: float) -> MarkedPage:
    """The objects or rows of a region's list. Raises msgspec.DecodeError for a body that is no list."""
    mark = marking(reply, kind, now_s)
    body = _list_body.decode(reply.body)
    columns = [column.name for column in body.column_definitions]
    entries = [_encoder.encode(mark.fields(item)) for item in body.items]
    entries += [mark.row(row, columns) for row in body.rows]
    meta = body.metadata
    return MarkedPage(entries, meta.resource_version, meta.continue_, meta.remaining_item_count)


def marked_object(reply: RegionReply, kind: str, now_s: float, *, as_table: bool) -> bytes:
    """A single object, or a Table with its row."""
    if not as_table:
        return _encoder.encode(marking(reply, kind, now_s).fields(_fields.decode(reply.body)))
    page = marked_page(reply, kind, now_s)
    found = _fields.decode(reply.body)
    found["columnDefinitions"] = msgspec.Raw(_encoder.encode(column_definitions(kind)))
    found["rows"] = msgspec.Raw(b"[" + b",".join(page.entries) + b"]")
    return _encoder.encode(found)


class _RegionEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


_event = msgspec.json.Decoder(_RegionEvent)


class MarkedEvent(msgspec.Struct, frozen=True):
    """One watch event of a region. `object` is encoded; `revision` is the region's."""

    type: str
    object: bytes
    revision: str = ""


class EventMarker:
    """Marks the events of one poll of a region. The first Table of a poll carries the region's columns."""

    def __init__(self, region: str, kind: str, *, as_table: bool) -> None:
        self._mark = Marking(region, kind)
        self._as_table = as_table
        self._columns: list[str] = []

    def mark(self, line: bytes, *, first: bool) -> MarkedEvent:
        """Raises msgspec.DecodeError for a line that is no event."""
        event = _event.decode(line)
        if event.type == "ERROR":
            return MarkedEvent(event.type, bytes(event.object))
        found = _fields.decode(event.object)
        if not self._as_table or event.type == "BOOKMARK":
            meta = _metadata.decode(found.get("metadata", msgspec.Raw(b"{}")))
            return MarkedEvent(
                event.type, _encoder.encode(self._mark.fields(found)), str(meta.get("resourceVersion", ""))
            )
        body = _list_body.decode(event.object)
        self._columns = [column.name for column in body.column_definitions] or self._columns
        rows = b",".join(self._mark.row(row, self._columns) for row in body.rows)
        found["rows"] = msgspec.Raw(b"[" + rows + b"]")
        columns = column_definitions(self._mark.kind) if first else []
        found["columnDefinitions"] = msgspec.Raw(_encoder.encode(columns))
        return MarkedEvent(event.type, _encoder.encode(found), body.metadata.resource_version)
