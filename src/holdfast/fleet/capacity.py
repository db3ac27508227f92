"""Estimate of how many more replicas fit into a region, from its report and the Assignments. A hint, not a limit.

The estimate is the smaller one of two: by the sum of free resources, and by the free resources of single nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.fleet.free_shapes import UNBOUNDED_FITS, FreeNodes, node_fits
from holdfast.model import placement_eligibility as eligibility
from holdfast.model.assignment import Assignment
from holdfast.model.priority_class import PriorityClass
from holdfast.model.quantity import Amounts, amounts
from holdfast.model.region import NodeShape, Region, RegionReport
from holdfast.model.template import requests
from holdfast.model.tenant import Tenant, is_dedicated
from holdfast.model.view import View
from holdfast.model.workload import Workload

# Different shapes of unplaced replicas, over all regions, that are put on free nodes one by one. Above it, only their
# sum counts, so that a decision stays cheap during a burst of different workloads.
UNPLACED_SHAPES_MAX = 32


class RegionHeadroom(msgspec.Struct, frozen=True, gc=False):
    """`fits`: additional replicas; `fits_when_empty`: one fits if the region is empty; `own_replicas`: assigned;
    `fits_on_one_node`: additional replicas on the node with most room, 0 if the region does not report it."""

    fits: int
    fits_when_empty: bool
    own_replicas: int
    cost: int
    fits_on_one_node: int = 0


def region_headroom(region: Region, workload: Workload, view: View) -> RegionHeadroom:
    """How many more replicas of this workload the region has room for.

    Assigned replicas count even if the region has not reported them yet, so that decisions on one stale report do not
    all choose the same region.
    """
    report = region.status.report
    need = requests(workload.spec.template)
    mine = 0
    if report is None:
        return RegionHeadroom(fits=0, fits_when_empty=False, own_replicas=0, cost=region.spec.cost)
    capacity = amounts(report.capacity)
    name_of_region = region.metadata.name
    everywhere = view.total(Assignment, "", _assigned)
    assigned = {name: everywhere.get((name_of_region, name), 0) for name in need}
    for assignment in view.by(Assignment, "workload", str(workload.key)):
        if assignment.spec.workload_uid == workload.uid and assignment.spec.region == name_of_region:
            mine += assignment.spec.replicas
    used = amounts(report.used)
    priority = view.get(PriorityClass, workload.spec.priority_class_name)
    reclaimable = priority is not None and priority.spec.reclaimable
    # Capacity reserved for recovery is available only to reclaimable work.
    held = {} if reclaimable else amounts(report.recovery_reserved)
    free = {n: capacity.get(n, 0) - held.get(n, 0) - max(assigned.get(n, 0), used.get(n, 0)) for n in need}
    fits = min((free[name] // amount for name, amount in need.items()), default=UNBOUNDED_FITS)
    on_one = 0
    if report.free_shapes and fits > 0:
        unreported = {n: assigned[n] - used.get(n, 0) for n in need}
        on_nodes, on_one = _room_on_nodes(region, report, workload, unreported, view, reclaimable=reclaimable)
        fits = min(fits, on_nodes)
    ever = all(capacity.get(name, 0) >= amount for name, amount in need.items())
    if report.node_shapes:
        ever = ever and any(
            node_fits(amounts(shape.resources), need, 0)
            for shape in report.node_shapes
            if _is_usable(shape, workload, view)
        )
    return RegionHeadroom(
        fits=fits, fits_when_empty=ever, own_replicas=mine, cost=region.spec.cost, fits_on_one_node=on_one
    )


def _room_on_nodes(
    region: Region, report: RegionReport, workload: Workload, unreported: Amounts, view: View, *, reclaimable: bool
) -> tuple[int, int]:
    """How many replicas fit on all nodes and on one, after the replicas that the region has not placed yet."""
    need = requests(workload.spec.template)
    nodes = FreeNodes(report.free_shapes, reclaimable=reclaimable)
    unplaced = view.total(Assignment, "", _unplaced)
    if len(unplaced) <= UNPLACED_SHAPES_MAX:
        # Large replicas first: what they leave, smaller ones can use.
        waiting = sorted((shape for name, shape in unplaced if name == region.metadata.name), key=_largest_first)
        for shape in waiting:
            count = unplaced[region.metadata.name, shape]
            nodes.place(dict(shape), count)
            for name, amount in shape:
                if name in unreported:
                    unreported[name] -= amount * count
    # Replicas that are placed since the report, or too many different ones: their shapes count as this workload's.
    others = max((-(-amount // need[name]) for name, amount in unreported.items()), default=0)

    def is_usable(shape: NodeShape) -> bool:
        return _is_usable(shape, workload, view)

    return nodes.room_for(need, is_usable) - max(0, others), nodes.most_on_one(need, is_usable)


def _largest_first(shape: tuple[tuple[str, int], ...]) -> tuple[object, ...]:
    return tuple((name, -amount) for name, amount in shape)


def _is_usable(shape: NodeShape, workload: Workload, view: View) -> bool:
    """Whether the placement rules and the tenant's isolation allow the nodes of a shape."""
    rules, tenant = workload.spec.placement, workload.metadata.namespace
    dedicated = is_dedicated(view.get(Tenant, tenant))
    return (
        eligibility.allows_zone(rules, shape.zone)
        and eligibility.allows_pool(rules, shape.pool)
        and eligibility.can_use_node(tenant, shape.tenant, dedicated=dedicated)
    )


def _assigned(assignment: Assignment) -> dict[tuple[str, str], int]:
    """Resources of an Assignment by region and resource."""
    spec = assignment.spec
    return {(spec.region, name): amount * spec.replicas for name, amount in requests(spec.template).items()}


def _unplaced(assignment: Assignment) -> Mapping[tuple[str, tuple[tuple[str, int], ...]], int]:
    """Replicas of an Assignment that its region has not bound yet, by region and requests."""
    spec = assignment.spec
    waiting = spec.replicas - assignment.status.bound
    need = tuple(requests(spec.template).items())
    return {(spec.region, need): waiting} if waiting > 0 and need else {}
