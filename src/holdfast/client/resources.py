"""Paths of objects in the HTTP API, and decoding of its lists and faults."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.client.wire import fault_of
from holdfast.model import limits
from holdfast.model.errors import Fault, StoreFailed, Unavailable
from holdfast.model.kinds import Kind
from holdfast.model.shared_parts import share_parts

T = TypeVar("T")


class _PagePosition(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    following: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, Generic[T]):
    metadata: _PagePosition
    items: tuple[T, ...] = ()


class _StatusReason(msgspec.Struct):
    reason: str = ""


class ListPage(msgspec.Struct, frozen=True):
    """One page of a list; `continue_token` requests the next page and is empty on the last."""

    items: tuple[Any, ...]
    revision: int
    continue_token: str


_pages: dict[str, msgspec.json.Decoder[Any]] = {}


def resource_path(kind: Kind, namespace: str = "", name: str = "") -> str:
    root = f"/apis/{kind.group}/v1" if kind.group else "/api/v1"
    scope = f"/namespaces/{quote(namespace, safe='')}" if kind.namespaced and namespace else ""
    return f"{root}{scope}/{kind.plural}" + (f"/{quote(name, safe='')}" if name else "")


def field_selector_query(fields: Mapping[str, str] | None) -> dict[str, str]:
    """`fields` as a query. The names of `model.indexes` are field labels of the API."""
    if not fields:
        return {}
    terms = (f"{name}={_escaped(value)}" for name, value in sorted(fields.items()))
    return {"fieldSelector": ",".join(terms)}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def decode_page(kind: Kind, body: bytes) -> ListPage:
    decoder = _pages.get(kind.name)
    if decoder is None:
        decoder = _pages[kind.name] = msgspec.json.Decoder(_List[kind.type])  # type: ignore[name-defined]
    try:
        found = decoder.decode(body)
    except msgspec.DecodeError as error:
        raise Unavailable(f"list of {kind.plural}: cannot decode the response ({error})") from error
    return ListPage(
        items=found.items, revision=int(found.metadata.resource_version), continue_token=found.metadata.following
    )


def decode_shared_page(kind: Kind, body: bytes) -> ListPage:
    """A page, for components: they keep what they read and never change it, so objects may share their parts."""
    page = decode_page(kind, body)
    for item in page.items:
        share_parts(item)
    return page


def fault_from(code: int, body: bytes, retry_after: str) -> Fault:
    """The fault of a response; `retry_after` is its Retry-After header, in seconds."""
    try:
        retry_after_s = min(max(float(retry_after), 0.0), limits.BACKOFF_MAX_S)
    except ValueError:
        retry_after_s = 0.0
    return fault_of(code, body, retry_after_s=retry_after_s)


def is_outcome_unknown(code: int, body: bytes) -> bool:
    """Whether an error response to a write leaves open if the write happened.

    Our servers return `ServiceUnavailable` only before they begin, and `StoreFailed` if nothing was stored. Any other
    status from 500 on may come from a proxy, or from a failure halfway.
    """
    if code < 500:
        return False
    try:
        reason = msgspec.json.decode(body, type=_StatusReason).reason
    except msgspec.DecodeError:
        return True
    return reason not in (Unavailable.reason, StoreFailed.reason)


def client_tls_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Trusts only `ca` if given, else the system's CAs; presents `cert` if given. All are file names."""
    context = ssl.create_default_context(cafile=ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert:
        context.load_cert_chain(cert, key or None)
    return context
