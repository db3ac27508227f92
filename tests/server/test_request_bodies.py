"""Request bodies: JSON, YAML and protobuf, valid and invalid."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import BadRequest
from holdfast.model.schema import MAX_CAUSES, RepeatedKeys
from holdfast.server import kubernetes_protobuf
from holdfast.server.request import MAX_BODY_BYTES
from holdfast.server.request_bodies import MAX_NESTING, PROTOBUF, decode_body, decode_json, decode_yaml
from holdfast.server.selectors import parse_labels
from holdfast.server.status import HttpRefusal

from .conftest import WORKLOADS, Api, workload


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b"nonsense",
        b"{'a':1}",
        b"NaN",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'"\\ud800"',
        b"\xff",
        b"[1,]",
        b"[" * 100 + b"]" * 100,
        b'{"a":' * 70 + b"1" + b"}" * 70,
        b"1" * 5000,
        b"\xef\xbb\xbf{}",
        b'{"a":1}x',
    ],
)
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_json(body)


def test_brackets_inside_strings_do_not_count_as_nesting() -> None:
    body = json.dumps({"a": "[{" * 500 + '\\"', "b": [1]}).encode()
    assert decode_json(body)["b"] == [1]
    deep = b"[" * MAX_NESTING + b"]" * MAX_NESTING
    decode_json(deep)


def test_duplicate_keys_are_recorded() -> None:
    found = decode_json(b'{"a":1,"b":{"c":1,"c":2,"c":3},"a":4}')
    assert isinstance(found, RepeatedKeys) and found.repeated == ("a",) and found["a"] == 4
    assert found["b"].repeated == ("c",)
    assert decode_yaml(b"a: 1\na: 2\n").repeated == ("a",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: yes", {"a": "yes"}),
        ("a: true", {"a": True}),
        ("a: 010", {"a": 10}),
        ("a: 0x1f", {"a": 31}),
        ("a: 1:30", {"a": "1:30"}),
        ("a: 1.5", {"a": 1.5}),
        ("a: ~", {"a": None}),
        ("a:", {"a": None}),
        ("a: 2026-01-01", {"a": "2026-01-01"}),
        ("1: x", {"1": "x"}),
        ("on: off", {"on": "off"}),
        ("a: '5'", {"a": "5"}),
        ("a: .5", {"a": 0.5}),
        ("{a: [1, b]}", {"a": [1, "b"]}),
        ("a: <<", {"a": "<<"}),
    ],
)
def test_yaml_scalars_decode_like_json(text: str, expected: Any) -> None:
    assert decode_yaml(text.encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x",
        "a: !!python/object:os.system x",
        "a: !!set {b}",
        "a: !!binary aGk=",
        "a: [",
        "? [a]\n: b",
        "a: " + "[" * 100 + "]" * 100,
        "\tb: c",
        "a: b: c",
        "a: .nan",
        "a: 1\n---\nb: 2",
        "a: !!timestamp 2026-01-01",
    ],
)
def test_unsupported_yaml_is_refused(text: str) -> None:
    if text == "a: .nan":
        assert decode_yaml(text.encode()) == {"a": ".nan"}
        return
    with pytest.raises(BadRequest):
        decode_yaml(text.encode())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["", "application/json", "application/yaml", PROTOBUF, "text/html"]))
def test_random_body_raises_only_refusals(body: bytes, content_type: str) -> None:
    for given_body in (body, b"k8s\0" + body, b"k8s\0\x0a\x0d\x0a\x02v1\x12\x09Namespace\x12" + body):
        with contextlib.suppress(BadRequest, HttpRefusal):
            decode_body(content_type, given_body)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_random_label_selector_raises_only_bad_request(text: str) -> None:
    try:
        parse_labels(text)
    except BadRequest:
        return


# protobuf --------------------------------------------------------------------------------------------------------


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3]) + varint(value)
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = field(1, api_version.encode()) + field(2, kind.encode())
    return kubernetes_protobuf.MAGIC + field(1, meta) + field(2, raw) + field(3, b"") + field(4, b"")


def test_protobuf_namespace_of_kubectl_decodes_without_zero_values() -> None:
    """kubectl 1.32 and later encodes zero values and empty messages; they must not appear in the result."""
    labels = field(11, field(1, b"team") + field(2, b"red"))
    meta = (
        field(1, b"blue")
        + field(2, b"")
        + field(3, b"")
        + field(5, b"")
        + field(6, b"")
        + field(7, 0)
        + field(8, b"")
        + labels
    )
    body = envelope("v1", "Namespace", field(1, meta) + field(2, b"") + field(3, field(1, b"")))
    assert kubernetes_protobuf.decode(body) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "blue", "labels": {"team": "red"}},
    }


def test_protobuf_reviews_decode_and_unknown_kinds_are_refused() -> None:
    attributes = field(1, b"shop") + field(2, b"create") + field(3, b"holdfast.dev") + field(5, b"workloads")
    review = kubernetes_protobuf.decode(
        envelope("authorization.k8s.io/v1", "SelfSubjectAccessReview", field(2, field(1, attributes)))
    )
    assert review["spec"]["resourceAttributes"] == {
        "namespace": "shop",
        "verb": "create",
        "group": "holdfast.dev",
        "resource": "workloads",
    }
    spec = field(1, b"me") + field(2, 15) + field(3, field(1, 1767225600) + field(2, 500_000_000)) + field(5, 0)
    lease = kubernetes_protobuf.decode(envelope("coordination.k8s.io/v1", "Lease", field(2, spec)))
    assert lease["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.500000Z",
    }
    options = kubernetes_protobuf.decode(
        envelope("v1", "DeleteOptions", field(1, 0) + field(4, b"Foreground") + field(5, b"All"))
    )
    assert (options["gracePeriodSeconds"], options["propagationPolicy"], options["dryRun"]) == (
        0,
        "Foreground",
        ["All"],
    )
    with pytest.raises(BadRequest):
        kubernetes_protobuf.decode(envelope("v1", "Pod", b""))
    with pytest.raises(BadRequest):
        kubernetes_protobuf.decode(b"nonsense")


async def test_api_accepts_protobuf_bodies(api: Api) -> None:
    body = envelope("v1", "Namespace", field(1, field(1, b"blue")))
    made = await api.post("/api/v1/namespaces", body, type=PROTOBUF)
    assert (made.code, made.json["metadata"]["name"]) == (201, "blue")
    lease = field(1, field(1, b"lock")) + field(2, field(1, b"me") + field(2, 15))
    made = await api.post(
        "/apis/coordination.k8s.io/v1/namespaces/shop/leases",
        envelope("coordination.k8s.io/v1", "Lease", lease),
        type=PROTOBUF,
    )
    assert (made.code, made.json["spec"]["holderIdentity"]) == (201, "me")


# over the API ----------------------------------------------------------------------------------------------------


async def test_oversized_or_unsupported_body_is_refused(api: Api) -> None:
    huge = b'{"a":"' + b"x" * MAX_BODY_BYTES + b'"}'
    refused = await api.post(WORKLOADS, huge)
    assert (refused.code, refused.json["reason"]) == (413, "RequestEntityTooLarge")
    big = workload()
    big["metadata"]["annotations"] = {"a": "x" * 300_000}
    assert (await api.post(WORKLOADS, big)).code == 422
    many = workload()
    many["spec"]["template"]["command"] = ["x" * 1000] * 1700
    assert (await api.post(WORKLOADS, many)).code == 422
    assert (await api.post(WORKLOADS, b"x", type="text/html")).code == 415
    assert (await api.post(WORKLOADS, [])).code == 400
    assert (await api.post(WORKLOADS, "text")).code == 400
    assert (await api.get(WORKLOADS)).json["items"] == []


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 10**30},
        {"replicas": 1.5},
        {"replicas": True},
        {"minReadySeconds": 1e300},
        {"replicas": None},
        {"template": None},
        {"template": []},
        {"placement": {"regions": [None]}},
        {"placement": {"regions": "x"}},
        {"template": {"command": ["\u0000"]}},
        {"template": {"resources": {"cpu": "1e99"}}},
        {"autoscale": {}},
        {"template": {"resources": {"cpu": -1}}},
        {"template": {"resources": {"c" * 70: 1}}},
        {"replicas": [[[[[]]]]]},
    ],
)
async def test_malformed_spec_is_refused_with_status(api: Api, spec: dict[str, Any]) -> None:
    item = workload()
    item["spec"] = spec
    refused = await api.post(WORKLOADS, item)
    assert refused.code in (400, 422) and refused.json["kind"] == "Status" and refused.json["message"]
    assert (await api.get(WORKLOADS)).json["items"] == []


async def test_many_unknown_fields_give_bounded_warnings(api: Api) -> None:
    item = {**{f"x{n}": n for n in range(500)}, **workload()}
    made = await api.post(WORKLOADS, item)
    assert made.code == 201 and made.json["spec"]["replicas"] == 3
    assert 0 < len(made.warnings) <= 20
    current = {**{f"x{n}": n for n in range(500)}, **made.json}
    assert (await api.put(f"{WORKLOADS}/web", current)).code == 200


async def test_number_of_causes_is_bounded(api: Api) -> None:
    item = workload()
    item["spec"]["template"]["command"] = [5] * 4_000
    refused = await api.post(WORKLOADS, item)
    assert refused.code == 422 and len(refused.json["details"]["causes"]) <= MAX_CAUSES
