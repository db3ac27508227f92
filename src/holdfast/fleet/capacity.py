"""Estimate of how many more replicas fit into a region, from its report and the Assignments. A hint, not a limit."""

from __future__ import annotations

import msgspec

from holdfast.model.assignment import Assignment
from holdfast.model.priority_class import PriorityClass
from holdfast.model.quantity import amounts
from holdfast.model.region import Region
from holdfast.model.template import requests
from holdfast.model.view import View
from holdfast.model.workload import Workload


class RegionHeadroom(msgspec.Struct, frozen=True, gc=False):
    """`fits`: additional replicas; `fits_when_empty`: one fits if the region is empty; `own_replicas`: assigned."""

    fits: int
    fits_when_empty: bool
    own_replicas: int
    cost: int


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
    # Capacity reserved for recovery is available only to reclaimable work.
    held = {} if priority is not None and priority.spec.reclaimable else amounts(report.recovery_reserved)
    free = {n: capacity.get(n, 0) - held.get(n, 0) - max(assigned.get(n, 0), used.get(n, 0)) for n in need}
    fits = min((free[name] // amount for name, amount in need.items()), default=1_000_000)
    ever = all(capacity.get(name, 0) >= amount for name, amount in need.items())
    return RegionHeadroom(fits=fits, fits_when_empty=ever, own_replicas=mine, cost=region.spec.cost)


def _assigned(assignment: Assignment) -> dict[tuple[str, str], int]:
    """Resources of an Assignment by region and resource."""
    spec = assignment.spec
    return {(spec.region, name): amount * spec.replicas for name, amount in requests(spec.template).items()}
