"""All patch types, on data and over the API."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import BadRequest, Fault, Invalid
from holdfast.server.patches import json_patch, merge_patch

from .conftest import WORKLOADS, Api, workload

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_rfc_7386(target: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(target, patch) == expected


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"foo": "bar", "baz": "qux"}),
        ({"foo": ["a", "b"]}, [{"op": "add", "path": "/foo/1", "value": "x"}], {"foo": ["a", "x", "b"]}),
        ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": "x"}], {"foo": ["a", "x"]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a/b": 1, "m~n": 2}, [{"op": "replace", "path": "/a~1b", "value": 3}], {"a/b": 3, "m~n": 2}),
        ({"m~n": 2}, [{"op": "test", "path": "/m~0n", "value": 2}], {"m~n": 2}),
    ],
)
def test_json_patch_follows_rfc_6902(target: Any, patch: Any, expected: Any) -> None:
    assert json_patch(target, patch) == expected


@pytest.mark.parametrize(
    ("patch", "fault"),
    [
        ([{"op": "test", "path": "/a", "value": 2}], Invalid),
        ([{"op": "remove", "path": "/x"}], Invalid),
        ([{"op": "replace", "path": "/x", "value": 1}], Invalid),
        ([{"op": "add", "path": "/l/9", "value": 1}], Invalid),
        ([{"op": "add", "path": "/a/b", "value": 1}], Invalid),
        ([{"op": "what", "path": "/a"}], BadRequest),
        ([{"op": "add", "path": "/a"}], BadRequest),
        ([{"op": "add", "path": "a", "value": 1}], BadRequest),
        ({"op": "add"}, BadRequest),
        ([5], BadRequest),
        ([{"op": "remove", "path": ""}], BadRequest),
        ([{"op": "move", "from": "/d", "path": "/d/e"}], BadRequest),
        ([{"op": "add", "path": "/l/٣", "value": 1}], Invalid),
    ],
)
def test_invalid_json_patch_raises_and_keeps_input(patch: Any, fault: type[Fault]) -> None:
    target = {"a": 1, "l": [1], "d": {}}
    with pytest.raises(fault):
        json_patch(target, patch)
    assert target == {"a": 1, "l": [1], "d": {}}, "the input is never modified"


@given(plain, plain)
def test_random_patch_raises_only_faults(target: Any, patch: Any) -> None:
    merge_patch(target, patch)
    with contextlib.suppress(Fault):
        json_patch(target, patch)


async def test_patch_cannot_change_identity(api: Api) -> None:
    item = (await api.post(WORKLOADS, workload())).json
    for patch in ({"metadata": {"name": "other"}}, {"kind": "Node"}, {"metadata": None}, {"metadata": {"uid": "x"}}):
        refused = await api.merge(f"{WORKLOADS}/web", patch)
        assert 400 <= refused.code < 500 or refused.json["metadata"]["uid"] == item["metadata"]["uid"], patch
    kept = (await api.merge(f"{WORKLOADS}/web", {"metadata": {"uid": None, "creationTimestamp": None}})).json
    assert kept["metadata"]["creationTimestamp"] == item["metadata"]["creationTimestamp"]
