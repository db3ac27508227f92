"""Replicas of a lost region that no recovery objective covers: assigned to other regions after a stated time. Pure.

- The workload (`spec.reassign`) or its PriorityClass (`reassignAfterSeconds`) states the time; 0 is never.
- Only services move. Critical workloads have a Recovery, exclusive ones a tenure, and a batch could run its completions
  twice.
- Without `failback` the replicas stay where they are, and the returned region releases its own. With it, the lost
  region keeps its Assignment, and the other regions release their extra replicas when the region serves again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.fleet.spillover import assigned_units
from holdfast.model.assignment import Assignment
from holdfast.model.priority_class import PriorityClass
from holdfast.model.region import HealthState, Region
from holdfast.model.template import template_claims
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.workload import Workload, WorkloadType, wanted_replicas


class Reassignment(msgspec.Struct, frozen=True):
    """`regions` do not count for the workload now. `kept` are the sizes of their Assignments that stay for failback.
    `requeue_after_s` is the time until a lost region is due."""

    regions: frozenset[str] = frozenset()
    kept: dict[str, int] = {}
    explanation: str = ""
    requeue_after_s: float | None = None


def reassign_after_s(workload: Workload, view: View) -> float:
    """Time after the loss of a region until replicas there are assigned elsewhere; 0: never."""
    spec = workload.spec
    if spec.type is not WorkloadType.SERVICE or spec.recovery is not None or spec.exclusive is not None:
        return 0.0
    if template_claims(spec.template):  # the data of its volumes stays in the lost region
        return 0.0
    if spec.reassign is not None:
        return spec.reassign.after_seconds
    priority = view.get(PriorityClass, spec.priority_class_name)
    return priority.spec.reassign_after_seconds if priority is not None else 0.0


def reassignment(workload: Workload, stored: Sequence[Assignment], view: View, now: float) -> Reassignment:
    """The regions whose replicas other regions take over now."""
    after_s = reassign_after_s(workload, view)
    held = [a for a in stored if assigned_units(a) or a.status.replicas]
    if not after_s or not held:
        return Reassignment()
    failback = workload.spec.reassign is not None and workload.spec.reassign.failback
    due: dict[str, int] = {}
    why: list[str] = []
    waits_s: list[float] = []
    for item in held:
        name = item.spec.region
        region = view.get(Region, name)
        left_s = _remaining_s(region, after_s, now)
        if left_s is not None and left_s > 0:
            waits_s.append(left_s)
        elif left_s is not None and region is not None:
            due[name] = assigned_units(item)
            why.append(f"region {name} is lost since {region.status.health.since}")
        elif failback and region is not None and _returns(workload, item, held):
            due[name] = assigned_units(item)
            why.append(f"region {name} does not serve its replicas again yet")
    kept = due if failback else {}
    return Reassignment(frozenset(due), kept, "; ".join(why), min(waits_s, default=None))


def _remaining_s(region: Region | None, after_s: float, now: float) -> float | None:
    """Time until the replicas of a lost region are due; None if it is not lost."""
    if region is None or region.status.health.state is not HealthState.LOST or not region.status.health.since:
        return None
    return parse_time(region.status.health.since) + after_s - now


def _returns(workload: Workload, item: Assignment, held: Sequence[Assignment]) -> bool:
    """Whether other regions run all replicas while this one, which is back, does not serve its own yet."""
    elsewhere = sum(assigned_units(a) for a in held if a.spec.region != item.spec.region)
    serves = item.status.observed_epoch >= item.spec.epoch and item.status.serving >= item.spec.replicas
    return bool(item.spec.replicas) and not serves and elsewhere >= wanted_replicas(workload)
