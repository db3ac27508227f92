"""Request bodies to plain data: JSON, YAML, and the protobuf that stock clients send for built-in kinds.

No input raises anything but BadRequest or an unsupported media type. Duplicate keys are kept as `RepeatedKeys`, for
strict validation to report.
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
from holdfast.server.status import unsupported_media_type

# Deepest nesting of a request body. A deeper one is refused before a decoder recurses into it.
MAX_NESTING = 64

PROTOBUF = "application/vnd.kubernetes.protobuf"
JSON_TYPES = frozenset({"", "application/json", "text/plain", "application/x-www-form-urlencoded"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "application/apply-patch+yaml"})
_BRACKETS = (b"{", b"[")


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
    _check_depth_of_text(body)
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


def _check_depth_of_text(body: bytes) -> None:
    """Refuses deep nesting before any decoder recurses into it."""
    if sum(map(body.count, _BRACKETS)) <= MAX_NESTING:
        return
    depth = 0
    inside = escaped = False
    for char in body:
        if inside:
            if escaped:
                escaped = False
            elif char == 0x5C:
                escaped = True
            elif char == 0x22:
                inside = False
        elif char == 0x22:
            inside = True
        elif char in (0x7B, 0x5B):
            depth += 1
            if depth > MAX_NESTING:
                raise BadRequest(f"request body: nested too deeply (limit {MAX_NESTING} levels)")
        elif char in (0x7D, 0x5D):
            depth -= 1


# YAML: the JSON schema of YAML 1.2, so that `y`, `on` and `1:30` stay text. -------------------------------------------

_TAG = "tag:yaml.org,2002:"
_MAX_YAML_EVENTS = 200_000


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
    try:
        text = body.decode("utf-8")
        _check_yaml_events(text)
        found = yaml.load(text, Loader=_Loader)
        # Values that JSON cannot express, such as a lone surrogate, are refused here rather than on storing.
        msgspec.json.encode(found)
        return found
    except (yaml.YAMLError, ValueError, RecursionError, msgspec.MsgspecError) as wrong:
        raise BadRequest(f"request body: invalid YAML ({wrong})") from wrong


def _check_yaml_events(text: str) -> None:
    """Refuses aliases and deep nesting before anything is built."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise BadRequest("request body: YAML aliases (*name) are not accepted; next: write the values out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_NESTING or count > _MAX_YAML_EVENTS:
            raise BadRequest(f"request body: too large or nested too deeply (limit {MAX_NESTING} levels)")
