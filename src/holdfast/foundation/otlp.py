"""Spans, and their encoding as an OTLP ExportTraceServiceRequest (protobuf).

Only the fields that Holdfast fills are written. The field numbers are those of opentelemetry-proto; the tests decode
the result with its published classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

Attribute = str | int | bool

_INTERNAL, _SERVER = 1, 2
_STATUS_ERROR = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Span(msgspec.Struct, frozen=True):
    """One finished stage. Times are seconds since the epoch; ids are hex. `links` are (trace id, span id)."""

    name: str
    trace_id: str
    span_id: str
    start_s: float
    end_s: float
    scope: str
    parent_id: str = ""
    attributes: Mapping[str, Attribute] = {}
    links: tuple[tuple[str, str], ...] = ()
    error: str = ""
    is_request: bool = False


def encode_spans(resource: Mapping[str, Attribute], spans: Iterable[Span]) -> bytes:
    """The request body: one resource, its spans grouped by instrumentation scope."""
    scopes: dict[str, list[bytes]] = {}
    for span in spans:
        scopes.setdefault(span.scope, []).append(_message(2, _span(span)))
    groups = (_message(2, _message(1, _text(1, name)) + b"".join(found)) for name, found in scopes.items())
    return _message(1, _message(1, _attributes(1, resource)) + b"".join(groups))


def _span(span: Span) -> bytes:
    start_ns = int(span.start_s * 1e6) * 1000
    end_ns = max(start_ns, int(span.end_s * 1e6) * 1000)
    links = (_message(13, _raw(1, bytes.fromhex(trace)) + _raw(2, bytes.fromhex(id_))) for trace, id_ in span.links)
    return b"".join(
        (
            _raw(1, bytes.fromhex(span.trace_id)),
            _raw(2, bytes.fromhex(span.span_id)),
            _raw(4, bytes.fromhex(span.parent_id)),
            _text(5, span.name),
            _number(6, _SERVER if span.is_request else _INTERNAL),
            _fixed64(7, start_ns),
            _fixed64(8, end_ns),
            _attributes(9, span.attributes),
            *links,
            _message(15, _text(2, span.error) + _number(3, _STATUS_ERROR)) if span.error else b"",
            _tag(16, _FIXED32) + (1).to_bytes(4, "little"),  # flags: sampled
        )
    )


def _attributes(field: int, attributes: Mapping[str, Attribute]) -> bytes:
    return b"".join(_message(field, _text(1, key) + _message(2, _any(value))) for key, value in attributes.items())


def _any(value: Attribute) -> bytes:
    """An AnyValue. Unlike elsewhere, an empty or false value is written: the field is a member of a oneof."""
    if isinstance(value, bool):
        return _tag(2, _VARINT) + _varint(value)
    if isinstance(value, int):
        return _tag(3, _VARINT) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    return _message(1, value.encode())


def _message(field: int, body: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(body)) + body


def _raw(field: int, value: bytes) -> bytes:
    return _message(field, value) if value else b""


def _text(field: int, value: str) -> bytes:
    return _raw(field, value.encode())


def _number(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(value) if value else b""


def _fixed64(field: int, value: int) -> bytes:
    return _tag(field, _FIXED64) + value.to_bytes(8, "little")


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _varint(value: int) -> bytes:
    out = bytearray()
    value = int(value)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
