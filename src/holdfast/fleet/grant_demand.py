"""Quota demand of a tenant's Assignments by purpose, region and resource. Pure measures for `View.total`."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.quantity import Amounts
from holdfast.model.template import requests
from holdfast.model.workload import WorkloadType

DemandKey = tuple[Purpose, str, str]
"""Purpose, region and resource of a demand."""
RegionAmounts = dict[str, Amounts]


def quota_demand(assignment: Assignment) -> dict[DemandKey, int]:
    """Resources for the assigned replicas and for the surge of a rollout. A running rollout already uses its surge, so
    it is not counted twice."""
    spec = assignment.spec
    surges = spec.purpose is Purpose.NORMAL and spec.type is WorkloadType.SERVICE and spec.replicas
    wanted = _unfinished_replicas(assignment) + (spec.rollout.max_surge if surges else 0)
    held = max(wanted, assignment.status.bound)
    return {(spec.purpose, spec.region, name): amount * held for name, amount in requests(spec.template).items()}


def rollout_surge_demand(assignment: Assignment) -> dict[DemandKey, int]:
    """Resources for the surge of a rollout of recovery replicas. The incident does not need them: they come from the
    unused recovery allowance, and without it replicas are replaced in place."""
    spec, status = assignment.spec, assignment.status
    if spec.purpose is not Purpose.RECOVERY or spec.type is not WorkloadType.SERVICE or not spec.replicas:
        return {}
    if status.updated >= status.replicas and status.replicas <= spec.replicas:
        return {}
    surge = spec.rollout.max_surge
    return {(spec.purpose, spec.region, name): amount * surge for name, amount in requests(spec.template).items()}


def demand_by_region(needs: Mapping[DemandKey, int], purpose: Purpose) -> RegionAmounts:
    """Demand of each region for one purpose."""
    found: RegionAmounts = {}
    for (needed_for, region, name), amount in needs.items():
        if needed_for is purpose and amount:
            found.setdefault(region, {})[name] = amount
    return found


def _unfinished_replicas(assignment: Assignment) -> int:
    """Replicas that still need quota. A finished or failed batch needs none."""
    spec, status = assignment.spec, assignment.status
    if spec.type is not WorkloadType.BATCH or spec.batch is None:
        return spec.replicas
    if status.failed > spec.batch.backoff_limit:
        return 0
    return min(spec.replicas, max(0, spec.batch.completions - status.succeeded))


def provisional_demand(assignment: Assignment) -> dict[DemandKey, int]:
    """Resources for the replicas that the region may place provisionally while it is partitioned."""
    spec = assignment.spec
    eligible = spec.reclaimable and spec.exclusive is None and spec.gang is None and not spec.placement.residency
    return quota_demand(assignment) if eligible and spec.purpose is Purpose.NORMAL else {}
