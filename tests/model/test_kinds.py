"""Properties of every row of the kind table."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest

from holdfast.model import codec, kinds, lifecycle, ownership
from holdfast.model.api_groups import api_path
from holdfast.model.lifecycle import TRANSITIONS, Stage
from holdfast.model.meta import Condition, Object, ObjectMeta, with_condition
from holdfast.model.ownership import OWNERS, UNOWNED
from holdfast.model.probe import Probe, TcpProbe
from holdfast.model.reasons import Reason
from holdfast.model.template import Port, Probes, Template, template_hash
from holdfast.model.workload import Batch, Rollout, Workload, WorkloadSpec, default_workload, validate_workload


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda k: k.name)
def test_every_kind_has_field_owners_or_is_listed_as_unowned(kind: kinds.Kind) -> None:
    assert (kind.name in OWNERS) != (kind.name in UNOWNED)
    if kind.name in OWNERS:
        for group in OWNERS[kind.name]:
            current = kind.type
            for part in group.split("."):
                fields = {f.encode_name: f.type for f in msgspec.structs.fields(current)}
                assert part in fields, f"{kind.name}.{group} is not a field"
                current = fields[part]
                if not isinstance(current, type):
                    break


def _complete(struct: type[msgspec.Struct]) -> Any:
    """An instance of any kind with a value for every required field."""
    values = {}
    for field in msgspec.structs.fields(struct):
        if field.required:
            values[field.name] = _value(field.type)
    return struct(**values)


def _value(wanted: Any) -> Any:
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return ObjectMeta(name="x", namespace="n", uid="u") if wanted is ObjectMeta else _complete(wanted)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return next(iter(wanted))
    return wanted(1) if wanted in (int, float) else wanted()


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda k: k.name)
def test_wire_bytes_are_built_from_stored_bytes_without_loss(kind: kinds.Kind) -> None:
    item = _complete(kind.type)
    value = codec.encode(item)
    seen = msgspec.json.decode(codec.wire_bytes(kind, value, 42))
    assert seen["kind"] == kind.name and seen["apiVersion"] == kind.api_version
    assert seen["metadata"]["resourceVersion"] == "42" and seen["metadata"]["name"] == "x"
    back = codec.decode(kind, value, 42)
    assert isinstance(back, Object) and back.revision == 42
    assert codec.encode(back) == value, "decoding and encoding again must not change the bytes"
    assert not kind.has_status or "status" in seen, "clients crash on objects without a status"


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.name)
def test_path_of_a_plural_is_that_of_its_kind(kind: kinds.Kind) -> None:
    assert api_path(kind.plural) == kind.api_path


def test_store_key_identifies_its_kind() -> None:
    keys = {kind.store_key("n", "x") for kind in kinds.ALL}
    assert len(keys) == len(kinds.ALL)
    assert all(kinds.kind_of_store_key(kind.store_key("n", "x")) is kind for kind in kinds.ALL)


def test_validation_reports_all_errors() -> None:
    spec = WorkloadSpec(
        replicas=-1,
        template=Template(
            resources={"cpu": "x", "gpu": "1500m"},
            ports=(Port(name="A"), Port(name="A")),
            probes=Probes(readiness=Probe(tcp=TcpProbe(port="nope"))),
        ),
        batch=Batch(),
        rollout=Rollout(max_surge=0),
    )
    fields = {c.field for c in validate_workload(Workload(metadata=ObjectMeta(name="x.y"), spec=spec), None)}
    assert fields >= {
        "metadata.name",
        "spec.replicas",
        "spec.template.command",
        "spec.template.resources.cpu",
        "spec.template.resources.gpu",
        "spec.template.ports[1]",
        "spec.batch",
        "spec.rollout",
        "spec.template.probes.readiness.port",
    }


def test_equal_templates_have_equal_hashes() -> None:
    one = default_workload(
        Workload(metadata=ObjectMeta(name="x"), spec=WorkloadSpec(template=Template(resources={"cpu": "1000m"})))
    )
    two = default_workload(
        Workload(metadata=ObjectMeta(name="x"), spec=WorkloadSpec(template=Template(resources={"cpu": 1})))
    )
    assert template_hash(one.spec.template) == template_hash(two.spec.template)


def test_condition_transition_time_changes_only_with_the_status() -> None:
    first = with_condition((), Condition(type="Serving", status="False", reason="a"), "t1")
    same = with_condition(first, Condition(type="Serving", status="False", reason="b"), "t2")
    assert same[0].last_transition_time == "t1" and same[0].reason == "b"
    assert with_condition(same, Condition(type="Serving", status="False", reason="b"), "t3") is same
    assert with_condition(same, Condition(type="Serving", status="True"), "t4")[0].last_transition_time == "t4"


def test_every_stage_has_transitions_in_and_out() -> None:
    reached = {t.target for t in TRANSITIONS}
    left = {t.source for t in TRANSITIONS}
    assert reached == set(Stage)
    assert set(Stage) - left == {Stage.RELEASED}
    pairs = [(t.source, t.target) for t in TRANSITIONS]
    assert len(pairs) == len(set(pairs)), "each transition has one row"


def test_transition_owners_are_known_roles() -> None:
    writers = {role for groups in ownership.OWNERS.values() for roles in groups.values() for role in roles}
    assert {t.owner for t in lifecycle.TRANSITIONS} <= writers


def test_only_the_owner_of_a_transition_writes_its_evidence() -> None:
    for row in TRANSITIONS:
        kind, _, block = row.commit_point.partition(".")
        if block:
            assert OWNERS[kind][block] == {row.owner}, f"{row.source} → {row.target}"
        elif row.target is not Stage.RELEASED:  # the end of a replica is the removal of its finalizer
            assert row.owner in OWNERS[kind]["spec"], f"{row.source} → {row.target}"


SEVERAL_WRITERS = {
    "Workload.status.load": {"operator", "user"},  # the load is measured by whoever runs the workload
    "Endpoint.status": {"region", "serve"},  # `serve` in its region, the region's link in the global cell
}


def test_each_status_block_has_one_writer() -> None:
    several = {
        f"{kind}.{group}": roles
        for kind, groups in OWNERS.items()
        for group, roles in groups.items()
        if group.partition(".")[0] == "status" and len(roles) != 1
    }
    assert several == SEVERAL_WRITERS


def test_every_reason_has_a_sentence() -> None:
    assert all(reason.sentence.endswith(".") and len(reason.sentence.split()) > 2 for reason in Reason)
