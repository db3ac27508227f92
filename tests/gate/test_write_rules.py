"""Who may write what, and where: ownership, home cells, scopes, finalizers, metadata, admission, audit."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest
from tests.gate.conftest import (
    OPERATOR,
    USER,
    World,
    assignment,
    binding,
    by,
    link_at_global,
    node,
    node_agent,
    replica,
    tenant,
    with_meta,
    with_spec,
    workload,
)

from holdfast.gate.metadata import MAX_OBJECT_BYTES
from holdfast.model.assignment import Assignment
from holdfast.model.core import Event, Lease, ObjectReference
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import Conflict, Fault, Forbidden, Invalid, NotFound, Overloaded
from holdfast.model.meta import Condition, Key, ObjectMeta, OwnerReference
from holdfast.model.node import Node
from holdfast.model.principal import HOLLOW_NODES, VIEWERS, from_identity
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload
from holdfast.model.writes import Create, Delete, SetStatus, Update

# Ownership


@pytest.mark.parametrize("role", ["assign", "workload-status", "scheduler", "replicate", "collect"])
async def test_spec_write_by_non_owner_is_forbidden_and_audited(world: World, role: str) -> None:
    made = await world.create(USER, workload())
    with pytest.raises(Forbidden, match=re.escape("spec.replicas (owned by cron, operator, user)")):
        await world.do(by(role), Update(with_spec(made, replicas=3)), request="PUT /x")
    last = (await world.audit())[-1]
    assert (last.result, last.reason, last.principal) == ("Refused", "NotOwner", f"holdfast:controller:{role}")
    assert (last.resource, last.verb, last.request, last.count) == ("workloads", "update", "PUT /x", 1)
    assert world.get(Workload, "web", "shop") is made


async def test_status_block_write_by_non_owner_is_forbidden(world: World) -> None:
    made = await world.create(USER, workload())
    blocks: dict[str, Any] = {"summary": {"ready": 1}, "scale": {"replicas": 2}, "rollout": {"phase": "x"}}
    owner = {"summary": "workload-status", "scale": "autoscale", "rollout": "workload-status"}
    for name, value in blocks.items():
        for role in ("workload-status", "autoscale", "rollout", "assign"):
            write = SetStatus("Workload", made.key, made.uid, {name: value})
            if owner[name] == role:
                await world.do(by(role), write)
                await world.do(by(role), SetStatus("Workload", made.key, made.uid, {name: None}))
            else:
                with pytest.raises(Forbidden, match=rf"status\.{name}"):
                    await world.do(by(role), write)
    with pytest.raises(Forbidden, match=r"status\.summary"):
        await world.do(OPERATOR, SetStatus("Workload", made.key, made.uid, {"summary": {"ready": 1}}))


async def test_condition_write_requires_ownership_of_status(world: World) -> None:
    made = await world.create(USER, workload())
    said = SetStatus("Workload", made.key, made.uid, conditions=(Condition(type="Rolled", status="True"),))
    await world.do(by("autoscale"), said)
    said = SetStatus("Workload", made.key, made.uid, conditions=(Condition(type="Rolled", status="False"),))
    with pytest.raises(Forbidden, match=r"status\.conditions"):
        await world.do(by("grant"), said)


async def test_create_with_unowned_spec_field_is_forbidden(north: World) -> None:
    with pytest.raises(Forbidden):
        await north.create(by("replicate", "north"), node())
    with pytest.raises(Forbidden, match=re.escape("spec.unschedulable (owned by node-pool, operator)")):
        await north.create(node_agent(), with_spec(node(), unschedulable=True))
    made = await north.create(node_agent(), node())
    cordoned = await north.do(OPERATOR, Update(with_spec(made, unschedulable=True)))
    with pytest.raises(Forbidden, match="unschedulable"):
        await north.do(node_agent(), Update(with_spec(cordoned, unschedulable=False)))
    with pytest.raises(Forbidden, match=re.escape("spec.capacity")):
        await north.do(OPERATOR, Update(with_spec(cordoned, capacity={"cpu": "9"})))


async def test_principal_without_role_cannot_write(world: World) -> None:
    viewer = from_identity("eve", (VIEWERS,), credential="token:eve")
    made = await world.create(USER, workload())
    for write in (Create(workload("b")), Update(made), Delete("Workload", made.key, made.uid)):
        with pytest.raises(Forbidden):
            await world.do(viewer, write)


# Home cells and mirrors


async def test_region_refuses_write_to_global_kind(north: World) -> None:
    with pytest.raises(Forbidden, match="expected a write to the global cell"):
        await north.create(USER, workload())
    with pytest.raises(Forbidden, match="expected a write to the global cell"):
        await north.create(OPERATOR, tenant("x"))


async def test_global_cell_refuses_write_to_regional_kind(world: World) -> None:
    with pytest.raises(Forbidden, match="stored in regions, not in the global cell"):
        await world.create(OPERATOR, node())
    slice_ = Endpoint(
        metadata=ObjectMeta(name="web.north", namespace="shop"), spec=EndpointSpec(workload="web", region="north")
    )
    with pytest.raises(Forbidden, match="reported by its region"):
        await world.create(by("serve"), slice_)
    await world.create(link_at_global(), slice_)
    with pytest.raises(Forbidden, match="found region north"):
        await world.create(link_at_global("south"), with_meta(slice_, name="web.south"))


async def test_mirror_keeps_identity_of_original(north: World) -> None:
    link = by("link", "north")
    original = with_meta(
        assignment(),
        uid="original",
        generation=4,
        creation_timestamp="2026-01-01T00:00:00Z",
        resource_version="77",
        finalizers=("holdfast.dev/assignments",),
    )
    copy = await north.create(link, original)
    assert (copy.uid, copy.metadata.generation) == ("original", 4)
    going = with_meta(copy, deletion_timestamp="2026-02-01T00:00:00Z", generation=5)
    copy = await north.do(link, Update(going))
    assert copy.metadata.terminating and copy.metadata.generation == 5
    bare = await north.do(link, Update(with_meta(copy, finalizers=())))
    assert bare is not None, "only the link removes a mirror"
    assert await north.do(link, Update(bare)) is bare
    with pytest.raises(Forbidden):
        await north.do(by("collect", "north"), Delete("Assignment", copy.key, copy.uid))
    assert await north.do(link, Delete("Assignment", copy.key, copy.uid)) is None
    assert north.get(Assignment, "web.north.normal", "shop") is None


async def test_only_mirrors_can_be_created_without_tenant(north: World) -> None:
    await north.create(by("link", "north"), with_meta(assignment(), namespace="unknown"))
    with pytest.raises(NotFound, match=re.escape('namespaces "unknown" not found')):
        await north.create(by("replicate", "north"), with_meta(replica(), namespace="unknown"))


# Nodes, regions, tenants


async def test_agent_can_write_only_its_own_node(north: World) -> None:
    own = await north.create(node_agent("n1"), node("n1"))
    other = await north.create(node_agent("n2"), node("n2"))
    await north.do(node_agent("n1"), SetStatus("Node", own.key, own.uid, {"execution": {"epoch": 1}}))
    with pytest.raises(Forbidden, match="may write only for node n1"):
        await north.do(node_agent("n1"), SetStatus("Node", other.key, other.uid, {"execution": {"epoch": 1}}))
    last = (await north.audit())[-1]
    assert (last.principal, last.reason, last.result) == ("holdfast:node:north:n1", "WrongNode", "Refused")
    with pytest.raises(Forbidden):
        await north.create(node_agent("n1"), node("n3"))
    with pytest.raises(Forbidden):
        await north.do(node_agent("n1"), Delete("Node", other.key, other.uid))
    with pytest.raises(Forbidden, match="belongs to region south, not to"):
        await north.create(node_agent("n4", "south"), node("n4"))
    assert await north.do(node_agent("n1"), Delete("Node", own.key, own.uid)) is None


async def test_agent_can_write_only_replicas_on_its_node(north: World) -> None:
    here, there = await north.plant(replica("r1", on="n1")), await north.plant(replica("r2", on="n2"))
    nowhere = await north.plant(replica("r3"))
    ran = {"execution": {"phase": "Running", "attempt": 1}}
    await north.do(node_agent(), SetStatus("Replica", here.key, here.uid, ran))
    for item in (there, nowhere):
        with pytest.raises(NotFound) as existing:
            await north.do(node_agent(), SetStatus("Replica", item.key, item.uid, ran))
        last = (await north.audit())[-1]
        assert (last.principal, last.reason, last.result) == (node_agent().name, "OutOfScope", "Refused")
        with pytest.raises(NotFound) as missing:
            await north.do(node_agent(), SetStatus("Replica", Key("shop", "none"), item.uid, ran))
        assert existing.value.message == missing.value.message.replace("none", item.metadata.name)
    bound, elsewhere = await north.plant(binding("b1", "n1")), await north.plant(binding("b2", "n2"))
    await north.do(node_agent(), SetStatus("Binding", bound.key, bound.uid, {"phase": "Stopped"}))
    with pytest.raises(NotFound):
        await north.do(node_agent(), SetStatus("Binding", elsewhere.key, elsewhere.uid, {"phase": "Stopped"}))
    with pytest.raises(Forbidden, match=r"status\.placement"):
        await north.do(
            node_agent(), SetStatus("Replica", here.key, here.uid, {"placement": {"node": "n1", "attempt": 5}})
        )


async def test_hollow_host_can_write_only_nodes_of_its_prefix(north: World) -> None:
    host = from_identity("holdfast:hollow:north:hollow-", (HOLLOW_NODES,), credential="x")
    await north.create(host, node("hollow-17"))
    with pytest.raises(Forbidden):
        await north.create(host, node("n1"))


async def test_region_link_can_write_only_its_own_status(world: World) -> None:
    made = await world.create(by("assign"), assignment("north"))
    await world.do(link_at_global("north"), SetStatus("Assignment", made.key, made.uid, {"serving": 1}))
    with pytest.raises(NotFound):
        await world.do(link_at_global("south"), SetStatus("Assignment", made.key, made.uid, {"serving": 9}))
    region = world.get(Region, "north")
    await world.do(link_at_global(), SetStatus("Region", region.key, region.uid, {"report": {"nodes": 3}}))
    with pytest.raises(Forbidden):
        await world.do(link_at_global("south"), SetStatus("Region", region.key, region.uid, {"report": {"nodes": 9}}))
    assert [r.reason for r in (await world.audit())[-2:]] == ["OutOfScope", "WrongRegion"]
    with pytest.raises(Forbidden):
        await world.create(link_at_global(), workload())


async def test_user_can_write_only_in_own_tenant(world: World) -> None:
    await world.create(OPERATOR, tenant("bank"))
    with pytest.raises(Forbidden, match="only in its own tenants"):
        await world.create(USER, workload(namespace="bank"))
    theirs = await world.create(OPERATOR, workload(namespace="bank"))
    with pytest.raises(Forbidden):
        await world.do(USER, Delete("Workload", theirs.key, theirs.uid))
    with pytest.raises(Forbidden):
        await world.do(USER, Update(theirs))


async def test_refusal_of_another_tenants_object_does_not_reveal_whether_it_exists(world: World) -> None:
    await world.create(OPERATOR, tenant("bank"))
    theirs = await world.create(OPERATOR, workload(namespace="bank"))
    for write in (
        lambda name: Create(workload(name, namespace="bank")),
        lambda name: Update(with_meta(theirs, name=name)),
        lambda name: Delete("Workload", Key("bank", name), "some-uid"),
        lambda name: SetStatus("Workload", Key("bank", name), "some-uid", {"load": {}}),
    ):
        refusals = []
        for name in ("web", "missing"):
            with pytest.raises(Fault) as refused:
                await world.do(USER, write(name))
            refusals.append((type(refused.value), refused.value.message.replace(name, "NAME")))
        assert refusals[0] == refusals[1] and refusals[0][0] is Forbidden


async def test_agent_writes_events_only_about_objects_of_its_node(north: World) -> None:
    own, other = await north.plant(binding("b1", "n1")), await north.plant(binding("b2", "n2"))

    def event(name: str, about: str, namespace: str = "shop", kind: str = "Binding") -> Event:
        ref = ObjectReference(kind=kind, name=about, namespace="shop" if kind == "Binding" else "")
        return Event(metadata=ObjectMeta(name=name, namespace=namespace), involved_object=ref)

    made = await north.create(node_agent(), event("e1", own.metadata.name))
    await north.do(node_agent(), Update(msgspec.structs.replace(made, count=2)))
    await north.create(node_agent("n2"), node("n2"))
    messages = set()
    for wrong in (
        event("e2", other.metadata.name),
        event("e2", "missing"),
        event("e2", own.metadata.name, namespace="bank"),
        event("e2", "n2", namespace="default", kind="Node"),
        event("e2", "shop", kind="Tenant"),
    ):
        with pytest.raises(Forbidden, match="only about existing objects of node n1") as refused:
            await north.create(node_agent(), wrong)
        messages.add(refused.value.message.partition(": ")[2])
    assert len(messages) == 1, "the refusal reveals nothing"
    theirs = await north.create(OPERATOR, event("e3", other.metadata.name))
    for write in (Update(msgspec.structs.replace(theirs, count=2)), Delete("Event", theirs.key, theirs.uid)):
        with pytest.raises(NotFound):
            await north.do(node_agent(), write)


async def test_tenant_needs_permission_for_a_priority_class(world: World) -> None:
    for name, tenants in (("critical", ()), ("high", ("shop",)), ("urgent", ("bank",)), ("normal", ("*",))):
        spec = PriorityClassSpec(priority=1000, may_preempt=True, tenants=tenants)
        await world.create(OPERATOR, PriorityClass(metadata=ObjectMeta(name=name), spec=spec))
    for name in ("high", "normal"):
        await world.create(USER, workload(f"by-{name}", priority_class_name=name))
    for name in ("critical", "urgent"):
        with pytest.raises(Forbidden, match=f'may not use priority class "{name}"; next: .*adds shop to spec.tenants'):
            await world.create(USER, workload(f"by-{name}", priority_class_name=name))
    last = (await world.audit())[-1]
    assert (last.reason, last.result) == ("PriorityClassNotPermitted", "Refused")
    theirs = await world.create(OPERATOR, workload("by-operator", priority_class_name="critical"))
    smaller = msgspec.structs.replace(theirs.spec, replicas=1)
    await world.do(USER, Update(msgspec.structs.replace(theirs, spec=smaller)))
    own = world.get(Workload, "by-high", "shop")
    promoted = msgspec.structs.replace(own, spec=msgspec.structs.replace(own.spec, priority_class_name="critical"))
    with pytest.raises(Forbidden, match="may not use priority class"):
        await world.do(USER, Update(promoted))


async def test_lease_renewal_leaves_no_audit_record(world: World) -> None:
    def event(namespace: str) -> Event:
        about = ObjectReference(kind="Workload", name="web")
        return Event(metadata=ObjectMeta(name="e", namespace=namespace), involved_object=about)

    await world.create(USER, event("shop"))
    with pytest.raises(Forbidden):
        await world.create(USER, event("bank"))
    lease = Lease(metadata=ObjectMeta(name="l", namespace="holdfast-system"))
    with pytest.raises(Forbidden):
        await world.create(USER, lease)
    made = await world.create(by("assign"), lease)
    assert made.metadata.generation == 0
    records = len(await world.audit())
    await world.do(by("assign"), Update(with_spec(made, holder_identity="me")))
    assert len(await world.audit()) == records, "a lease renewal is not audited"


# Namespaces


async def test_create_in_missing_or_terminating_namespace_is_refused(world: World) -> None:
    with pytest.raises(NotFound, match=re.escape('namespaces "nowhere" not found')):
        await world.create(OPERATOR, workload(namespace="nowhere"))
    shop = world.get(Tenant, "shop")
    held = await world.create(USER, workload())
    await world.do(OPERATOR, Delete("Tenant", shop.key, shop.uid))
    with pytest.raises(Forbidden, match="being terminated") as refused:
        await world.create(USER, workload("late"))
    assert refused.value.facts["causes"][0].reason == "NamespaceTerminating"
    await world.do(USER, Update(with_spec(held, replicas=0)))


async def test_create_racing_with_tenant_deletion_is_refused(world: World) -> None:
    """The tenant's revision is compared in the transaction: its deletion cannot start between check and commit."""
    shop = world.get(Tenant, "shop")
    objects, real = world.objects, world.objects.commit

    async def delete_first(kind: Any, txn: Any) -> Any:
        objects.commit = real  # type: ignore[method-assign]
        await world.do(OPERATOR, Delete("Tenant", shop.key, shop.uid))
        return await real(kind, txn)

    objects.commit = delete_first  # type: ignore[method-assign]
    with pytest.raises(Forbidden, match="being terminated"):
        await world.create(USER, workload())


# Deletion and finalizers


async def test_delete_removes_object_after_last_finalizer(world: World) -> None:
    quota = await world.create(
        OPERATOR, Quota(metadata=ObjectMeta(name="quota", namespace="shop"), spec=QuotaSpec({"cpu": 8}))
    )
    assert await world.do(OPERATOR, Delete("Quota", quota.key, quota.uid)) is None
    made = await world.create(USER, workload())
    going = await world.do(USER, Delete("Workload", made.key, made.uid))
    assert going.metadata.terminating
    again = await world.do(USER, Delete("Workload", made.key, made.uid))
    assert again is going
    assert await world.do(by("assign"), Update(with_meta(going, finalizers=()))) is None
    assert world.get(Workload, "web", "shop") is None
    with pytest.raises(NotFound):
        await world.do(USER, Delete("Workload", made.key, made.uid))


async def test_delete_with_other_uid_conflicts(world: World) -> None:
    made = await world.create(USER, workload())
    with pytest.raises(Conflict, match="UID in precondition"):
        await world.do(USER, Delete("Workload", made.key, "another"))


@pytest.mark.parametrize(("policy", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")])
async def test_delete_propagation_adds_finalizer(world: World, policy: str, finalizer: str) -> None:
    made = await world.create(USER, workload())
    going = await world.do(USER, Delete("Workload", made.key, made.uid, propagation=policy))
    assert going.metadata.finalizers == ("holdfast.dev/assignments", finalizer)
    with pytest.raises(Invalid):
        await world.do(USER, Delete("Workload", made.key, made.uid, propagation="Sideways"))


async def test_delete_by_role_without_permission_is_forbidden(world: World, north: World) -> None:
    made = await world.create(by("assign"), assignment())
    for who in (USER, by("grant"), link_at_global()):
        with pytest.raises(Forbidden):
            await world.do(who, Delete("Assignment", made.key, made.uid))
    assert await world.do(by("assign"), Delete("Assignment", made.key, made.uid)) is None
    rep = await north.create(by("replicate", "north"), replica())
    with pytest.raises(Forbidden):
        await north.do(by("scheduler", "north"), Delete("Replica", rep.key, rep.uid))
    assert (await north.do(USER, Delete("Replica", rep.key, rep.uid))).metadata.terminating


async def test_finalizer_removal_by_non_owner_is_forbidden(world: World) -> None:
    made = await world.create(USER, workload())
    with pytest.raises(
        Forbidden, match=re.escape("metadata.finalizers[holdfast.dev/assignments] (owned by assign, operator)")
    ):
        await world.do(USER, Update(with_meta(made, finalizers=())))
    with pytest.raises(Forbidden):
        await world.do(by("collect"), Update(with_meta(made, finalizers=())))
    bare = await world.do(by("assign"), Update(with_meta(made, finalizers=())))
    back = await world.do(by("assign"), Update(with_meta(bare, finalizers=("holdfast.dev/assignments",))))
    assert await world.do(OPERATOR, Update(with_meta(back, finalizers=())))


async def test_finalizer_unqualified_or_added_late_is_refused(world: World) -> None:
    made = await world.create(USER, workload())
    with pytest.raises(Invalid, match="domain qualified"):
        await world.do(USER, Update(with_meta(made, finalizers=(*made.metadata.finalizers, "mine"))))
    own = await world.do(USER, Update(with_meta(made, finalizers=(*made.metadata.finalizers, "example.com/mine"))))
    going = await world.do(USER, Delete("Workload", own.key, own.uid))
    with pytest.raises(Invalid, match="no new finalizers can be added"):
        await world.do(USER, Update(with_meta(going, finalizers=(*going.metadata.finalizers, "example.com/late"))))
    left = await world.do(USER, Update(with_meta(going, finalizers=("holdfast.dev/assignments",))))
    assert left.metadata.finalizers == ("holdfast.dev/assignments",)


# Metadata and validation


async def test_all_causes_are_reported_at_once(world: World) -> None:
    bad = with_meta(
        workload(replicas=-1),
        name="Bad_Name",
        labels={"-": "x"},
        annotations={"/": "y"},
        owner_references=(OwnerReference(api_version="v1", kind="Region", name="", uid="u"),),
    )
    bad = with_spec(bad, template=msgspec.structs.replace(bad.spec.template, command=()))
    with pytest.raises(Invalid) as refused:
        await world.create(USER, bad)
    fields = {cause.field for cause in refused.value.causes}
    assert {
        "metadata.name",
        "metadata.labels",
        "metadata.annotations",
        "spec.replicas",
        "spec.template.command",
    } <= fields
    assert "metadata.ownerReferences[0].name" in fields
    assert refused.value.message.startswith('Workload.holdfast.dev "Bad_Name" is invalid: [')
    assert "spec.template.command: Required value" in refused.value.message


async def test_invalid_name_scope_or_size_is_refused(world: World) -> None:
    for item in (
        with_meta(workload(), name=""),
        with_meta(workload(), name="../x"),
        with_meta(workload(), namespace=""),
    ):
        with pytest.raises(Invalid):
            await world.create(OPERATOR, item)
    with pytest.raises(Invalid, match="cluster-scoped"):
        await world.create(OPERATOR, with_meta(tenant("x"), namespace="shop"))
    with pytest.raises(Invalid, match=r"Too long: .* 262144"):
        await world.create(USER, with_meta(workload(), annotations={"a": "x" * 300_000}))
    with pytest.raises(Invalid, match="Too long"):
        await world.create(OPERATOR, with_spec(tenant("big"), description="x" * (MAX_OBJECT_BYTES + 1)))


async def test_second_controller_owner_is_refused(world: World) -> None:
    refs = tuple(
        OwnerReference(api_version="v1", kind="Region", name=f"o{i}", uid=f"u{i}", controller=True) for i in range(2)
    )
    with pytest.raises(Invalid, match="only one owner can be the controller"):
        await world.create(USER, with_meta(workload(), owner_references=refs))


# Admission


async def test_workload_with_unknown_priority_class_is_refused(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        await world.create(USER, workload(priority_class_name="golden"))
    assert refused.value.causes[0].reason == "FieldValueNotSupported"
    assert '"standard"' in refused.value.message


async def test_workload_above_quota_is_accepted_with_warning(world: World) -> None:
    said: list[str] = []
    await world.do(USER, Create(workload()), warnings=said)
    assert said == [
        "tenant shop has no Quota: its replicas stay pending with reason NoGrant until an operator creates one"
    ]
    await world.create(
        OPERATOR, Quota(metadata=ObjectMeta(name="quota", namespace="shop"), spec=QuotaSpec({"cpu": "4"}))
    )
    await world.do(USER, Create(workload("big", replicas=6)), warnings=said)
    assert said == ["the quota of tenant shop fits 4 of these 6 replicas; the others stay pending"]


async def test_workload_above_pending_cap_is_refused_with_retry_after(world: World) -> None:
    spec = QuotaSpec(hard={"cpu": "4"}, pending_cap=5)
    await world.create(OPERATOR, Quota(metadata=ObjectMeta(name="quota", namespace="shop"), spec=spec))
    huge = with_spec(workload(), template=msgspec.structs.replace(workload().spec.template, resources={"cpu": "5"}))
    with pytest.raises(Invalid, match=r"one replica exceeds the quota of tenant shop \(limit 4\)"):
        await world.create(USER, huge)
    made = await world.create(USER, workload(replicas=3))
    with pytest.raises(Overloaded, match=r"tenant shop \(limit 5, found 3 \+ 3 new\)"):
        await world.create(USER, workload("more", replicas=3))
    with pytest.raises(Overloaded) as full:
        await world.do(USER, Update(with_spec(made, replicas=6)))
    assert full.value.facts["reason"] == "PendingCapExceeded" and full.value.retry_after_s > 0
    await world.do(by("workload-status"), SetStatus("Workload", made.key, made.uid, {"summary": {"bound": 3}}))
    await world.create(USER, workload("more", replicas=3))


async def test_delete_of_object_in_use_is_refused(world: World, north: World) -> None:
    made = await world.create(USER, workload())
    standard, region = world.get(PriorityClass, "standard"), world.get(Region, "north")
    with pytest.raises(Forbidden, match="in use by 1 workloads, for example shop/web"):
        await world.do(OPERATOR, Delete("PriorityClass", standard.key, standard.uid))
    held = await world.create(by("assign"), assignment())
    with pytest.raises(Forbidden, match=re.escape("shop/web.north.normal")):
        await world.do(OPERATOR, Delete("Region", region.key, region.uid))
    await world.do(by("assign"), Delete("Assignment", held.key, held.uid), Update(with_meta(made, finalizers=())))
    await world.do(USER, Delete("Workload", made.key, made.uid))
    assert await world.do(OPERATOR, Delete("PriorityClass", standard.key, standard.uid)) is None
    assert await world.do(OPERATOR, Delete("Region", region.key, region.uid)) is None

    machine = await north.create(node_agent(), node())
    await north.plant(binding())
    with pytest.raises(Forbidden, match="holdfast node drain n1"):
        await north.do(node_agent(), Delete("Node", machine.key, machine.uid))
    said: list[str] = []
    assert await north.do(OPERATOR, Delete("Node", machine.key, machine.uid), warnings=said) is None
    assert "attest" in said[0] and north.get(Node, "n1") is None


async def test_region_named_global_is_refused(world: World) -> None:
    with pytest.raises(Invalid, match="reserved for the global cell"):
        await world.create(OPERATOR, with_meta(world.get(Region, "north"), name="global", resource_version=""))


# Audit


async def test_commit_has_one_audit_record_with_an_entry_per_write(world: World) -> None:
    made = await world.create(USER, workload())
    await world.do(OPERATOR, Update(with_spec(made, replicas=2)), Create(workload("b")), request="PATCH /w")
    record = (await world.audit())[-1]
    assert (record.principal, record.credential, record.result) == ("ann", "token:ann", "Committed")
    assert (record.verb, record.request, record.time) == ("update,create", "PATCH /w", "2027-01-15T08:00:00.000000Z")
    assert [(e.op, e.kind, e.name, e.before) for e in record.entries] == [
        ("update", "Workload", "web", made.revision),
        ("create", "Workload", "b", 0),
    ]
    assert record.entries[0].uid == made.uid


async def test_conflict_leaves_no_audit_record(world: World) -> None:
    made = await world.create(USER, workload())
    await world.do(USER, Update(with_spec(made, replicas=2)))
    count = len(await world.audit())
    with pytest.raises(Conflict):
        await world.do(USER, Update(with_spec(made, replicas=3)))
    assert len(await world.audit()) == count


async def test_refusals_are_counted_per_principal_and_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(50):
        world.gate.audit.record_refusal("mallory", "list", "workloads", "Unauthorized")
    record = (await world.audit())[-1]
    assert (record.principal, record.count, record.result) == ("mallory", 50, "Refused")
    monkeypatch.setattr("holdfast.gate.audit_rows.AUDIT_REFUSALS_MAX", 3)
    for number in range(10):
        world.gate.audit.record_refusal(f"m{number}", "list", "workloads", "Unauthorized")
    tail = (await world.audit())[-4:]
    assert [(r.principal, r.count) for r in tail] == [("m0", 1), ("m1", 1), ("m2", 1), ("*", 7)]


async def test_refusals_are_flushed_and_audit_log_is_trimmed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.gate.audit.AUDIT_RECORDS_MAX", 5)
    monkeypatch.setattr("holdfast.gate.audit.AUDIT_TRIM_EVERY_RECORDS", 10)
    for number in range(12):
        world.gate.audit.record_refusal(f"m{number}", "list", "workloads", "Unauthorized")
    async with asyncio.timeout(5):
        while b"Refused" not in (log := await world.store.read_log("audit"))[-1].value or len(log) > 5:
            await asyncio.sleep(0.005)
    assert len(log) == 5


async def test_replica_finalizer_is_removed_only_by_release(north: World) -> None:
    made = await north.create(by("replicate", "north"), replica())
    assert made.metadata.finalizers == ("holdfast.dev/release",)
    going = await north.do(by("replicate", "north"), Delete("Replica", made.key, made.uid))
    with pytest.raises(Forbidden):
        await north.do(by("replicate", "north"), Update(with_meta(going, finalizers=())))
    assert await north.do(by("release", "north"), Update(with_meta(going, finalizers=()))) is None
    assert north.get(Replica, "web-north-0", "shop") is None
