"""Equal parts of decoded objects are one part; an object is the same with shared parts as without."""

from __future__ import annotations

from holdfast.model import codec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Condition, ManagedFields, ObjectMeta
from holdfast.model.replica import Replica, ReplicaSpec
from holdfast.model.shared_parts import SharedParts
from holdfast.model.template import Template
from holdfast.model.workload import Revision, RolloutBlock, Workload, WorkloadSpec, WorkloadStatus

WORKLOAD, REPLICA = kind_of(Workload), kind_of(Replica)


def _template(cpu: str = "100m") -> Template:
    return Template(command=("serve",), env={"A": "b"}, resources={"cpu": cpu, "memory": 3, "gpu": 0.5})


def _workload(name: str, **meta: str) -> Workload:
    managed = ManagedFields(manager="kubectl", operation="Apply", fields_v1={"f:spec": {"f:replicas": {}}})
    status = WorkloadStatus(
        conditions=(Condition("Serving", "False", "NoneServing", f"{name} does not serve"),),
        rollout=RolloutBlock(revision="abc", history=(Revision("abc", _template()),)),
    )
    labels = {"app": "web", **meta}
    meta_ = ObjectMeta(name=name, namespace="bench", uid=name, labels=labels, managed_fields=(managed,))
    return Workload(meta_, WorkloadSpec(template=_template()), status)


def _stored(workload: Workload) -> Workload:
    found: Workload = codec.decode_value(WORKLOAD, codec.encode(workload))
    return found


def test_equal_parts_of_two_objects_are_one() -> None:
    first, second = _stored(_workload("a")), _stored(_workload("b"))
    assert first.spec.template is second.spec.template
    assert first.metadata.labels is second.metadata.labels
    assert first.metadata.annotations is second.metadata.annotations
    assert first.metadata.managed_fields[0].fields_v1 is second.metadata.managed_fields[0].fields_v1
    assert first.status.rollout is not None
    assert first.status.rollout.history[0].template is first.spec.template
    assert first.status.conditions[0].reason is second.status.conditions[0].reason


def test_parts_are_shared_between_kinds() -> None:
    spec = ReplicaSpec("a", "uid", "a.bench.normal", "1", _template())
    replica = codec.decode_value(REPLICA, codec.encode(Replica(ObjectMeta(name="a-0", namespace="bench"), spec)))
    assert replica.spec.template is _stored(_workload("a")).spec.template


def test_decoded_object_equals_the_stored_one() -> None:
    for workload in (_workload("a"), _workload("b", tier="gold"), Workload(ObjectMeta(name="c"))):
        assert _stored(workload) == workload
        assert codec.encode(_stored(workload)) == codec.encode(workload)


def test_different_parts_stay_different() -> None:
    whole = _stored(Workload(ObjectMeta(name="a"), WorkloadSpec(template=Template(resources={"cpu": 1}))))
    text = _stored(Workload(ObjectMeta(name="b"), WorkloadSpec(template=Template(resources={"cpu": "1"}))))
    assert type(whole.spec.template.resources["cpu"]) is int
    assert type(text.spec.template.resources["cpu"]) is str
    assert _stored(_workload("a")).metadata.labels != _stored(_workload("b", tier="gold")).metadata.labels


def test_replaced_status_shares_the_template_of_its_history() -> None:
    before = _stored(_workload("a"))
    status = WorkloadStatus(rollout=RolloutBlock(revision="abc", history=(Revision("abc", _template()),)))
    after = Workload(before.metadata, before.spec, status)
    replaced = codec.replace_status(WORKLOAD, codec.encode(before), before, after)
    assert replaced is not None
    value, item = replaced
    assert item.status.rollout.history[0].template is before.spec.template
    assert codec.encode(item) == value


def test_parts_in_use_survive_the_bound() -> None:
    parts = SharedParts(2)
    used = parts.of({"a": "1"})
    for number in range(20):
        parts.of({"a": f"other {number}"})
        assert parts.of({"a": "1"}) is used
    assert len(parts._recent) + len(parts._older) <= 4


def test_large_parts_of_a_hostile_tenant_are_bounded_in_bytes() -> None:
    parts = SharedParts(1000, bytes_limit=10_000)
    for number in range(200):
        parts.of({"a": f"{number}" + "x" * 1000})
    assert sum(map(len, (*parts._recent, *parts._older))) <= 2 * (10_000 + 1_100)
