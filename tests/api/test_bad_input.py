"""Invalid and hostile requests against the running server: clear refusals, nothing stored, a healthy server."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from tests.expected import of_type

from .conftest import Cell

PATH = "/apis/holdfast.dev/v1/namespaces/shop/workloads"
EXAMPLES = 400 if os.environ.get("HOLDFAST_FUZZ") == "long" else 6
RELAXED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


class Line:
    """One persistent connection, reopened when the server closes it."""

    def __init__(self, cell: Cell, user: str = "operator") -> None:
        self._cell, self._user = cell, user
        self._connection: http.client.HTTPSConnection | None = None

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        for attempt in (1, 2):
            if self._connection is None:
                port = self._cell.facts["port"]
                self._connection = http.client.HTTPSConnection(
                    "127.0.0.1", port, context=self._cell.context(self._user), timeout=10
                )
            try:
                self._connection.request(method, path, body, headers or {})
                answer = self._connection.getresponse()
                data = answer.read()
                if answer.will_close:
                    self.close()
                return answer.status, json.loads(data) if data[:1] == b"{" else data
            except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError):
                self.close()
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture
def line(cell: Cell) -> Iterator[Line]:
    made = Line(cell)
    yield made
    made.close()


@pytest.mark.slow
def test_requests_generated_from_schema_never_cause_server_error(cell: Cell, line: Line) -> None:
    """Schemathesis generates requests from the server's own OpenAPI document, valid and invalid."""
    _, root = line.call("GET", "/openapi/v3")
    _, document = line.call("GET", root["paths"]["apis/holdfast.dev/v1"]["serverRelativeURL"])
    schema = schemathesis.openapi.from_dict(document)
    operations = [of_type(result, Ok).ok() for result in schema.get_all_operations()]
    assert len(operations) > 80
    for operation in operations:
        if operation.method.upper() == "DELETE" and "{name}" not in operation.path:
            continue  # deleting collections would leave nothing for the other requests

        @RELAXED
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            path = case.path
            for name, value in (case.path_parameters or {}).items():
                path = path.replace("{" + name + "}", quote(str(value), safe="") or "x")
            query = "&".join(f"{quote(str(k))}={quote(str(v))}" for k, v in (case.query or {}).items() if k != "watch")
            body = case.body if isinstance(case.body, dict | list | str | int | float | bool) else None
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": case.media_type or "application/json"}
            code, response = line.call(case.method, f"{path}?{query}", data, headers)
            # The regions of this cell do not run, so the global cell cannot know whether an object of theirs exists.
            out_of_touch = code == 503 and '": not found, but region' in response["message"]
            assert code < 500 or out_of_touch, (case.method, path, query, data, response)
            if code >= 400 and case.method != "HEAD":
                assert response["kind"] == "Status" and response["message"]

        check()
    assert line.call("GET", "/readyz")[0] == 200


names = st.text(min_size=1, max_size=30) | st.sampled_from(["..", ".", "a/b", "%", "%00", "a" * 300, "\u202e", "CON"])


def test_random_names_never_cause_server_error(cell: Cell, line: Line) -> None:
    before = cell.revision()

    @settings(RELAXED, max_examples=EXAMPLES * 10)
    @given(names, names)
    def check(name: str, namespace: str) -> None:
        item = {"metadata": {"name": name}, "spec": {"template": {"command": ["x"]}}}
        body = json.dumps(item).encode()
        code, response = line.call("POST", f"{PATH}?dryRun=All", body, {"Content-Type": "application/json"})
        assert code in (201, 400, 409, 422), response
        for path in (f"{PATH}/{quote(name, safe='')}", f"{PATH.replace('shop', quote(namespace, safe=''))}?limit=1"):
            code, _ = line.call("GET", path)
            assert code in (200, 400, 403, 404)

    check()
    assert cell.revision() == before


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "application/json", 400),
        (b"[" * 4_000, "application/json", 400),
        (b"[" * 1_000_000, "application/json", 413),
        (b'{"metadata":{"name":"x"},"spec":{"replicas":' + b"9" * 6000 + b"}}", "application/json", 400),
        (b'{"a":"' + b"x" * (4 << 20) + b'"}', "application/json", 413),
        (b"x", "image/png", 415),
        (b"a: &a [x]\nb: [*a, *a]", "application/yaml", 400),
        (b"k8s\0\xff\xff\xff", "application/vnd.kubernetes.protobuf", 400),
        (b'{"metadata":{"name":"x","labels":{"a":5}}}', "application/json", 422),
        (
            b'{"metadata":{"name":"x"},"spec":{"template":{"command":' + json.dumps([7] * 4_000).encode() + b"}}}",
            "application/json",
            422,
        ),
        (
            b'{"metadata":{"name":"x"},"spec":{"template":{"command":' + json.dumps([7] * 50_000).encode() + b"}}}",
            "application/json",
            413,
        ),
    ],
)
def test_malformed_body_is_refused_quickly(cell: Cell, line: Line, body: bytes, content_type: str, code: int) -> None:
    before = cell.revision()
    began = time.monotonic()
    found, response = line.call("POST", PATH, body, {"Content-Type": content_type})
    assert found == code and response["kind"] == "Status", response
    assert time.monotonic() - began < 2.0
    assert cell.revision() == before


def test_half_open_connections_do_not_delay_others(cell: Cell, line: Line) -> None:
    """Some never speak TLS, some stop in the middle of their headers; other clients are served meanwhile."""
    address = ("127.0.0.1", cell.facts["port"])
    silent = [socket.create_connection(address) for _ in range(50)]
    half = []
    for _ in range(50):
        secure = cell.context().wrap_socket(socket.create_connection(address), server_hostname="127.0.0.1")
        secure.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Half: ")
        half.append(secure)
    for _ in range(20):
        began = time.monotonic()
        assert line.call("GET", f"{PATH}?limit=1")[0] == 200
        assert time.monotonic() - began < 1.0
    for opened in (*silent, *half):
        opened.close()


def test_server_still_works_after_bad_input(cell: Cell) -> None:
    code, made = cell.call("POST", PATH, {"metadata": {"name": "after"}, "spec": {"template": {"command": ["x"]}}})
    assert code == 201, made
    assert "request_failed" not in cell.log()
