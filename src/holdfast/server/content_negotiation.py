"""Content negotiation: the response form a client requested. The first Accept clause that can be served wins."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from holdfast.server.status import not_acceptable

JSON = "application/json"
_ANY = frozenset({"*/*", "application/*", JSON})


class ResponseShape(enum.StrEnum):
    PLAIN = "plain"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"
    DISCOVERY = "APIGroupDiscoveryList"


class ResponseForm(msgspec.Struct, frozen=True):
    """`version` is that of the form's own API group: v1 or v1beta1 for tables, v2 or v2beta1 for discovery."""

    shape: ResponseShape
    version: str = ""


PLAIN = ResponseForm(ResponseShape.PLAIN)
_Shapes = Mapping[tuple[str, str], tuple[ResponseShape, tuple[str, ...]]]
_OBJECT_SHAPES: _Shapes = {
    ("Table", "meta.k8s.io"): (ResponseShape.TABLE, ("v1", "v1beta1")),
    ("PartialObjectMetadata", "meta.k8s.io"): (ResponseShape.PARTIAL, ("v1", "v1beta1")),
    ("PartialObjectMetadataList", "meta.k8s.io"): (ResponseShape.PARTIAL, ("v1", "v1beta1")),
}
_DISCOVERY_SHAPES: _Shapes = {
    ("APIGroupDiscoveryList", "apidiscovery.k8s.io"): (ResponseShape.DISCOVERY, ("v2", "v2beta1"))
}


@lru_cache(maxsize=256)
def object_form(accept: str) -> ResponseForm:
    """For objects, lists and watches."""
    return _choose(accept, _OBJECT_SHAPES)


@lru_cache(maxsize=256)
def discovery_form(accept: str) -> ResponseForm:
    return _choose(accept, _DISCOVERY_SHAPES)


def accept_header(form: ResponseForm) -> str:
    """The header that requests this form of objects and lists."""
    return JSON if form.shape is ResponseShape.PLAIN else f"{JSON};as={form.shape};v={form.version};g=meta.k8s.io"


def _choose(accept: str, shapes: _Shapes) -> ResponseForm:
    if not accept.strip():
        return PLAIN
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media.lower() not in _ANY:
            continue
        named = dict(part.split("=", 1) for part in parameters if "=" in part)
        wanted = named.get("as", "")
        if not wanted:
            return PLAIN
        shape, versions = shapes.get((wanted, named.get("g", "")), (None, ()))
        if shape is not None and named.get("v") in versions:
            return ResponseForm(shape, named["v"])
    raise not_acceptable(JSON)
