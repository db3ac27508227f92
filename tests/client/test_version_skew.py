"""Messages of another release: unknown fields are dropped, the rest counts, and unknown kinds are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.client import wire
from holdfast.client.watch_lines import parse_events
from holdfast.model.errors import BadRequest, Conflict, Expired, Fault, Forbidden, NotFound, Unavailable
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key
from holdfast.model.node import NodeExecution
from holdfast.model.writes import SetStatus

NODE = BY_NAME["Node"]


def commit(**more: Any) -> bytes:
    """A status write of a Node, with additional fields."""
    write = SetStatus("Node", Key("", "n1"), "u", {"execution": NodeExecution(epoch=3, running=2)})
    tree = msgspec.json.decode(wire.encode_commit([write]))
    tree["writes"][0].update(more)
    return msgspec.json.encode({**tree, "tomorrow": {"a": [None]}})


def test_unknown_status_block_is_dropped_with_warning() -> None:
    blocks = {"execution": {"epoch": 3, "running": 2, "tomorrow": [1]}, "thermal": {"celsius": 40}, "gone": None}
    decoded = wire.decode_commit(commit(blocks=blocks, tomorrow="x"))
    assert decoded.writes == wire.decode_commit(commit()).writes
    assert decoded.unknown == (
        "Node n1: unknown status block thermal was dropped",
        "Node n1: unknown status block gone was dropped",
    )
    assert wire.decode_commit(commit()).unknown == ()


@pytest.mark.parametrize("wrong", [{"op": "merge"}, {"kind": "Tomorrow"}, {"blocks": {"execution": {"epoch": "x"}}}])
def test_unknown_kind_or_op_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        wire.decode_commit(commit(**wrong))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Expired),
        (422, BadRequest),
        (418, BadRequest),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_fault_with_unknown_reason_is_mapped_by_code(code: int, kind: type[Fault]) -> None:
    body = msgspec.json.encode({"reason": "NotBeforeTomorrow", "message": "m", "code": code, "tomorrow": {}})
    fault = wire.fault_of(code, body)
    assert type(fault) is kind and fault.message == "m"


def test_watch_line_with_unknown_fields_is_decoded() -> None:
    line = (
        b'{"tomorrow":1,"type":"MODIFIED","object":{"apiVersion":"holdfast.dev/v1","kind":"Node","tomorrow":null,'
        b'"metadata":{"name":"n1","resourceVersion":"7","tomorrow":{}},"spec":{"zone":"a","tomorrow":[{}]}}}'
    )
    (seen,) = parse_events(NODE, [line])
    assert seen.object is not None and (seen.object.metadata.name, seen.revision) == ("n1", 7)
