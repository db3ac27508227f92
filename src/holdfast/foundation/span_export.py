"""Sends spans to an OTLP receiver over HTTP, from a thread of its own.

- `put` never waits and never raises. If the queue is full, the span is dropped and counted.
- A receiver that is down costs the process nothing but the queue's memory and one connection attempt at a time.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

import structlog

from holdfast import __version__
from holdfast.foundation import metrics
from holdfast.foundation.otlp import Attribute, Span, encode_spans

# Spans that wait for the receiver. Further ones are dropped: 4,096 spans are the stages of about 700 replicas.
SPANS_QUEUED_MAX = 4096
# Spans of one request. More wait for the next.
SPANS_PER_REQUEST_MAX = 512
# How long the first span of a batch waits for others.
EXPORT_INTERVAL_S = 1.0
# Time for one request. After that, it counts as failed.
EXPORT_TIMEOUT_S = 5.0
# Requests with the same spans. After that, they are dropped.
EXPORT_ATTEMPTS_MAX = 5
# Longest pause between two attempts, also if the receiver asks for a longer one.
EXPORT_PAUSE_MAX_S = 10.0
# Time for the last spans when the process ends.
EXPORT_LAST_S = 2.0

_RETRYABLE = frozenset({429, 502, 503, 504})
_log = structlog.get_logger()


class SpanExporter:
    """`headers` are sent with every request, such as the receiver's credentials."""

    def __init__(self, url: str, resource: Mapping[str, Attribute], headers: Mapping[str, str]) -> None:
        self._url = urlsplit(url)
        self._resource = resource
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"holdfast/{__version__}", **headers}
        self._queue: deque[Span] = deque()
        self._waiting = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._exported = metrics.TRACE_SPANS.labels("exported")
        self._dropped = metrics.TRACE_SPANS.labels("dropped")
        self._failed = metrics.TRACE_SPANS.labels("failed")
        self._thread = threading.Thread(target=self._run, name="span export", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        if len(self._queue) >= SPANS_QUEUED_MAX:
            self._dropped.inc()
            return
        self._queue.append(span)
        if not self._waiting.is_set():
            self._waiting.set()

    def close(self) -> None:
        """Sends what is queued, for at most EXPORT_LAST_S."""
        self._closing.set()
        self._waiting.set()
        self._thread.join(EXPORT_LAST_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._waiting.wait()
            self._closing.wait(EXPORT_INTERVAL_S)
            self._waiting.clear()
            while self._queue:
                self._send([self._queue.popleft() for _ in range(min(len(self._queue), SPANS_PER_REQUEST_MAX))])

    def _send(self, spans: list[Span]) -> None:
        try:
            body = encode_spans(self._resource, spans)
        except Exception:
            self._failed.inc(len(spans))
            _log.exception("spans_not_encoded", spans=len(spans))
            return
        for attempt in range(1, EXPORT_ATTEMPTS_MAX + 1):
            problem, pause_s = self._post(body)
            if not problem:
                self._exported.inc(len(spans))
                if self._failing:
                    self._failing = False
                    _log.info("trace_export_resumed", receiver=self._url.netloc)
                return
            if not self._failing:
                self._failing = True
                _log.warning("trace_export_failed", receiver=self._url.netloc, problem=problem)
            if pause_s < 0 or attempt == EXPORT_ATTEMPTS_MAX or self._closing.is_set():
                break
            self._closing.wait(min(EXPORT_PAUSE_MAX_S, max(pause_s, 2.0 ** (attempt - 1))))
        self._failed.inc(len(spans))

    def _post(self, body: bytes) -> tuple[str, float]:
        """What went wrong, and the pause before another attempt: below zero if there should be none."""
        host, port = self._url.hostname or "", self._url.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=EXPORT_TIMEOUT_S, context=ssl.create_default_context())
            if self._url.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=EXPORT_TIMEOUT_S)
        )
        try:
            connection.request("POST", self._url.path or "/", body, self._headers)
            answer = connection.getresponse()
            answer.read(65536)
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__, 0.0
        finally:
            connection.close()
        if 200 <= answer.status < 300:
            return "", 0.0
        if answer.status not in _RETRYABLE:
            return f"status {answer.status}", -1.0
        wanted = answer.headers.get("Retry-After", "")
        return f"status {answer.status}", float(wanted) if wanted.isdecimal() else 0.0
