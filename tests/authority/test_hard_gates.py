"""Every hard filter of the planner is a gate at the commit: a proposal planned on older state is refused.

Each case makes a proposal that was right a moment ago. A filter that is added to the planner fails here until it has a
case: either the authority refuses, or the exception is argued in a decision (0028).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.authority.cell import TENANT, Cell

from holdfast.model.meta import ObjectMeta
from holdfast.model.override import ACTIVE, Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_api import PlacementOutcome
from holdfast.model.placement_rules import AffinityRule, PlacementRules, SpreadRule, Taint, TaintEffect
from holdfast.model.reasons import Reason
from holdfast.model.region import Region, RegionSpec
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import FilterName
from holdfast.model.template import Port
from holdfast.model.template_volume import ClaimVolume, TemplateVolume
from holdfast.model.times import micro_text
from holdfast.model.volume import Volume, VolumeSpec, volume_name
from holdfast.scheduling import filters

NEAR_DB = PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}),))
APART = PlacementRules(spread=(SpreadRule(topology="node"),))


async def fenced(cell: Cell) -> Replica:
    replica = await cell.replica()
    await cell.change_node(fence=1)
    return replica


async def drained(cell: Cell) -> Replica:
    replica = await cell.replica()
    await cell.change_node(drain=True)
    return replica


async def avoided(cell: Cell) -> Replica:
    replica = await cell.replica()
    spec = OverrideSpec(kind=OverrideKind.AVOID_ZONE, reason="fire", scope=OverrideScope(region="us-east", zone="z1"))
    status = OverrideStatus(phase=ACTIVE, expires_at=micro_text(cell.clock.now() + 60.0))
    await cell.put(Override(metadata=ObjectMeta(name="avoid"), spec=spec, status=status))
    return replica


async def driver_gone(cell: Cell) -> Replica:
    replica = await cell.replica()
    await cell.change_node(drivers=("oci",))
    return replica


async def tainted_to_evict(cell: Cell) -> Replica:
    replica = await cell.replica()
    await cell.change_node(taints=(Taint(key="bad", effect=TaintEffect.NO_EXECUTE),))
    return replica


async def out_of_residency(cell: Cell) -> Replica:
    await cell.put(Region(ObjectMeta(name="us-east"), RegionSpec(zones=("z1",), residency=("us",))))
    return await cell.replica(placement=PlacementRules(residency=("eu",)))


async def zone_forbidden(cell: Cell) -> Replica:
    return await cell.replica(placement=PlacementRules(zones=("z2",)))


async def pool_forbidden(cell: Cell) -> Replica:
    return await cell.replica(placement=PlacementRules(pools=("gpu",)))


async def given_to_another_tenant(cell: Cell) -> Replica:
    replica = await cell.replica()
    await cell.change_node(tenant="other")
    return replica


async def relabelled(cell: Cell) -> Replica:
    node = cell.get_node()
    await cell.put(
        msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels={"disk": "hdd"}))
    )
    return await cell.replica(placement=PlacementRules(node_selector={"disk": "ssd"}))


async def tainted(cell: Cell) -> Replica:
    replica = await cell.replica()
    await cell.change_node(taints=(Taint(key="gpu"),))
    return replica


async def shrunk(cell: Cell) -> Replica:
    replica = await cell.replica(template={"resources": {"cpu": "4"}})
    await cell.change_node(capacity={"cpu": "2", "memory": "16Gi"})
    return replica


async def device_gone(cell: Cell) -> Replica:
    replica = await cell.replica(template={"resources": {"cpu": "1", "gpu": "1"}})
    await cell.change_node(devices=(), capacity={"cpu": "8", "gpu": "1"})
    return replica


async def port_taken(cell: Cell) -> Replica:
    template = {"ports": (Port(name="http", port=8080),)}
    await cell.place(await cell.replica("first", template=template))
    return await cell.replica("second", template=template)


async def neighbour_gone(cell: Cell) -> Replica:
    return await cell.replica(placement=NEAR_DB)


async def sibling_placed_here(cell: Cell) -> Replica:
    await cell.node("n2")
    await cell.place(await cell.replica("web-0", placement=APART))
    return await cell.replica("web-1", placement=APART)


async def volume_elsewhere(cell: Cell) -> Replica:
    volume = TemplateVolume(name="data", mount_path="/data", claim=ClaimVolume("orders", "1Gi"))
    spec = VolumeSpec(claim="orders", workload="web", replica="web-0", node="n2", size="1Gi")
    await cell.put(Volume(ObjectMeta(name=volume_name("orders", "web-0"), namespace=TENANT), spec))
    return await cell.replica(template={"volumes": (volume,)})


CASES: dict[FilterName, tuple[tuple[Callable[[Cell], Awaitable[Replica]], Reason], ...]] = {
    FilterName.HEALTH: ((fenced, Reason.NODE_FENCED), (drained, Reason.NODE_DRAINING)),
    FilterName.SCHEDULABLE: (
        (avoided, Reason.NODE_EXCLUDED_BY_OVERRIDE),
        (driver_gone, Reason.DRIVER_MISSING),
        (tainted_to_evict, Reason.TAINT_NOT_TOLERATED),
    ),
    FilterName.RESIDENCY: (
        (out_of_residency, Reason.RESIDENCY_VIOLATED),
        (zone_forbidden, Reason.RESIDENCY_VIOLATED),
        (pool_forbidden, Reason.RESIDENCY_VIOLATED),
    ),
    FilterName.TENANCY: ((given_to_another_tenant, Reason.TENANCY_VIOLATED),),
    FilterName.LABELS: ((relabelled, Reason.LABELS_DO_NOT_MATCH),),
    FilterName.TAINTS: ((tainted, Reason.TAINT_NOT_TOLERATED),),
    FilterName.RESOURCES: ((shrunk, Reason.INSUFFICIENT_CPU),),
    FilterName.DEVICES: ((device_gone, Reason.INSUFFICIENT_DEVICES),),
    FilterName.PORTS: ((port_taken, Reason.PORT_IN_USE),),
    FilterName.SPREAD: ((sibling_placed_here, Reason.SPREAD_VIOLATED),),
    FilterName.VOLUMES: ((volume_elsewhere, Reason.VOLUME_ON_OTHER_NODE),),
    FilterName.AFFINITY: ((neighbour_gone, Reason.AFFINITY_NOT_MET),),
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [case for cases in CASES.values() for case in cases],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_proposal_that_a_hard_rule_forbids_by_now_is_refused_at_the_commit(
    cell: Cell, change: Callable[[Cell], Awaitable[Replica]], reason: Reason
) -> None:
    replica = await change(cell)
    answer = await cell.place(replica)
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, reason)
    assert cell.binding(f"{replica.metadata.name}.1", TENANT) is None


def test_every_filter_of_the_planner_has_a_case_at_the_commit() -> None:
    """One case per row of the planner's tables, which may have several rows per name."""
    assert set(CASES) == set(FilterName)
    rows = [name for table in (filters._BY_NODE, filters._BY_CLAIMS) for name, _ in table]
    for name in set(rows):
        assert len(CASES[name]) >= rows.count(name), f"{name}: a filter without a case at the commit"
