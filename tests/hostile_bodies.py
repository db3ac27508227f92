"""Request bodies that are cheap to send and were expensive to decode, and every route that reads a body."""

from __future__ import annotations

import json
from collections.abc import Iterator

from holdfast.server.request import MAX_BODY_BYTES
from holdfast.server.request_bodies import PROTOBUF
from holdfast.server.router import Route
from holdfast.server.routes import ROUTES

JSON, YAML = "application/json", "application/yaml"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
VALUES_OF_PARAMETERS = {
    "version": "v1",
    "group": "holdfast.dev",
    "namespace": "shop",
    "plural": "workloads",
    "name": "web",
    "subresource": "status",
    "tenant": "shop",
    "workload": "web",
    "replica": "web-0",
    "node": "n1",
    "id": "n1.x",
    "binding": "web-0",
    "kind": "Secret",
    "check": "ping",
    "region": "west",
    "page": "overview",
    "file": "app.js",
    **{name: name for name in "abcd"},  # the console's own paths
}
_ALIAS_BOMB = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 10)
)
_COPY_BOMB = json.dumps([{"op": "copy", "from": "/metadata", "path": f"/metadata/c{n}"} for n in range(40)]).encode()

HOSTILE: dict[str, tuple[str, bytes]] = {
    "a wide YAML list": (YAML, b"a: [" + b"1," * 190_000 + b"1]"),
    "a YAML list below the size limit": (YAML, b"a: [" + b"1," * 60_000 + b"1]"),
    "a YAML mapping of many keys": (YAML, b"".join(b"k%d: v\n" % n for n in range(14_000))),
    "a YAML alias bomb": (YAML, _ALIAS_BOMB),
    "YAML anchors": (YAML, b"".join(b"- &a%d x\n" % n for n in range(9_000))),
    "deep YAML": (YAML, b"a: " + b"[" * 50_000),
    "deep YAML blocks": (YAML, b"".join(b" " * n + b"a:\n" for n in range(400))),
    "a YAML number of 100,000 digits": (YAML, b"a: 0x" + b"f" * 100_000),
    "YAML directives": (YAML, b"".join(b"%%TAG !a%d! b\n" % n for n in range(8_000)) + b"---\na: 1\n"),
    "YAML sequences in one line": (YAML, b"- " * 60_000),
    "YAML complex keys": (YAML, b"[? " * 40_000),
    "YAML documents": (YAML, b"---\n" * 30_000),
    "a YAML flow mapping that is not JSON": (APPLY, b"{a: [" + b"b," * 500_000 + b"]}"),
    "wide JSON": (JSON, b'{"spec":{"template":{"command":[' + b"1," * 1_400_000 + b"1]}}}"),
    "JSON with spaces": (JSON, b'{"a": [' + b"{}, " * 700_000 + b"{}]}"),
    "JSON of many empty strings": (JSON, b'{"a":[' + b'"",' * 1_000_000 + b'""]}'),
    "JSON of many keys": (JSON, b"{" + b",".join(b'"k%d":0' % n for n in range(250_000)) + b"}"),
    "JSON of duplicate keys": (JSON, b"{" + b'"a":{},' * 400_000 + b'"a":{}}'),
    "deep JSON": (JSON, b'{"a":' * 500_000),
    "deep JSON lists": (JSON, b"[" * (MAX_BODY_BYTES - 10)),
    "JSON of escapes": (JSON, b'{"a":"' + b'\\"' * 1_500_000 + b'"}'),
    "an unterminated JSON string": (JSON, b'{"a":"' + b"\\\\" * 1_500_000),
    "a giant JSON string": (JSON, b'{"metadata":{"annotations":{"a":"' + b"x" * 3_000_000 + b'"}}}'),
    "a JSON number of 100,000 digits": (JSON, b'{"spec":{"replicas":' + b"9" * 100_000 + b"}}"),
    "wide merge patch": (MERGE, b'{"metadata":{"labels":{' + b'"a":"b",' * 300_000 + b'"a":"b"}}}'),
    "JSON patch of many operations": (JSON_PATCH, b"[" + b'{"op":"test","path":"/a"},' * 100_000 + b"{}]"),
    "JSON patch that copies copies": (JSON_PATCH, _COPY_BOMB),
    "protobuf of many fields": (PROTOBUF, b"k8s\0" + b"\x7a\x00" * 1_500_000),
    "a body above every limit": (JSON, b" " * (MAX_BODY_BYTES + 1)),
}


def body_routes() -> Iterator[tuple[str, str, Route]]:
    """Method and path of every route whose method can carry a body."""
    for route in ROUTES:
        # Events are the one kind that a tenant may create in a region.
        path = route.pattern.replace("/api/{version}/namespaces/{namespace}/{plural}", "/api/v1/namespaces/shop/events")
        for name, value in VALUES_OF_PARAMETERS.items():
            path = path.replace(f"{{{name}}}", value)
        for method in route.methods:
            if method in ("POST", "PUT", "PATCH", "DELETE"):
                yield method, path, route
