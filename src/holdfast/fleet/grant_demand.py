"""Quota demand of a tenant's Assignments by purpose, region and resource. Pure measures for `View.total`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.model.assignment import Assignment, Purpose, counts_desired_revision
from holdfast.model.quantity import Amounts
from holdfast.model.template import requests, template_claims
from holdfast.model.workload import WorkloadType

DemandKey = tuple[Purpose, str, str]
"""Purpose, region and resource of a demand."""
RegionAmounts = dict[str, Amounts]


class QuotaUnit(msgspec.Struct, frozen=True):
    """`members` replicas of one shape in a region that need quota together: one, or as many as a gang still needs.

    `optional` further members of the gang can start only after these."""

    purpose: Purpose
    region: str
    shape: tuple[tuple[str, int], ...]
    priority: int = 0
    members: int = 1
    optional: int = 0
    bound: bool = False
    surge: bool = False
    may_preempt: bool = False
    reclaimable: bool = False


def quota_units(assignment: Assignment) -> dict[QuotaUnit, int]:
    """The replicas of an Assignment that need quota, and the surge of a running rollout, as units with their number."""
    spec, status = assignment.spec, assignment.status
    desired, bound = _unfinished_replicas(assignment), status.bound
    shape = tuple(requests(spec.template).items())
    unit = QuotaUnit(
        spec.purpose,
        spec.region,
        shape,
        priority=spec.priority,
        may_preempt=spec.may_preempt,
        reclaimable=spec.reclaimable,
    )
    waiting = max(0, desired - bound)
    together = min(waiting, max(1, spec.gang.min_available - bound)) if spec.gang is not None else 1
    found = {msgspec.structs.replace(unit, bound=True): bound}
    if together > 1:
        found[msgspec.structs.replace(unit, members=together, optional=waiting - together)] = 1
    else:
        found[unit] = waiting
    if spec.purpose is Purpose.NORMAL:  # recovery replicas get surge only as a floor (`rollout_surge_demand`)
        surge = desired + _running_surge(assignment) - max(desired, bound)
        found[msgspec.structs.replace(unit, surge=True)] = max(0, surge)
    return {name: count for name, count in found.items() if count}


def quota_demand(assignment: Assignment) -> dict[DemandKey, int]:
    """Resources for the assigned replicas and for the surge of a running rollout. Surge that runs already is not
    counted twice."""
    spec = assignment.spec
    surge = _running_surge(assignment) if spec.purpose is Purpose.NORMAL else 0
    held = max(_unfinished_replicas(assignment) + surge, assignment.status.bound)
    return {(spec.purpose, spec.region, name): amount * held for name, amount in requests(spec.template).items()}


def rollout_surge_demand(assignment: Assignment) -> dict[DemandKey, int]:
    """Resources for rollout surge that is not part of `quota_demand`. They come from quota that no replica needs.

    - Ordinary replicas: the surge of the next rollout.
    - Recovery replicas: the surge of a running rollout. Without it replicas are replaced in place.
    """
    spec = assignment.spec
    running = _running_surge(assignment)
    recovery = spec.purpose is Purpose.RECOVERY
    surge = running if recovery else _max_surge(assignment) - running
    return {(spec.purpose, spec.region, name): amount * surge for name, amount in requests(spec.template).items()}


def _max_surge(assignment: Assignment) -> int:
    spec = assignment.spec
    in_place = spec.exclusive is not None or bool(template_claims(spec.template))
    surges = spec.type is WorkloadType.SERVICE and not in_place and spec.replicas > 0
    return spec.rollout.max_surge if surges else 0


def _running_surge(assignment: Assignment) -> int:
    """`maxSurge` while replicas of another revision exist, else 0."""
    spec, status = assignment.spec, assignment.status
    updated = status.updated if counts_desired_revision(assignment) else 0
    settled = updated >= status.replicas and status.replicas <= spec.replicas
    return 0 if settled or spec.rollout.paused else _max_surge(assignment)


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
