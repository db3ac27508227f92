"""Decodes the protobuf bodies that stock Kubernetes clients send for built-in kinds. Responses stay JSON.

A body is `k8s\\0`, then `runtime.Unknown{1: TypeMeta{1: apiVersion, 2: kind}, 2: raw}`. Clients encode zero values;
they are dropped here, because JSON clients never send them. Only the messages in the table are known.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from holdfast.model.errors import BadRequest
from holdfast.model.times import micro_text, seconds_text

MAGIC = b"k8s\0"
# Deepest nesting of a protobuf message. A deeper one is refused.
MAX_DEPTH = 16
# Fields of one protobuf body, at all depths together. More are refused: a field of two bytes costs 2 µs to decode.
MAX_FIELDS = 5_000

Fields = dict[int, tuple[str, str]]

# message → field number → (name, type). `[x]` is repeated, `{}` is a map of strings, `{base64}` one of bytes, and a
# capitalized type is a message.
MESSAGES: dict[str, Fields] = {
    "Unknown": {1: ("typeMeta", "TypeMeta"), 2: ("raw", "bytes")},
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
    "ObjectMeta": {
        1: ("name", "string"),
        2: ("generateName", "string"),
        3: ("namespace", "string"),
        5: ("uid", "string"),
        6: ("resourceVersion", "string"),
        7: ("generation", "int"),
        8: ("creationTimestamp", "time"),
        9: ("deletionTimestamp", "time"),
        10: ("deletionGracePeriodSeconds", "int"),
        11: ("labels", "{}"),
        12: ("annotations", "{}"),
        13: ("ownerReferences", "[OwnerReference]"),
        14: ("finalizers", "[string]"),
    },
    "OwnerReference": {
        1: ("kind", "string"),
        3: ("name", "string"),
        4: ("uid", "string"),
        5: ("apiVersion", "string"),
        6: ("controller", "bool"),
        7: ("blockOwnerDeletion", "bool"),
    },
    "Namespace": {1: ("metadata", "ObjectMeta"), 2: ("spec", "NamespaceSpec"), 3: ("status", "NamespaceStatus")},
    "NamespaceSpec": {1: ("finalizers", "[string]")},
    "NamespaceStatus": {1: ("phase", "string")},
    "Lease": {1: ("metadata", "ObjectMeta"), 2: ("spec", "LeaseSpec")},
    "LeaseSpec": {
        1: ("holderIdentity", "string"),
        2: ("leaseDurationSeconds", "int"),
        3: ("acquireTime", "microtime"),
        4: ("renewTime", "microtime"),
        5: ("leaseTransitions", "int"),
    },
    "Secret": {
        1: ("metadata", "ObjectMeta"),
        2: ("data", "{base64}"),
        3: ("type", "string"),
        4: ("stringData", "{}"),
        5: ("immutable", "bool"),
    },
    "ConfigMap": {
        1: ("metadata", "ObjectMeta"),
        2: ("data", "{}"),
        3: ("binaryData", "{base64}"),
        4: ("immutable", "bool"),
    },
    "SelfSubjectAccessReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "SelfSubjectAccessReviewSpec")},
    "SelfSubjectAccessReviewSpec": {
        1: ("resourceAttributes", "ResourceAttributes"),
        2: ("nonResourceAttributes", "NonResourceAttributes"),
    },
    "SubjectAccessReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "SubjectAccessReviewSpec")},
    "SubjectAccessReviewSpec": {
        1: ("resourceAttributes", "ResourceAttributes"),
        2: ("nonResourceAttributes", "NonResourceAttributes"),
        3: ("user", "string"),
        4: ("groups", "[string]"),
        6: ("uid", "string"),
    },
    "ResourceAttributes": {
        1: ("namespace", "string"),
        2: ("verb", "string"),
        3: ("group", "string"),
        4: ("version", "string"),
        5: ("resource", "string"),
        6: ("subresource", "string"),
        7: ("name", "string"),
    },
    "NonResourceAttributes": {1: ("path", "string"), 2: ("verb", "string")},
    "SelfSubjectRulesReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "SelfSubjectRulesReviewSpec")},
    "SelfSubjectRulesReviewSpec": {1: ("namespace", "string")},
    "SelfSubjectReview": {1: ("metadata", "ObjectMeta")},
    "TokenReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "TokenReviewSpec")},
    "TokenReviewSpec": {1: ("token", "string"), 2: ("audiences", "[string]")},
    "Role": {1: ("metadata", "ObjectMeta"), 2: ("rules", "[PolicyRule]")},
    "ClusterRole": {1: ("metadata", "ObjectMeta"), 2: ("rules", "[PolicyRule]")},
    "PolicyRule": {
        1: ("verbs", "[string]"),
        2: ("apiGroups", "[string]"),
        3: ("resources", "[string]"),
        4: ("resourceNames", "[string]"),
        5: ("nonResourceURLs", "[string]"),
    },
    "RoleBinding": {1: ("metadata", "ObjectMeta"), 2: ("subjects", "[Subject]"), 3: ("roleRef", "RoleRef")},
    "ClusterRoleBinding": {1: ("metadata", "ObjectMeta"), 2: ("subjects", "[Subject]"), 3: ("roleRef", "RoleRef")},
    "Subject": {1: ("kind", "string"), 2: ("apiGroup", "string"), 3: ("name", "string"), 4: ("namespace", "string")},
    "RoleRef": {1: ("apiGroup", "string"), 2: ("kind", "string"), 3: ("name", "string")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int"),
        2: ("preconditions", "Preconditions"),
        3: ("orphanDependents", "bool"),
        4: ("propagationPolicy", "string"),
        5: ("dryRun", "[string]"),
    },
    "Preconditions": {1: ("uid", "string"), 2: ("resourceVersion", "string")},
    "Time": {1: ("seconds", "int"), 2: ("nanos", "int")},
    "MapEntry": {1: ("key", "string"), 2: ("value", "string")},
    "BytesEntry": {1: ("key", "string"), 2: ("value", "base64")},
}

# Fields in which zero has a meaning: `gracePeriodSeconds: 0` requests immediate deletion.
_KEEP_ZERO = frozenset({"gracePeriodSeconds"})
TOP_LEVEL = frozenset(
    {
        "Namespace",
        "Lease",
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
        "Secret",
        "ConfigMap",
        "SelfSubjectAccessReview",
        "SubjectAccessReview",
        "SelfSubjectRulesReview",
        "SelfSubjectReview",
        "TokenReview",
        "DeleteOptions",
    }
)


def decode(body: bytes) -> dict[str, Any]:
    """The object in `body` as plain data, with its apiVersion and kind."""
    if not body.startswith(MAGIC):
        raise BadRequest("request body: not Kubernetes protobuf (expected it to start with k8s\\0)")
    budget = _FieldBudget(MAX_FIELDS)
    envelope = _message("Unknown", body[len(MAGIC) :], MAX_DEPTH, budget)
    meta = envelope.get("typeMeta", {})
    kind = meta.get("kind", "")
    if kind not in TOP_LEVEL:
        raise BadRequest(f"{kind or 'this kind'}: not accepted as protobuf; next: send application/json")
    found = _message(kind, envelope.get("raw", b""), MAX_DEPTH, budget)
    return {**meta, **found}


class _FieldBudget:
    """Counts the fields of one body."""

    __slots__ = ("_left",)

    def __init__(self, fields: int) -> None:
        self._left = fields

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise BadRequest(f"protobuf body: too many fields (limit {MAX_FIELDS})")


def _message(name: str, data: bytes, depth: int, budget: _FieldBudget) -> dict[str, Any]:
    if depth == 0:
        raise BadRequest("protobuf body: nested too deeply")
    known = MESSAGES[name]
    made: dict[str, Any] = {}
    for number, raw in _fields(data, budget):
        if number not in known:
            continue
        field, type_ = known[number]
        if type_.startswith("["):
            made.setdefault(field, []).append(_value(type_[1:-1], raw, depth, budget))
            continue
        if type_.startswith("{"):
            entry = _message("BytesEntry" if "base64" in type_ else "MapEntry", _bytes(raw), depth - 1, budget)
            made.setdefault(field, {})[entry.get("key", "")] = entry.get("value", "")
            continue
        value = _value(type_, raw, depth, budget)
        if value or field in _KEEP_ZERO:
            made[field] = value
    return made


def _value(type_: str, raw: int | bytes, depth: int, budget: _FieldBudget) -> Any:
    match type_:
        case "string":
            try:
                return _bytes(raw).decode("utf-8")
            except UnicodeDecodeError as wrong:
                raise BadRequest("protobuf body: text is not UTF-8") from wrong
        case "bytes":
            return _bytes(raw)
        case "base64":
            return base64.b64encode(_bytes(raw)).decode()
        case "int" | "bool":
            if isinstance(raw, bytes):
                raise BadRequest("protobuf body: expected a number, found bytes")
            signed = raw - 2**64 if raw >= 2**63 else raw
            return bool(raw) if type_ == "bool" else signed
        case "time" | "microtime":
            return _time(type_, raw, depth, budget)
    return _message(type_, _bytes(raw), depth - 1, budget)


def _time(type_: str, raw: int | bytes, depth: int, budget: _FieldBudget) -> str:
    parts = _message("Time", _bytes(raw), depth - 1, budget)
    if not parts:
        return ""
    at_s = parts.get("seconds", 0) + parts.get("nanos", 0) / 1e9
    try:
        return micro_text(at_s) if type_ == "microtime" else seconds_text(at_s)
    except (ValueError, OverflowError, OSError) as wrong:
        raise BadRequest("protobuf body: time out of range") from wrong


def _bytes(raw: int | bytes) -> bytes:
    if isinstance(raw, int):
        raise BadRequest("protobuf body: expected bytes, found a number")
    return raw


def _fields(data: bytes, budget: _FieldBudget) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        budget.take()
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire_type == 2:
            size, at = _varint(data, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise BadRequest(f"protobuf body: unknown wire type {wire_type}")
        if at + size > len(data):
            raise BadRequest("protobuf body: truncated")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise BadRequest("protobuf body: truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise BadRequest("protobuf body: number longer than 64 bits")
