"""Request bodies to plain data: JSON, YAML, and the protobuf that stock clients send for built-in kinds.

Decoding runs on the event loop, so its cost is bounded before it begins: the number of values, their depth and, for
YAML, the size. No input raises anything but BadRequest, 413 or an unsupported media type. Duplicate keys are kept as
`RepeatedKeys`, for strict validation to report.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import yaml

from holdfast.model.errors import BadRequest
from holdfast.model.schema import RepeatedKeys
from holdfast.server import kubernetes_protobuf
from holdfast.server.status import HttpRefusal, too_large, unsupported_media_type

# Deepest nesting of a request body. A deeper one is refused before a decoder recurses into it.
MAX_NESTING = 64
# Values (objects, lists and scalars) in one body. More are refused with 413. Decoding, validating and storing a value
# costs up to 30 µs on the event loop, so one body delays other requests, such as heartbeats, by at most 0.15 s.
MAX_BODY_VALUES = 5_000
# Size of a YAML body. A larger one is refused with 413; JSON has no such limit. kubectl sends JSON.
MAX_YAML_BYTES = 128 * 1024
# Values in a YAML body. More are refused with 413: YAML costs about ten times as much to decode as JSON.
MAX_YAML_VALUES = 2_000
# Lines of a YAML body that begin with %. More are refused: libyaml compares each %TAG with all others.
MAX_YAML_DIRECTIVES = 16
# How many JSON values cost as much as one YAML value. Used to charge the body to its priority level.
YAML_VALUE_COST = 2

PROTOBUF = "application/vnd.kubernetes.protobuf"
JSON_TYPES = frozenset({"", "application/json", "text/plain", "application/x-www-form-urlencoded"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "application/apply-patch+yaml"})
_BRACKETS = (b"{", b"[")
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"{}[]")
_YAML_SEPARATORS = (b"\n", b",", b":", b"-", b"?", b"{", b"[")


def value_cost(content_type: str, body: bytes) -> int:
    """Upper bound of what the body costs to decode, in JSON values. Itself costs a few passes of `bytes.count`."""
    if content_type == PROTOBUF:
        return min(len(body) // 2, MAX_BODY_VALUES)  # two bytes are the shortest field
    cost = min(body.count(b",") + sum(map(body.count, _BRACKETS)), MAX_BODY_VALUES)
    if content_type in YAML_TYPES and body.lstrip()[:1] not in _BRACKETS:
        values = sum(map(body.count, _YAML_SEPARATORS)) if len(body) <= MAX_YAML_BYTES else 0
        cost = min(values, MAX_YAML_VALUES) * YAML_VALUE_COST
    return cost


def decode_body(content_type: str, body: bytes) -> Any:
    """A POST or PUT body of any accepted type. A missing type means JSON."""
    if content_type in JSON_TYPES or content_type.endswith("+json"):
        return decode_json(body)
    if content_type in YAML_TYPES:
        return decode_yaml(body)
    if content_type == PROTOBUF:
        return kubernetes_protobuf.decode(body)
    raise unsupported_media_type(content_type, f"application/json, application/yaml, {PROTOBUF}")


def decode_object_body(content_type: str, body: bytes) -> dict[str, Any]:
    found = decode_body(content_type, body)
    if not isinstance(found, dict):
        raise BadRequest("request body: must be an object with apiVersion, kind and metadata")
    return found


def decode_json(body: bytes) -> Any:
    text = body.strip()
    if not text:
        raise BadRequest("request body: empty")
    check_structure(body)
    try:
        # msgspec is the stricter decoder (encoding, surrogates, numbers).
        found = msgspec.json.decode(body)
        # If it encodes to the same text, it has no duplicate key; otherwise a second pass finds duplicate keys.
        return found if msgspec.json.encode(found) == text else json.loads(body, object_pairs_hook=_object_from_pairs)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise BadRequest(f"request body: invalid JSON ({wrong})") from wrong


def _object_from_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeating = RepeatedKeys(found)
    seen: set[str] = set()
    repeated: list[str] = []
    for key, _ in pairs:
        if key in seen and key not in repeated:
            repeated.append(key)
        seen.add(key)
    repeating.repeated = tuple(repeated)
    return repeating


def check_structure(body: bytes) -> None:
    """Refuses too many values and deep nesting before a decoder builds anything. A few passes in C, whatever the text.

    Text that is not JSON may be counted wrongly; the decoder refuses it.
    """
    if body.count(b",") + sum(map(body.count, _BRACKETS)) <= MAX_NESTING:
        return
    if b"\\" in body:  # without escapes, every quote opens or closes a string
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 4 * MAX_BODY_VALUES:  # a value has at most two strings: itself and its key
        raise _too_many_values(MAX_BODY_VALUES)
    outside = b"".join(body.split(b'"')[::2])
    if outside.count(b",") + sum(map(outside.count, _BRACKETS)) > MAX_BODY_VALUES:
        raise _too_many_values(MAX_BODY_VALUES)
    depth = 0
    for bracket in outside.translate(None, _NO_BRACKET):
        depth += 1 if bracket in b"{[" else -1
        if depth > MAX_NESTING:
            raise BadRequest(f"request body: nested too deeply (limit {MAX_NESTING} levels)")


def _too_many_values(limit: int) -> HttpRefusal:
    message = f"request body: too many values (limit {limit}); next: split the object"
    return HttpRefusal(413, "RequestEntityTooLarge", message)


# YAML: the JSON schema of YAML 1.2, so that `y`, `on` and `1:30` stay text. -------------------------------------------

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.CSafeLoader):
    """Builds only JSON types: no aliases, no custom tags."""


def _yaml_int(loader: Any, node: Any) -> int:
    text: str = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _yaml_object(loader: Any, node: Any) -> dict[str, Any]:
    pairs = []
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, bool | int | float):
            key = json.dumps(key)
        if not isinstance(key, str):
            raise yaml.YAMLError("keys must be strings")
        pairs.append((key, loader.construct_object(value_node, deep=True)))
    return _object_from_pairs(pairs)


def _yaml_list(loader: Any, node: Any) -> list[Any]:
    return [loader.construct_object(item, deep=True) for item in node.value]


_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {None: yaml.CSafeLoader.construct_undefined}
for _name, _first, _pattern, _make in (
    ("null", "~nN", r"~|null|Null|NULL|", lambda loader, node: None),
    ("bool", "tTfF", r"true|True|TRUE|false|False|FALSE", lambda loader, node: node.value.lower() == "true"),
    ("int", "-+0123456789", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", _yaml_int),
    (
        "float",
        "-+.0123456789",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
        lambda loader, node: float(node.value),
    ),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), [*_first, *([""] * (_name == "null"))])
    _Loader.add_constructor(_TAG + _name, _make)
_Loader.add_constructor(_TAG + "str", lambda loader, node: node.value)
_Loader.add_constructor(_TAG + "map", _yaml_object)
_Loader.add_constructor(_TAG + "seq", _yaml_list)


def decode_yaml(body: bytes) -> Any:
    """Tries JSON first: most "YAML" bodies are JSON, and JSON decoding is stricter."""
    if body.lstrip()[:1] in _BRACKETS:
        try:
            return decode_json(body)
        except BadRequest:
            pass  # it may be a YAML flow mapping
    if len(body) > MAX_YAML_BYTES:
        raise too_large(MAX_YAML_BYTES, "YAML; next: send it as JSON")
    try:
        text = body.decode("utf-8")
        _check_yaml_events(text)
        found = yaml.load(text, Loader=_Loader)
        # Values that JSON cannot express, such as a lone surrogate, are refused here rather than on storing.
        msgspec.json.encode(found)
        return found
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as wrong:
        raise BadRequest(f"request body: invalid YAML ({wrong})") from wrong


def _check_yaml_events(text: str) -> None:
    """Refuses anchors, aliases, deep nesting and too many values before anything is built."""
    if text.count("\n%") > MAX_YAML_DIRECTIVES:
        raise BadRequest(f"request body: too many YAML directives (limit {MAX_YAML_DIRECTIVES})")
    depth = values = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.NodeEvent):
            values += 1
            if event.anchor is not None:
                message = "request body: YAML anchors and aliases (&name, *name) are not accepted"
                raise BadRequest(f"{message}; next: write the values out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_NESTING:
            raise BadRequest(f"request body: nested too deeply (limit {MAX_NESTING} levels)")
        if values > 2 * MAX_YAML_VALUES:  # keys count as well
            raise _too_many_values(MAX_YAML_VALUES)
