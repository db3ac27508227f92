"""One connected trace from admission to serving, over real processes, received by an OTLP receiver in this process."""

from __future__ import annotations

import itertools
import json
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(300)]
STAGES = ("admit", "assign", "link", "queue", "plan", "reserve", "bind", "start", "ready", "serve")
SERVICE_OF = {
    **dict.fromkeys(("admit", "assign"), "holdfast-global"),
    **dict.fromkeys(("link", "queue", "plan", "reserve", "bind", "serve"), "holdfast-region"),
    **dict.fromkeys(("start", "ready"), "holdfast-agent"),
}
CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def workload(name: str, *, command: tuple[str, ...] = ("sleep", "600"), replicas: int = 1) -> dict[str, Any]:
    template = {
        "command": list(command),
        "resources": {"cpu": "100m", "memory": "32Mi"},
        "terminationGraceSeconds": 1,
        "probes": {"readiness": {"exec": {"command": ["true"]}, "periodSeconds": 1}},
    }
    spec = {"replicas": replicas, "template": template}
    return {"apiVersion": V1, "kind": "Workload", "metadata": {"name": name, "namespace": "acme"}, "spec": spec}


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def platform(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("traces") / "platform"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        with running_platform(state, "--regions", "east", "--agents", "1", "--no-samples") as running:
            running.apply(*TENANCY)
            yield running


def of_workload(receiver: OtlpReceiver, name: str) -> list[ReceivedSpan]:
    """The spans of the workload, of all its traces."""
    return [
        span for found in receiver.traces().values() for span in found if span.attributes["holdfast.workload"] == name
    ]


def wait_for_stages(receiver: OtlpReceiver, name: str) -> list[ReceivedSpan]:
    wait_until(lambda: {s.name for s in of_workload(receiver, name)} >= set(STAGES), f"spans of {name}", 90)
    return of_workload(receiver, name)


def assert_connected(spans: list[ReceivedSpan], root_parent: str) -> None:
    assert len({span.trace for span in spans}) == 1
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans), "a span was exported twice"
    assert [span.name for span in spans if span.parent not in by_id] == ["admit"]
    (admit,) = (span for span in spans if span.name == "admit")
    assert admit.parent == root_parent


def test_workload_has_one_connected_trace_across_cells_authority_and_agent(
    platform: RunningPlatform, receiver: OtlpReceiver
) -> None:
    platform.apply(workload("web"))
    spans = wait_for_stages(receiver, "web")
    assert_connected(spans, "")
    assert {span.name: span.service for span in spans} == SERVICE_OF
    one = {span.name: span for span in spans}
    assert one["bind"].scope == one["reserve"].scope == "holdfast.authority"
    chain = ("admit", "assign", "link", "queue", "reserve", "bind", "start", "ready", "serve")
    for earlier, later in itertools.pairwise(chain):
        assert one[later].parent == one[earlier].id, f"{later} follows {earlier}"
        assert one[earlier].start_ns <= one[later].start_ns and one[earlier].end_ns <= one[later].end_ns
    assert one["plan"].parent == one["link"].id
    assert one["queue"].end_ns <= one["plan"].end_ns <= one["reserve"].end_ns
    stored = json.loads(platform.kubectl("--context", "global", "-n", "acme", "get", "workload", "web", "-o", "json"))
    assert {span.attributes.get("holdfast.workload.uid", stored["metadata"]["uid"]) for span in spans} == {
        stored["metadata"]["uid"]
    }
    assert one["ready"].attributes["holdfast.replica.uid"] == one["bind"].attributes["holdfast.replica.uid"]
    assert (
        "annotations" not in stored["metadata"] or "holdfast.dev/traceparent" not in stored["metadata"]["annotations"]
    )


def post(platform: RunningPlatform, item: dict[str, Any], traceparent: str) -> dict[str, Any]:
    token = holdfast(
        "token", "create", item["metadata"]["name"], "--operator", "--state", str(platform.state)
    ).stdout.strip()
    url = dict(Layout(platform.state).load().cells)["global"]
    request = urllib.request.Request(
        f"{url}/apis/holdfast.dev/v1/namespaces/acme/workloads",
        json.dumps(item).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "traceparent": traceparent},
    )
    context = ssl.create_default_context(cafile=str(platform.state / "pki" / "ca.crt"))
    with urllib.request.urlopen(request, timeout=20, context=context) as reply:
        found: dict[str, Any] = json.loads(reply.read())
    return found


def test_trace_of_the_caller_continues_to_the_agent_and_its_id_is_in_the_logs(
    platform: RunningPlatform, receiver: OtlpReceiver
) -> None:
    made = post(platform, workload("called"), f"00-{CALLER_TRACE}-{CALLER_SPAN}-01")
    spans = wait_for_stages(receiver, "called")
    assert {span.trace for span in spans} == {CALLER_TRACE}
    assert_connected(spans, CALLER_SPAN)
    (admit,) = (span for span in spans if span.name == "admit")
    assert made["metadata"]["annotations"]["holdfast.dev/traceparent"] == f"00-{CALLER_TRACE}-{admit.id}-01"
    logs = {path.stem: path.read_text() for path in (platform.state / "logs").glob("*.log")}
    lines = [
        (name, json.loads(line))
        for name, text in logs.items()
        for line in text.splitlines()
        if CALLER_TRACE in line and line.startswith("{")
    ]
    events = {(name, line["event"]) for name, line in lines}
    assert {event for _, event in events} >= {"workload_admitted", "task_started"}, events
    (admitted,) = (line for _, line in lines if line["event"] == "workload_admitted")
    assert admitted["request"] == admit.attributes["holdfast.request.id"] and admitted["object"] == "acme/called"
    assert len({name for name, _ in events}) == 3, f"global cell, region and agent log the trace: {events}"


def test_unsampled_caller_gets_no_spans_and_a_failing_start_is_an_error(
    platform: RunningPlatform, receiver: OtlpReceiver
) -> None:
    post(platform, workload("quiet"), f"00-{'ab' * 16}-{CALLER_SPAN}-00")
    platform.apply(workload("broken", command=("/does/not/exist",)))
    wait_until(
        lambda: any(span.error for span in of_workload(receiver, "broken") if span.name == "start"),
        "the failed start of `broken` is an error",
        60,
    )
    platform.kubectl("--context", "global", "-n", "acme", "wait", "workload/quiet", "--for=condition=Serving")
    assert not of_workload(receiver, "quiet") and "ab" * 16 not in receiver.traces()
