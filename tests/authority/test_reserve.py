"""Reserve and bind on the ordinary path: writes, refusals with reasons, and repeated intents."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.authority.cell import TENANT, Cell, devices

from holdfast.gate import audit
from holdfast.model.assignment import Purpose
from holdfast.model.binding import Binding, CapacityClass, Reservation
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import ContactState
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, ReleaseAction
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quota import GrantClass
from holdfast.model.region import Region, RegionSpec
from holdfast.model.replica import Replica
from holdfast.model.template import Port, Protocol
from holdfast.model.tenant import Isolation, Tenant, TenantSpec
from holdfast.model.times import micro_text


def refused(answer: PlacementResult, reason: str) -> dict[str, Any]:
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, reason), answer
    assert answer.message
    return answer.facts


async def test_accepted_item_is_bound_in_one_transaction(cell: Cell) -> None:
    await cell.node("n2", gpus=2)
    replica = await cell.replica(template={"resources": {"cpu": "1", "gpu": "1"}, "ports": ()})
    before = cell.store.commits
    answer = await cell.place(replica, "n2")
    assert cell.store.commits == before + 1
    assert answer.result is PlacementOutcome.ACCEPTED
    assert (answer.node, answer.binding, answer.reservation) == ("n2", "web-0.1", "")
    assert answer.devices == devices("gpu-0")
    binding = cell.binding("web-0.1")
    assert binding is not None and binding.spec.node_epoch == 1 and binding.spec.epoch == 1
    assert binding.metadata.owner_references == ()
    assert binding.metadata.labels == {"holdfast.dev/node": "n2", "holdfast.dev/workload": "web"}
    assert not cell.every(Reservation), "a claim that is bound at once needs no Reservation"
    placed = cell.get_replica().status.placement
    assert (placed.node, placed.zone, placed.binding, placed.attempt) == ("n2", "z1", "web-0.1", 1)
    assert placed.reservation == ""
    assert placed.bound_at and placed.reserved_at
    records = await audit.read_records(cell.store.inner)
    assert records[-1][1]["verb"] == "bind" and records[-1][1]["principal"].endswith("scheduler")
    cell.check_ledger()


async def test_decision_is_stored_with_result_of_each_replica(cell: Cell) -> None:
    one, two = await cell.replica("web-0"), await cell.replica("web-1")
    entries = tuple(DecisionEntry(r.metadata.name, r.uid) for r in (one, two))
    decision = Decision(ObjectMeta(name="d1", namespace=TENANT), DecisionSpec("web", "web", entries=entries))
    await cell.reserve(cell.item(one), cell.item(two, "nowhere"), decision=decision)
    (stored,) = cell.every(Decision)
    assert [(e.node, e.result, e.reason) for e in stored.spec.entries] == [
        ("n1", "Accepted", ""),
        ("", "Rejected", "NodeNotFound"),
    ]
    assert cell.get_replica("web-0").status.placement.decision == "d1"
    # A later part of the same Decision gets a numbered name.
    await cell.reserve(cell.item(two), decision=decision)
    assert sorted(d.metadata.name for d in cell.every(Decision)) == ["d1", "d1.2"]


async def test_rejected_item_does_not_fail_other_items(cell: Cell) -> None:
    replicas = [await cell.replica(f"web-{i}") for i in range(4)]
    answers = await cell.reserve(
        cell.item(replicas[0]), cell.item(replicas[1], "gone"), cell.item(replicas[2]), cell.item(replicas[3])
    )
    assert [a.result.value for a in answers] == ["Accepted", "Rejected", "Accepted", "Accepted"]
    cell.check_ledger()


async def test_repeated_intent_returns_first_claim(cell: Cell) -> None:
    await cell.node("n2", gpus=2)
    replica = await cell.replica(template={"resources": {"gpu": "1"}, "ports": ()})
    first = await cell.place(replica, "n2")
    for node in ("n2", "n1"):
        again = await cell.place(replica, node)
        assert again.result is PlacementOutcome.ALREADY
        assert (again.node, again.devices, again.binding) == ("n2", first.devices, first.binding)
    facts = refused(await cell.place(replica, "n2", devices=devices("gpu-1")), "IntentMismatch")
    assert facts["claim"] == f"{TENANT}/web-0.1"
    assert len(cell.every(Binding)) == 1


async def test_duplicate_replica_in_requests_is_accepted_once(cell: Cell) -> None:
    replica = await cell.replica()
    results = [a.result.value for a in await cell.reserve(cell.item(replica), cell.item(replica))]
    assert results == ["Accepted", "Already"]
    other = await cell.replica("web-1")
    both = await asyncio.gather(cell.place(other), cell.place(other))
    assert sorted(a.result.value for a in both) == ["Accepted", "Already"]
    cell.check_ledger()


async def test_reserve_of_gone_changed_or_stale_replica_is_refused(cell: Cell) -> None:
    replica = await cell.replica()
    item = cell.item(replica)
    wrong = msgspec.structs.replace(item.intent, replica_uid="other")
    assert refused((await cell.reserve(cell.item(replica, intent=wrong)))[0], "ReplicaNotFound")["uid"] == replica.uid
    wrong = msgspec.structs.replace(item.intent, template_hash="0000000000")
    assert refused((await cell.reserve(cell.item(replica, intent=wrong)))[0], "TemplateChanged")["current"]
    for attempt in (0, 2):
        wrong = msgspec.structs.replace(item.intent, attempt=attempt)
        facts = refused((await cell.reserve(cell.item(replica, intent=wrong)))[0], "StaleAttempt")
        assert facts["current"] == 1
    meta = msgspec.structs.replace(replica.metadata, deletion_timestamp="2026-01-01T00:00:00Z", finalizers=("x",))
    await cell.put(msgspec.structs.replace(replica, metadata=meta))
    refused(await cell.place(replica), "ReplicaTerminating")
    await cell.remove(replica)
    refused(await cell.place(replica), "ReplicaNotFound")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unschedulable": True}, "NodeCordoned"),
        ({"drain": True}, "NodeDraining"),
        ({"fence": 1}, "NodeFenced"),
        ({"drivers": ("oci",)}, "DriverMissing"),
        ({"tenant": "team-b"}, "TenancyViolated"),
    ],
)
async def test_reserve_on_unsuitable_node_is_refused(cell: Cell, change: dict[str, Any], reason: str) -> None:
    replica = await cell.replica()
    await cell.change_node(**change)
    assert refused(await cell.place(replica), reason)["node"] == "n1"
    assert not cell.every(Binding) and not cell.authority.ledger.claims


async def test_reserve_on_missing_lapsed_or_reconciling_node_is_refused(cell: Cell) -> None:
    replica = await cell.replica()
    refused(await cell.place(replica, "n9"), "NodeNotFound")
    node = cell.get_node()
    lapsed = msgspec.structs.replace(node.status.contact, state=ContactState.EXPIRED)
    await cell.put(msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, contact=lapsed)))
    refused(await cell.place(replica), "NodeUnreachable")
    running = msgspec.structs.replace(node.status.execution, reconciled=False)
    await cell.put(msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=running)))
    refused(await cell.place(replica), "NodeReconciling")
    # The agent registered again and has not reported yet: the lease book's epoch is newer than the Node's.
    await cell.put(node)
    assert (await cell.renew("n1", 0)).epoch == 2
    assert refused(await cell.place(replica), "NodeReconciling")["leaseEpoch"] == 2
    # The lease book decides, whatever node-health last wrote.
    ahead = msgspec.structs.replace(node.status.execution, epoch=2)
    await cell.put(msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=ahead)))
    assert (await cell.place(replica)).result is PlacementOutcome.ACCEPTED
    other = await cell.replica("web-1")
    await cell.clock.advance(16)
    refused(await cell.place(other), "NodeUnreachable")


async def test_avoid_override_refuses_reserve_until_expiry(cell: Cell) -> None:
    replica = await cell.replica()
    scope = OverrideScope(region="us-east", zone="z1")
    ends = micro_text(cell.clock.now() + 10)
    status = OverrideStatus(phase="Active", expires_at=ends)
    override = Override(ObjectMeta(name="avoid"), OverrideSpec(OverrideKind.AVOID_ZONE, scope, "fire"), status)
    await cell.put(override)
    assert refused(await cell.place(replica), "NodeExcludedByOverride")["override"] == "avoid"
    for number, other in enumerate(
        (
            msgspec.structs.replace(override, status=OverrideStatus(phase="Pending", expires_at=ends)),
            msgspec.structs.replace(override, status=OverrideStatus()),
            msgspec.structs.replace(
                override, spec=OverrideSpec(OverrideKind.AVOID_ZONE, OverrideScope("us-east", "z2"))
            ),
            msgspec.structs.replace(override, spec=OverrideSpec(OverrideKind.AVOID_REGION, OverrideScope("us-west"))),
        )
    ):
        await cell.put(other)
        assert (await cell.place(await cell.replica(f"other-{number}"))).result is PlacementOutcome.ACCEPTED
    await cell.put(
        msgspec.structs.replace(override, spec=OverrideSpec(OverrideKind.AVOID_REGION, OverrideScope("us-east")))
    )
    refused(await cell.place(replica), "NodeExcludedByOverride")
    await cell.clock.advance(10)
    assert (await cell.place(replica)).result is PlacementOutcome.ACCEPTED


@pytest.mark.parametrize(
    ("rules", "forbidden"),
    [
        (PlacementRules(regions=("us-west",)), "region us-east"),
        (PlacementRules(excluded_regions=("us-east",)), "region us-east"),
        (PlacementRules(residency=("eu",)), "residency us"),
        (PlacementRules(zones=("z2",)), "zone z1"),
        (PlacementRules(pools=("gpu",)), "pool default"),
    ],
)
async def test_reserve_against_placement_rules_is_refused(cell: Cell, rules: PlacementRules, forbidden: str) -> None:
    await cell.put(Region(ObjectMeta(name="us-east"), RegionSpec(("z1",), ("us",))))
    facts = refused(await cell.place(await cell.replica(placement=rules)), "ResidencyViolated")
    assert facts["forbidden"].startswith(forbidden)
    allowed = PlacementRules(regions=("us-east",), residency=("us", "ca"), zones=("z1",), pools=("default",))
    assert (await cell.place(await cell.replica("ok", placement=allowed))).result is PlacementOutcome.ACCEPTED


async def test_residency_in_unknown_region_is_refused(cell: Cell) -> None:
    refused(await cell.place(await cell.replica(placement=PlacementRules(residency=("us",)))), "ResidencyViolated")


async def test_reserve_across_tenant_isolation_is_refused(cell: Cell) -> None:
    await cell.node("own", tenant=TENANT)
    await cell.put(Tenant(ObjectMeta(name=TENANT), TenantSpec(Isolation.DEDICATED)))
    refused(await cell.place(await cell.replica()), "TenancyViolated")
    assert (await cell.place(await cell.replica("web-1"), "own")).result is PlacementOutcome.ACCEPTED
    await cell.grant("team-b")
    refused(await cell.place(await cell.replica("b", tenant="team-b"), "own"), "TenancyViolated")


async def test_reserve_beyond_capacity_is_refused_with_shortfall(cell: Cell) -> None:
    big = await cell.replica(template={"resources": {"cpu": "6", "memory": "1Gi"}})
    assert (await cell.place(big)).result is PlacementOutcome.ACCEPTED
    facts = refused(await cell.place(await cell.replica("a", template={"resources": {"cpu": "3"}})), "InsufficientCpu")
    assert facts["shortfall"] == {"cpu": "1"} and facts["capacity"] == {"cpu": "8"} and facts["firm"] == {"cpu": "6"}
    refused(await cell.place(await cell.replica("b", template={"resources": {"memory": "16Gi"}})), "InsufficientMemory")
    odd = await cell.replica("c", template={"resources": {"example.com/dongle": "1"}})
    assert refused(await cell.place(odd), "InsufficientResource")["shortfall"] == {"example.com/dongle": "1"}


async def test_overcommitted_node_keeps_claims_and_refuses_more_of_the_resource(cell: Cell) -> None:
    await cell.place(await cell.replica(template={"resources": {"cpu": "6"}}))
    await cell.change_node(capacity={"cpu": "4", "memory": "16Gi"})
    small = await cell.replica("a", template={"resources": {"cpu": "1m", "memory": "1Mi"}})
    refused(await cell.place(small), "InsufficientCpu")
    assert len(cell.authority.ledger.claims) == 1
    other = await cell.replica("b", template={"resources": {"cpu": "0", "memory": "1Mi"}})
    assert (await cell.place(other)).result is PlacementOutcome.ACCEPTED, "docs/decisions/0029"
    cell.check_ledger()


async def test_refused_device_names_its_owner(cell: Cell) -> None:
    await cell.node("g", gpus=2, model="a100")
    gpu = {"resources": {"gpu": "1"}}
    assert (await cell.place(await cell.replica("a", template=gpu), "g", devices=devices("gpu-1"))).devices == devices(
        "gpu-1"
    )
    facts = refused(
        await cell.place(await cell.replica("b", template=gpu), "g", devices=devices("gpu-1")), "DeviceInUse"
    )
    assert facts["winner"]["claim"] == f"{TENANT}/a.1" and facts["owners"] == [f"{TENANT}/a.1"]
    two = await cell.replica("c", template={"resources": {"gpu": "2"}})
    facts = refused(await cell.place(two, "g"), "InsufficientDevices")
    assert facts["winner"]["claim"] == f"{TENANT}/a.1" and facts["free"] == 1
    other = await cell.replica("d", template={**gpu, "gpu_models": ("h100",)})
    assert refused(await cell.place(other, "g"), "InsufficientDevices")["models"] == ["h100"]
    refused(
        await cell.place(await cell.replica("e", template=gpu), "g", devices=devices("gpu-7")), "InsufficientDevices"
    )
    cell.check_ledger()


async def test_gpu_shares_fill_one_device_first(cell: Cell) -> None:
    await cell.node("g", gpus=2)
    got = []
    for index, share in enumerate(("300m", "600m", "300m", "100m")):
        replica = await cell.replica(f"s-{index}", template={"resources": {"gpu": share}})
        got.append((await cell.place(replica, "g")).devices[0].id)
    assert got == ["gpu-0", "gpu-0", "gpu-1", "gpu-0"]
    refused(await cell.place(await cell.replica("w", template={"resources": {"gpu": "1"}}), "g"), "InsufficientDevices")
    cell.check_ledger()


async def test_dynamic_ports_are_allocated_in_rotation(cell: Cell) -> None:
    await cell.node("p", port_range=(20000, 20002))
    web = {"ports": (Port("http"), Port("admin", 9000))}
    first = await cell.place(await cell.replica("a", template=web), "p")
    assert first.ports == {"http": 20000, "admin": 9000}
    facts = refused(await cell.place(await cell.replica("b", template=web), "p"), "PortInUse")
    assert facts["port"] == 9000 and facts["winner"]["claim"] == f"{TENANT}/a.1"
    free = {"ports": (Port("http"),)}
    second = await cell.replica("c", template=free)
    assert (await cell.place(second, "p")).ports == {"http": 20001}
    await cell.acknowledge("c.1")
    await cell.release(second, ReleaseAction.FREE)
    # A released port is not reused at once.
    assert (await cell.place(await cell.replica("d", template=free), "p")).ports == {"http": 20002}
    assert (await cell.place(await cell.replica("e", template=free), "p")).ports == {"http": 20001}
    refused(await cell.place(await cell.replica("f", template=free), "p"), "PortsExhausted")
    cell.check_ledger()


async def test_reserve_without_grant_beyond_quota_or_after_lease_is_refused(cell: Cell) -> None:
    other = await cell.replica("b", tenant="team-b")
    assert refused(await cell.place(other), "NoGrant") == {"tenant": "team-b", "class": "Normal"}
    await cell.grant(
        "team-b", limit={"cpu": "1500m", "memory": "8Gi"}, lease_expires_at=micro_text(cell.clock.now() + 10)
    )
    assert (await cell.place(other)).result is PlacementOutcome.ACCEPTED
    more = await cell.replica("c", tenant="team-b")
    facts = refused(await cell.place(more), "QuotaExceeded")
    assert facts["shortfall"] == {"cpu": "500m"} and facts["used"] == {"cpu": "1", "memory": "1Gi"}
    await cell.clock.advance(10)
    small = await cell.replica("d", tenant="team-b", template={"resources": {"cpu": "100m"}})
    assert refused(await cell.place(small), "GrantExpired")["expired"] == ["us-east.normal"]


async def test_recovery_claim_spends_recovery_grant(cell: Cell) -> None:
    replica = await cell.replica("r", purpose=Purpose.RECOVERY)
    first = await cell.place(replica)
    assert refused(first, "NoGrant")["class"] == "Recovery" and "follows the Recovery" in first.message
    await cell.grant(grant_class=GrantClass.RECOVERY, limit={"cpu": "1", "memory": "1Gi"})
    assert (await cell.place(replica)).result is PlacementOutcome.ACCEPTED
    binding = cell.binding("r.1")
    assert binding is not None and binding.spec.capacity_class is CapacityClass.RECOVERY
    refused(await cell.place(await cell.replica("r2", purpose=Purpose.RECOVERY)), "QuotaExceeded")
    assert (await cell.place(await cell.replica("n"))).result is PlacementOutcome.ACCEPTED


async def test_recreated_replica_waits_for_release_of_old_claim(cell: Cell) -> None:
    old = await cell.replica()
    await cell.place(old)
    await cell.remove(old)
    new = await cell.replica()
    assert new.uid != old.uid
    facts = refused(await cell.place(new), "AlreadyClaimed")
    assert facts["winner"]["replicaUid"] == old.uid
    await cell.authority.tick()  # requests the stop of the orphan
    await cell.acknowledge("web-0.1")
    await cell.authority.tick()
    assert (await cell.place(new)).result is PlacementOutcome.ACCEPTED
    cell.check_ledger()


async def test_300_items_are_committed_in_two_batches(cell: Cell) -> None:
    await cell.node("big", capacity={"cpu": "1000", "memory": "1000Gi"})
    replicas: list[Replica] = [await cell.replica(f"m-{i}") for i in range(300)]
    before = cell.store.commits
    answers = await cell.reserve(*(cell.item(r, "big") for r in replicas))
    assert all(a.result is PlacementOutcome.ACCEPTED for a in answers)
    assert cell.store.commits == before + 2
    cell.check_ledger()


async def test_ports_of_different_protocols_do_not_conflict(cell: Cell) -> None:
    """Also after the ledger is rebuilt from the records of bound and of reserved claims."""
    tcp, udp = Port("p", 53), Port("p", 53, Protocol.UDP)
    first = await cell.replica("a-0", template={"ports": (tcp,)})
    assert (await cell.place(first)).result is PlacementOutcome.ACCEPTED
    second = await cell.replica("b-0", template={"ports": (udp,)})
    (answer,) = await cell.reserve(cell.item(second), bind=False)
    assert (answer.result, answer.ports) == (PlacementOutcome.ACCEPTED, {"p": 53})
    cell.check_ledger()
    for name, port in (("c-0", tcp), ("d-0", udp)):
        refused(await cell.place(await cell.replica(name, template={"ports": (port,)})), "PortInUse")
    cell.check_ledger()


async def test_dynamic_port_takes_a_number_that_no_protocol_uses(cell: Cell) -> None:
    await cell.change_node("n1", port_range=(20000, 20001))
    fixed = await cell.replica("a-0", template={"ports": (Port("p", 20000, Protocol.UDP),)})
    assert (await cell.place(fixed)).result is PlacementOutcome.ACCEPTED
    answer = await cell.place(await cell.replica("b-0", template={"ports": (Port("p"),)}))
    assert answer.ports == {"p": 20001}
    open_udp = await cell.replica("c-0", template={"ports": (Port("p", 0, Protocol.UDP),)})
    refused(await cell.place(open_udp), "PortsExhausted")
    cell.check_ledger()
