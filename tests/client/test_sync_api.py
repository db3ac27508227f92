"""The commands' HTTPS client against a real TLS server that fails in several ways."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.certificates import issue, make_ca


class Handler(http.server.BaseHTTPRequestHandler):
    """Responds by path: list pages, API refusals, no response, garbage, or an echo of the request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if parts.path == "/readyz":
            self._send(503, b"not ready: authority", "text/plain")
        elif parts.path.endswith("/workloads"):
            page = int(query.get("continue", ["0"])[0])
            meta = {"continue": str(page + 1)} if page < 2 else {}
            self._json(200, {"metadata": meta, "items": [{"metadata": {"name": f"w{page}"}}]})
        elif parts.path == "/refused":
            self._json(403, {"kind": "Status", "reason": "Forbidden", "message": "not yours", "code": 403})
        elif "missing" in parts.path:
            self._json(404, {"kind": "Status", "reason": "NotFound", "message": "not found", "code": 404})
        elif parts.path == "/garbage":
            self._send(500, b"<html>", "text/html")
        elif parts.path == "/silent":
            time.sleep(2)
        elif parts.path == "/half":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"items": [')
            self.close_connection = True
        elif parts.path == "/hangup":
            self.connection.close()
        else:
            cert: Any = self.connection.getpeercert()
            self._json(
                200, {"token": self.headers.get("Authorization"), "peer": str(cert.get("subject")) if cert else ""}
            )

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._json(200, {"path": self.path, "type": self.headers["Content-Type"], "body": json.loads(body)})

    def _json(self, code: int, value: Any) -> None:
        self._send(code, json.dumps(value).encode(), "application/json")

    def _send(self, code: int, data: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    now_s = time.time()
    make_ca(folder, now_s=now_s)
    issue(folder, "server", "server", now_s=now_s, server=True, ips=("127.0.0.1",))
    issue(folder, "me", "operator", ("holdfast:operators",), now_s=now_s)
    make_ca(folder / "other", now_s=now_s)
    return folder


@pytest.fixture(scope="module")
def url(pki: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "ca.crt"))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def api(url: str, pki: Path) -> Iterator[CellApi]:
    cell_api = CellApi(url, name="global", ca=pki / "ca.crt", cert=pki / "me.crt", key=pki / "me.key", timeout_s=1.0)
    yield cell_api
    cell_api.close()


def test_list_reads_all_pages(api: CellApi) -> None:
    assert [item["metadata"]["name"] for item in api.list("workloads")] == ["w0", "w1", "w2"]


def test_client_certificate_is_presented(api: CellApi) -> None:
    assert "operator" in api.get("/who")["peer"]


def test_api_with_token_sends_it_as_bearer(url: str, pki: Path) -> None:
    api = CellApi(url, name="global", ca=pki / "ca.crt", token="hf_secret")
    assert api.get("/who") == {"token": "Bearer hf_secret", "peer": ""}
    api.close()


def test_apply_sends_object_path_and_field_manager(api: CellApi) -> None:
    item = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": "w", "namespace": "t"}}
    received = api.apply(item, "workloads", manager="me")
    assert (
        received["path"]
        == "/apis/holdfast.dev/v1/namespaces/t/workloads/w?fieldValidation=Strict&fieldManager=me&force=true"
    )
    assert received["type"] == "application/apply-patch+yaml"
    assert received["body"] == item


def test_apply_of_a_core_kind_uses_the_core_path(api: CellApi) -> None:
    item = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "t"}}
    received = api.apply(item, "secrets", manager="me")
    assert received["path"] == "/api/v1/namespaces/t/secrets/s?fieldValidation=Strict&fieldManager=me&force=true"


def test_refusal_contains_the_api_message(api: CellApi) -> None:
    with pytest.raises(ApiRefusal) as caught:
        api.get("/refused")
    assert caught.value.status == 403
    assert caught.value.code == ExitCode.DENIED
    assert caught.value.message == "not yours"
    with pytest.raises(ApiRefusal) as caught:
        api.get("/garbage")
    assert caught.value.code == ExitCode.FAILED


def test_not_found_error_names_object_and_next_step(api: CellApi) -> None:
    with pytest.raises(ApiRefusal) as caught:
        api.get("/apis/holdfast.dev/v1/namespaces/acme/workloads/missing/status")
    assert caught.value.lines() == ["error: workload acme/missing: not found", "next: holdfast get workloads -n acme"]
    with pytest.raises(ApiRefusal) as caught:
        api.get("/apis/holdfast.dev/v1/overrides/missing")
    assert caught.value.next_step == "holdfast get overrides"


def test_text_page_is_read_with_any_status_code(api: CellApi) -> None:
    assert api.text("/readyz") == (503, "not ready: authority")


@pytest.mark.parametrize("path", ["/silent", "/hangup", "/half"])
def test_closed_connection_is_unreachable_and_next_request_reconnects(api: CellApi, path: str) -> None:
    assert api.get("/who")
    with pytest.raises(CommandError) as caught:
        api.get(path)
    assert caught.value.code == ExitCode.UNREACHABLE
    assert "operator" in api.get("/who")["peer"]


def test_foreign_server_on_port_differs_from_refused_connection(url: str, pki: Path) -> None:
    with pytest.raises(CommandError, match="not signed by this platform's CA") as caught:
        CellApi(url, name="global", ca=pki / "other" / "ca.crt").get("/who")
    assert caught.value.code == ExitCode.UNREACHABLE
    with pytest.raises(CommandError, match=r"global cell: unreachable \(connection refused\)"):
        CellApi("https://127.0.0.1:1", name="global", ca=pki / "ca.crt").get("/who")


@pytest.mark.parametrize("kind", ["application/merge-patch+json", "application/json-patch+json", "application/json"])
def test_write_to_a_resource_asks_for_strict_fields(api: CellApi, kind: str) -> None:
    path = "/apis/holdfast.dev/v1/namespaces/acme/quotas/quota"
    sent = api.request("PATCH", path, {"spec": {"typo": 1}}, content_type=kind)
    assert parse_qs(urlsplit(sent["path"]).query) == {"fieldValidation": ["Strict"]}
    assert urlsplit(api.request("PATCH", "/placement/v1/reserve", {"items": []})["path"]).query == ""
