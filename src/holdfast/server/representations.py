"""Encodes objects in the form a client requested: full JSON, metadata only, or rows of a Table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model import codec
from holdfast.model.errors import BadRequest
from holdfast.model.meta import Object
from holdfast.server import tables
from holdfast.server.content_negotiation import ResponseForm, ResponseShape
from holdfast.server.pending_reasons import PendingReasons
from holdfast.server.resources import Resource
from holdfast.server.table_column import Cell
from holdfast.store.objects import Objects

# Objects encoded before other requests get their turn. Encoding 500 takes a few milliseconds.
ENCODE_SLICE_OBJECTS = 500

_encoder = msgspec.json.Encoder()
INCLUDE_OBJECT_VALUES = ("", "Metadata", "Object", "None")


class ListMeta(msgspec.Struct, rename="camel", omit_defaults=True):
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


def encode_partial(item: Object, version: str = "v1") -> bytes:
    """Only the metadata, as PartialObjectMetadata."""
    head = f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{version or "v1"}","metadata":'
    return head.encode() + _encoder.encode(item.metadata) + b"}"


class ResponseEncoder:
    """Encodes objects of one resource in one form. Created per request or watch; `now` is for ages."""

    def __init__(
        self,
        resource: Resource,
        form: ResponseForm,
        *,
        now: Callable[[], float],
        include: str = "",
        objects: Objects | None = None,
    ) -> None:
        if include not in INCLUDE_OBJECT_VALUES:
            raise BadRequest(f'includeObject: unsupported value "{include[:40]}" (expected Metadata, Object or None)')
        self.resource = resource
        self.form = form
        self._now = now
        self._include = include or "Metadata"
        self._objects = objects if resource.to_view is None else None
        self._beside = objects
        pending = PendingReasons(objects) if objects is not None and resource.kind.name == "Replica" else None
        self._cells_beside: Mapping[str, Cell] = {"Reason": pending.of} if pending is not None else {}

    def encode_one(self, item: Object) -> bytes:
        """A single object, as the response to get, create and similar requests."""
        match self.form.shape:
            case ResponseShape.TABLE:
                shown = self.resource.view_of(item, self._beside)
                return self.encode_table([item], ListMeta(shown.metadata.resource_version))
            case ResponseShape.PARTIAL:
                return encode_partial(self.resource.view_of(item, self._beside), self.form.version)
        return self.resource.encode(item, self._beside)

    def _encoded(self, item: Object) -> bytes:
        """The stored bytes if the object is the stored one, which is cheaper than encoding it again."""
        kind = self.resource.kind
        entry = (
            self._objects.entry(kind, item.metadata.namespace, item.metadata.name)
            if self._objects is not None
            else None
        )
        if entry is None or entry.revision != item.revision:
            return self.resource.encode(item, self._beside)
        return codec.wire_bytes(kind, entry.value, entry.revision)

    async def encode_list(self, items: Sequence[Object], meta: ListMeta) -> bytes:
        """A list. Long lists are encoded in slices, so that other requests are not delayed."""
        if self.form.shape is ResponseShape.TABLE:
            rows = await self._sliced(items, self.encode_row)
            return self._table_of(rows, meta, with_columns=True)
        kind = self.resource.kind
        if self.form.shape is ResponseShape.PARTIAL:
            head = f'{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/{self.form.version}","metadata":'
            encoded = await self._sliced(
                items, lambda item: encode_partial(self.resource.view_of(item, self._beside), self.form.version)
            )
        else:
            head = f'{{"kind":"{kind.name}List","apiVersion":"{kind.api_version}","metadata":'
            encoded = await self._sliced(items, self._encoded)
        return b"".join((head.encode(), _encoder.encode(meta), b',"items":[', b",".join(encoded), b"]}"))

    def encode_event(self, item: Object, *, first: bool) -> bytes:
        """The object of one watch event. Only the first Table of a stream carries the columns."""
        if self.form.shape is ResponseShape.TABLE:
            return self._table_of([self.encode_row(item)], ListMeta(item.metadata.resource_version), with_columns=first)
        return self.encode_one(item)

    def encode_table(self, items: Sequence[Object], meta: ListMeta) -> bytes:
        return self._table_of([self.encode_row(item) for item in items], meta, with_columns=True)

    def encode_row(self, item: Object) -> bytes:
        shown = self.resource.view_of(item, self._beside)
        cells = tables.cells(self.resource.kind.name, shown, self._now(), self._cells_beside)
        row = b'{"cells":' + _encoder.encode(cells)
        match self._include:
            case "Metadata":
                return row + b',"object":' + encode_partial(shown, self.form.version) + b"}"
            case "Object":
                return row + b',"object":' + self.resource.encode(item, self._beside) + b"}"
        return row + b"}"

    def _table_of(self, rows: Sequence[bytes], meta: ListMeta, *, with_columns: bool) -> bytes:
        columns: list[Any] = tables.definitions(self.resource.kind.name) if with_columns else []
        return b"".join(
            (
                f'{{"kind":"Table","apiVersion":"meta.k8s.io/{self.form.version}","metadata":'.encode(),
                _encoder.encode(meta),
                b',"columnDefinitions":',
                _encoder.encode(columns),
                b',"rows":[',
                b",".join(rows),
                b"]}",
            )
        )

    async def _sliced(self, items: Sequence[Object], encode: Any) -> list[bytes]:
        if len(items) <= ENCODE_SLICE_OBJECTS:
            return [encode(item) for item in items]
        made: list[bytes] = []
        for start in range(0, len(items), ENCODE_SLICE_OBJECTS):
            made += [encode(item) for item in items[start : start + ENCODE_SLICE_OBJECTS]]
            await asyncio.sleep(0)
        return made
