"""Export of spans: encoding, sampling, bounds, and what happens while the receiver fails."""

from __future__ import annotations

import socket
import time

import pytest
from tests.otlp_receiver import otlp_receiver
from tests.platforms import wait_until

from holdfast.foundation import metrics
from holdfast.foundation.otlp import Span
from holdfast.foundation.span_export import SPANS_PER_REQUEST_MAX, SPANS_QUEUED_MAX
from holdfast.foundation.tracing import Tracer, TraceSettings, trace_settings
from holdfast.model.errors import Invalid
from holdfast.model.trace_ids import TraceContext, parse_traceparent, traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def span(number: int = 0, **changes: object) -> Span:
    facts: dict[str, object] = {
        "name": "bind",
        "trace_id": TRACE,
        "span_id": f"{number + 1:016x}",
        "start_s": 1794866652.25,
        "end_s": 1794866652.5,
        "scope": "holdfast.authority",
        **changes,
    }
    return Span(**facts)  # type: ignore[arg-type]


def outcomes() -> dict[str, float]:
    (family,) = metrics.TRACE_SPANS.collect()
    return {s.labels["outcome"]: s.value for s in family.samples if s.name.endswith("_total")}


def test_exported_span_is_decoded_by_the_published_classes() -> None:
    with otlp_receiver() as receiver:
        settings = trace_settings(receiver.url, 1.0, {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x"})
        tracer = Tracer(settings, service="holdfast-region", instance="us-east", region="us-east")
        attributes = {"holdfast.replica": "é-0", "holdfast.attempt": -3, "empty": "", "yes": True, "no": False}
        tracer.emit(span(parent_id=SPAN, attributes=attributes, links=((TRACE, SPAN),), error="StartFailed: x" * 40))
        tracer.close()
        (found,) = receiver.spans
        assert (found.service, found.instance, found.scope) == ("holdfast-region", "us-east", "holdfast.authority")
        assert (found.name, found.trace, found.id, found.parent) == ("bind", TRACE, f"{1:016x}", SPAN)
        assert (found.start_ns, found.end_ns) == (1794866652_250_000_000, 1794866652_500_000_000)
        assert found.attributes == attributes and found.links == ((TRACE, SPAN),)
        assert found.error == "StartFailed: x" * 40
        assert receiver.requests[0]["authorization"] == "Bearer x"


def test_spans_are_sent_again_while_the_receiver_asks_for_it_and_dropped_if_it_refuses() -> None:
    with otlp_receiver() as receiver:
        receiver.statuses = [503]
        before = outcomes()
        tracer = Tracer(TraceSettings(receiver.url + "/v1/traces"), service="s", instance="i")
        tracer.emit(span())
        wait_until(lambda: receiver.spans, "the second attempt arrives", 30)
        receiver.statuses = [400]
        tracer.emit(span(1))
        wait_until(lambda: outcomes().get("failed", 0) > before.get("failed", 0), "the refused span is counted", 30)
        assert [found.id for found in receiver.spans] == [f"{1:016x}"] and len(receiver.requests) == 3
        tracer.close()


def test_unreachable_receiver_bounds_the_queue_and_never_delays_the_caller() -> None:
    with socket.socket() as silent:  # accepts connections and answers nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        before = outcomes()
        tracer = Tracer(
            TraceSettings(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"), service="s", instance="i"
        )
        total = SPANS_QUEUED_MAX + 3 * SPANS_PER_REQUEST_MAX
        cpu_s = time.thread_time()
        for number in range(total):
            tracer.emit(span(number))
        cpu_s = time.thread_time() - cpu_s
        dropped = outcomes()["dropped"] - before.get("dropped", 0)
        assert total - SPANS_QUEUED_MAX - SPANS_PER_REQUEST_MAX <= dropped <= total - SPANS_QUEUED_MAX
        assert cpu_s / total < 0.001
        began = time.monotonic()
        tracer.close()
        assert time.monotonic() - began < 15


def test_all_cells_sample_the_same_traces_and_follow_the_caller() -> None:
    low, high = TraceContext("0" * 15 + "1" + "0" * 16), TraceContext("f" * 32)
    half = Tracer(TraceSettings("http://127.0.0.1:9/v1/traces", 0.5), service="s", instance="i")
    assert half.is_sampled(low) and not half.is_sampled(high) and not half.is_sampled(None)
    assert half.is_sampled(TraceContext(high.trace_id, SPAN, True))
    assert not half.is_sampled(TraceContext(low.trace_id, SPAN, False))
    none = Tracer(TraceSettings("http://127.0.0.1:9/v1/traces", 0.0), service="s", instance="i")
    assert not none.is_sampled(low)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-1",
        f"01-{TRACE}-{SPAN}-01-{'x' * 1000}",
    ],
)
def test_invalid_traceparent_is_ignored(text: str) -> None:
    assert parse_traceparent(text) is None


def test_traceparent_is_read_and_written() -> None:
    text = f"00-{TRACE}-{SPAN}-01"
    found = parse_traceparent(text)
    assert found == TraceContext(TRACE, SPAN, True) and traceparent(found) == text
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-00-later") == TraceContext(TRACE, SPAN, False)


def test_traces_are_off_unless_configured() -> None:
    assert not trace_settings("", None, {}).url
    assert not trace_settings("", None, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}).url
    assert trace_settings("", None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318/"}).url == "http://x:4318/v1/traces"
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://x/own", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    assert trace_settings("", None, own) == TraceSettings("https://x/own", 0.25)
    for endpoint, environment in (("ftp://x", {}), ("http://x", {"OTEL_TRACES_SAMPLER_ARG": "much"})):
        with pytest.raises(Invalid, match="traces: "):
            trace_settings(endpoint, None, environment)
