"""What a tenant's assignments need of its quota, by purpose, region and resource. Pure sums, kept up as they change."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.quantity import Amounts
from holdfast.model.template import requests
from holdfast.model.workload import WorkloadType

Need = tuple[Purpose, str, str]
"""Purpose, region and resource: what a tenant's assignments are summed by."""
Limits = dict[str, Amounts]


def need(assignment: Assignment) -> dict[Need, int]:
    """What its region needs to hold what it was assigned, room for a rollout's surge included. A rollout that is on its
    way uses that room, and needs none beside it."""
    spec = assignment.spec
    surges = spec.purpose is Purpose.NORMAL and spec.type is WorkloadType.SERVICE and spec.replicas
    wanted = _still_wanted(assignment) + (spec.rollout.max_surge if surges else 0)
    held = max(wanted, assignment.status.bound)
    return {(spec.purpose, spec.region, name): amount * held for name, amount in requests(spec.template).items()}


def turning_need(assignment: Assignment) -> dict[Need, int]:
    """What a recovery's replicas would use beside themselves while they turn to another revision. It is no need of the
    incident: it comes from what nobody needs of the allowance, and where there is none they turn in their places."""
    spec, status = assignment.spec, assignment.status
    if spec.purpose is not Purpose.RECOVERY or spec.type is not WorkloadType.SERVICE or not spec.replicas:
        return {}
    if status.updated >= status.replicas and status.replicas <= spec.replicas:
        return {}
    beside = spec.rollout.max_surge
    return {(spec.purpose, spec.region, name): amount * beside for name, amount in requests(spec.template).items()}


def demand(needs: Mapping[Need, int], purpose: Purpose) -> Limits:
    """What each region needs for work of one purpose."""
    found: Limits = {}
    for (what_for, region, name), amount in needs.items():
        if what_for is purpose and amount:
            found.setdefault(region, {})[name] = amount
    return found


def _still_wanted(assignment: Assignment) -> int:
    """Batch work that is done, or was given up, needs nothing any more: its share is others' to have."""
    spec, status = assignment.spec, assignment.status
    if spec.type is not WorkloadType.BATCH or spec.batch is None:
        return spec.replicas
    if status.failed > spec.batch.backoff_limit:
        return 0
    return min(spec.replicas, max(0, spec.batch.completions - status.succeeded))


def provisional_need(assignment: Assignment) -> dict[Need, int]:
    """What its region would need to place, while cut off, all of it that may be placed so."""
    spec = assignment.spec
    fit = spec.reclaimable and spec.exclusive is None and spec.gang is None and not spec.placement.residency
    return need(assignment) if fit and spec.purpose is Purpose.NORMAL else {}
