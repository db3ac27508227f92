"""An OTLP receiver over HTTP, as a collector is one: it decodes requests with the published protobuf classes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class ReceivedSpan(msgspec.Struct, frozen=True):
    service: str
    instance: str
    scope: str
    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...] = ()
    error: str = ""


class OtlpReceiver:
    """`statuses` are the next answers; without one it accepts."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.requests: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self._lock = threading.Lock()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def traces(self) -> dict[str, list[ReceivedSpan]]:
        found: dict[str, list[ReceivedSpan]] = {}
        with self._lock:
            for span in self.spans:
                found.setdefault(span.trace, []).append(span)
        return found

    def receive(self, path: str, headers: dict[str, str], body: bytes) -> int:
        with self._lock:
            self.requests.append({"path": path, **headers})
            if self.statuses:
                return self.statuses.pop(0)
            if path != "/v1/traces" or headers.get("content-type") != "application/x-protobuf":
                return 400
            request = ExportTraceServiceRequest.FromString(body)
            self.spans += _spans(request)
            return 200


def _spans(request: Any) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scoped in group.scope_spans:
            for span in scoped.spans:
                yield ReceivedSpan(
                    service=resource["service.name"],
                    instance=resource["service.instance.id"],
                    scope=scoped.scope.name,
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    error=span.status.message if span.status.code == 2 else "",
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.receive(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            answer = ExportTraceServiceResponse().SerializeToString() if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
