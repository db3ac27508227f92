"""Traces of a process: whether they are exported, which are sampled, and the request that is being answered.

Off unless an OTLP endpoint is configured. Then no tracer exists, and code asks `is not None` and does nothing else.
Tracing never influences a decision.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import structlog

from holdfast import __version__
from holdfast.foundation.otlp import Attribute, Span
from holdfast.foundation.span_export import SpanExporter
from holdfast.model.errors import Invalid
from holdfast.model.trace_ids import TraceContext

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
RATIO_VARIABLE = "OTEL_TRACES_SAMPLER_ARG"
EXPORTER_VARIABLE = "OTEL_TRACES_EXPORTER"
TRACES_PATH = "/v1/traces"

# Objects whose times are remembered between two stages. Beyond, the oldest are forgotten, and their next span begins
# where it ends.
TIMES_REMEMBERED_MAX = 10_000

_TRACE_ID_HALF = 1 << 64
_log = structlog.get_logger()


class TraceSettings(msgspec.Struct, frozen=True):
    """`url` is the whole address of the receiver; empty: traces are off. `ratio` of all traces are exported."""

    url: str = ""
    ratio: float = 1.0
    headers: Mapping[str, str] = {}


def trace_settings(endpoint: str, ratio: float | None, environment: Mapping[str, str]) -> TraceSettings:
    """Settings from options, and where they are missing from OpenTelemetry's variables. Raises Invalid.

    As in OpenTelemetry, `/v1/traces` is appended to an endpoint, and to the variable for traces alone it is not.
    """
    if environment.get(EXPORTER_VARIABLE, "otlp") != "otlp" and not endpoint:
        return TraceSettings()
    base = endpoint or environment.get(ENDPOINT_VARIABLE, "")
    url = base and base.rstrip("/") + TRACES_PATH
    if not endpoint:
        url = environment.get(TRACES_ENDPOINT_VARIABLE, "") or url
    if not url:
        return TraceSettings()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Invalid(f"traces: invalid OTLP endpoint (expected http://HOST:PORT or https://HOST:PORT, found {url})")
    if ratio is None:
        text = environment.get(RATIO_VARIABLE, "1")
        try:
            ratio = float(text)
        except ValueError:
            raise Invalid(f"traces: {RATIO_VARIABLE}: invalid (expected a number from 0 to 1, found {text})") from None
    if not 0.0 <= ratio <= 1.0:
        raise Invalid(f"traces: invalid ratio (expected a number from 0 to 1, found {ratio:g})")
    pairs = (part.partition("=") for part in environment.get(HEADERS_VARIABLE, "").split(",") if "=" in part)
    return TraceSettings(url, ratio, {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs})


def observes(method: Callable[..., None]) -> Callable[..., None]:
    """A method that only observes: its exceptions are logged, and the observed work goes on."""

    @functools.wraps(method)
    def wrapped(*arguments: Any, **named: Any) -> None:
        try:
            method(*arguments, **named)
        except Exception:
            _log.exception("span_failed", stage=method.__name__)

    return wrapped


class RequestFacts(msgspec.Struct, frozen=True):
    """The API request that is being answered. `caller` is its trace context, if it has one."""

    id: str
    began_s: float
    caller: TraceContext | None


CURRENT_REQUEST: ContextVar[RequestFacts | None] = ContextVar("CURRENT_REQUEST", default=None)
"""Set only while traces are exported."""


class Tracer:
    """Samples and exports spans. `service` and `instance` name the process in the trace."""

    def __init__(self, settings: TraceSettings, *, service: str, instance: str, region: str = "") -> None:
        resource: dict[str, Attribute] = {
            "service.namespace": "holdfast",
            "service.name": service,
            "service.instance.id": instance,
            "service.version": __version__,
            "host.name": socket.gethostname(),
        }
        if region:
            resource["cloud.region"] = region
        self._threshold = int(settings.ratio * _TRACE_ID_HALF)
        self._exporter = SpanExporter(settings.url, resource, settings.headers)
        self._times: dict[tuple[str, ...], float] = {}

    def is_sampled(self, context: TraceContext | None) -> bool:
        """The caller's decision, else the ratio. It depends on the trace id alone, so all cells decide alike."""
        if context is None:
            return False
        if context.sampled is not None:
            return context.sampled
        return int(context.trace_id[16:], 16) < self._threshold

    def emit(self, span: Span) -> None:
        self._exporter.put(span)

    def remember(self, at_s: float, *key: str) -> None:
        """Remembers when a stage of an object began."""
        self._times[key] = at_s
        if len(self._times) > TIMES_REMEMBERED_MAX:
            del self._times[next(iter(self._times))]

    def recall(self, *key: str) -> float | None:
        return self._times.pop(key, None)

    def close(self) -> None:
        self._exporter.close()
