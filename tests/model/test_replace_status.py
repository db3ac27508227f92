"""Replacing a status inside stored bytes gives the same bytes and objects as encoding the whole object."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model import codec
from holdfast.model.kinds import BY_NAME, Kind
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import ContactBlock, Node, NodeSpec, NodeStatus
from holdfast.model.replica import ExecutionBlock, Phase, PlacementBlock, ReplicaStatus
from holdfast.model.template import Template
from holdfast.model.workload import Summary, Workload, WorkloadSpec, WorkloadStatus

META = ObjectMeta(name="w", namespace="t", uid="u", labels={"a": 'status":'}, resource_version="7")
WORKLOAD = Workload(META, WorkloadSpec(replicas=3, template=Template(command=("serve", ',"status":{}'))))
STATUSES = (
    WorkloadStatus(),
    WorkloadStatus(summary=Summary(replicas=3, bound=2)),
    WorkloadStatus(observed_generation=4, summary=Summary(replicas=3, bound=3)),
)


def _replaced(kind: Kind, before: Any, status: Any) -> None:
    after = msgspec.structs.replace(before, status=status)
    found = codec.replace_status(kind, codec.encode(before), before, after)
    assert found is not None
    value, item = found
    assert value == codec.encode(after)
    assert item == codec.decode_value(kind, value)
    assert item.spec is before.spec
    assert item.metadata is not before.metadata
    assert before.metadata.resource_version == "7"


@pytest.mark.parametrize("old", STATUSES)
@pytest.mark.parametrize("new", STATUSES)
def test_replacing_a_workload_status_equals_full_encoding(old: WorkloadStatus, new: WorkloadStatus) -> None:
    _replaced(BY_NAME["Workload"], msgspec.structs.replace(WORKLOAD, status=old), new)


def test_replacing_a_status_of_any_kind_equals_full_encoding() -> None:
    node = Node(META, NodeSpec(zone="z", capacity={"cpu": "4"}))
    _replaced(BY_NAME["Node"], node, NodeStatus(contact=ContactBlock(since="2026-01-01T00:00:00.000000Z")))
    empty = {"workload": "w", "workloadUid": "x", "assignment": "a", "revision": "r", "template": {}}
    replica = codec.decode_value(BY_NAME["Replica"], msgspec.json.encode({"metadata": {"name": "r"}, "spec": empty}))
    replica = msgspec.structs.replace(replica, metadata=META)
    ran = ExecutionBlock(attempt=1, phase=Phase.RUNNING, ready=True)
    _replaced(BY_NAME["Replica"], replica, ReplicaStatus(placement=PlacementBlock(node="n"), execution=ran))


def test_replacing_a_status_of_an_object_with_changed_spec_returns_none() -> None:
    kind, value = BY_NAME["Workload"], codec.encode(WORKLOAD)
    grown = msgspec.structs.replace(WORKLOAD, spec=msgspec.structs.replace(WORKLOAD.spec, replicas=4))
    assert codec.replace_status(kind, value, WORKLOAD, grown) is None
    named = msgspec.structs.replace(WORKLOAD, metadata=msgspec.structs.replace(META, labels={}))
    assert codec.replace_status(kind, value, WORKLOAD, named) is None


def test_replacing_a_status_in_bytes_of_another_encoding_returns_none() -> None:
    kind = BY_NAME["Workload"]
    after = msgspec.structs.replace(WORKLOAD, status=STATUSES[1])
    other = codec.encode(WORKLOAD).replace(b'"status":{', b'"status":{"unknown":1,', 1)
    assert codec.replace_status(kind, other, WORKLOAD, after) is None
    assert codec.replace_status(kind, b"", WORKLOAD, after) is None


def test_replacing_a_status_of_the_wrong_type_is_refused() -> None:
    wrong = msgspec.structs.replace(WORKLOAD, status=WorkloadStatus(summary=Summary(replicas="many")))  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        codec.replace_status(BY_NAME["Workload"], codec.encode(WORKLOAD), WORKLOAD, wrong)
