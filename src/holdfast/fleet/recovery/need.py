"""Missing replicas of each critical workload per region, and the choice of a recovery target. Pure.

The real recovery, the check that objectives are backed, and `holdfast plan --lose-region` use the same functions.
All replicas of a workload in a region count, ordinary and recovery, so a second failure adds only missing replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from holdfast.fleet.assign import open_zones, region_refusal_reason
from holdfast.fleet.free_shapes import FreeNodes
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.override import Override
from holdfast.model.priority_class import PriorityClass
from holdfast.model.quantity import Amounts, add, amounts, scaled
from holdfast.model.region import HealthState, Region, lacks_live_nodes
from holdfast.model.template import requests, template_claims
from holdfast.model.view import View
from holdfast.model.volume import OnRegionLoss
from holdfast.model.workload import RecoveryObjective, Workload, WorkloadType

VOLUMES_WAIT = "the data of its volumes is in the lost region"


class RegionReplicaCounts(msgspec.Struct, frozen=True, gc=False):
    """Replica counts of a workload in one region."""

    serving_or_starting: int = 0
    assigned: int = 0
    bound: int = 0
    ready: int = 0
    serving: int = 0


class CriticalWorkload(msgspec.Struct, frozen=True):
    """A workload with a recovery objective, and its replicas per region."""

    workload: Workload
    objective: RecoveryObjective
    priority: int
    shape: Amounts
    replica_counts: dict[str, RegionReplicaCounts]
    waiting_claims: tuple[str, ...] = ()
    """VolumeClaims of the workload with `onRegionLoss: Wait`: no replica starts elsewhere without its data."""

    @property
    def tenant(self) -> str:
        return self.workload.metadata.namespace

    @property
    def name(self) -> str:
        return self.workload.metadata.name

    def counts_in(self, region: str) -> RegionReplicaCounts:
        return self.replica_counts.get(region, RegionReplicaCounts())

    def need(self, region: str) -> int:
        return max(0, self.objective.min_serving - self.counts_in(region).serving_or_starting)


def critical_workloads(view: View) -> list[CriticalWorkload]:
    """Every workload with a recovery objective, highest priority first."""
    found = []
    for workload in view.list(Workload):
        promise = workload.spec.recovery
        if promise is None or workload.metadata.terminating or workload.spec.type is not WorkloadType.SERVICE:
            continue
        found.append(critical_workload(workload, promise, view))
    return sorted(found, key=lambda c: (-c.priority, c.tenant, c.name))


def critical_workload(workload: Workload, promise: RecoveryObjective, view: View) -> CriticalWorkload:
    priority = view.get(PriorityClass, workload.spec.priority_class_name)
    parts: dict[str, list[Assignment]] = {}
    for item in view.by(Assignment, "workload", str(workload.key)):
        parts.setdefault(item.spec.region, []).append(item)
    templates = [a.spec.template for items in parts.values() for a in items] or [workload.spec.template]
    waiting = {c.name for t in templates for c in template_claims(t) if c.on_region_loss is OnRegionLoss.WAIT}
    return CriticalWorkload(
        workload=workload,
        objective=promise,
        priority=priority.spec.priority if priority is not None else 0,
        shape=requests(workload.spec.template),
        replica_counts={region: _replica_counts(items) for region, items in sorted(parts.items())},
        waiting_claims=tuple(sorted(waiting)),
    )


def _replica_counts(items: Sequence[Assignment]) -> RegionReplicaCounts:
    """A pending ordinary replica does not count. A pending recovery replica does, so that it is not requested twice."""
    counted = 0
    for item in items:
        waiting = item.status.queued if item.spec.purpose is Purpose.NORMAL else 0
        counted += max(item.status.serving, item.spec.replicas - waiting - item.status.unknown)
    return RegionReplicaCounts(
        serving_or_starting=counted,
        assigned=sum(i.spec.replicas for i in items),
        bound=sum(i.status.bound for i in items),
        ready=sum(i.status.ready for i in items),
        serving=sum(i.status.serving for i in items),
    )


def target_refusal_reason(
    critical: CriticalWorkload, region: Region, avoidances: Collection[Override], *, lost_zone: str = ""
) -> str:
    """Why the region is not eligible as recovery target of the workload; empty if it is eligible.

    An avoided region is eligible if `minServing` replicas are already bound there, because an avoidance only forbids
    new replicas. With a `lost_zone`, no bound replica counts. A region with planned maintenance is not eligible from
    the notice on, whatever is bound there: it may be drained, or absent, before the incident is over.
    """
    name = region.metadata.name
    if critical.objective.regions and name not in critical.objective.regions:
        return "not in spec.recovery.regions"
    why = region_refusal_reason(critical.workload, region)
    if why:
        return why
    if region.status.health.state is not HealthState.HEALTHY:
        return f"the region is {region.status.health.state.value}"
    if lacks_live_nodes(region):
        return "the region has no live node"
    if critical.waiting_claims and (lost_zone or critical.need(name)):
        return volumes_obstacle(critical)
    planned = [o for o in avoidances if o.spec.maintenance is not None]
    if planned and not open_zones(critical.workload, region, planned):
        return "planned maintenance"
    bound = 0 if lost_zone else critical.counts_in(name).bound
    if avoidances and bound < critical.objective.min_serving:
        left = [zone for zone in open_zones(critical.workload, region, avoidances) if zone != lost_zone]
        return "" if left else "an override forbids new replicas"
    return ""


def volumes_obstacle(critical: CriticalWorkload) -> str:
    """Why no replica of the workload starts away from its data; empty if nothing keeps it there."""
    named = ", ".join(critical.waiting_claims)
    return f"{VOLUMES_WAIT} (VolumeClaim {named}: onRegionLoss Wait)" if named else ""


class TargetSelector:
    """Chooses targets one after another. Earlier choices reduce the room, so that not all choose the same region."""

    def __init__(
        self,
        regions: Iterable[Region],
        avoidances: Collection[Override],
        room: Callable[[Region, Amounts], int],
        planned: Callable[[CriticalWorkload], str] = lambda _: "",
    ) -> None:
        """`room` returns how many replicas of a shape fit into a region by its last report. `planned` returns the
        target of the incident's plan (`target_plan`); empty if it has none."""
        self._planned = planned
        self._regions = {r.metadata.name: r for r in regions}
        self._avoidances = avoidances
        self._room = room
        self._reserved: dict[str, Amounts] = {}

    def reserve(self, critical: CriticalWorkload, region: str, count: int) -> None:
        add(self._reserved.setdefault(region, {}), scaled(critical.shape, count))

    def refusal(self, critical: CriticalWorkload, region: str) -> str:
        """Why the region is not eligible as target of the workload; empty if it is eligible."""
        found = self._regions.get(region)
        return (
            target_refusal_reason(critical, found, self._avoidances)
            if found is not None
            else "the region does not exist"
        )

    def choose(self, critical: CriticalWorkload, *, without: frozenset[str] = frozenset()) -> str:
        """The planned target if it is eligible. Otherwise enough reported room first, then fewest replicas to start,
        then most free recovery slots for them, then (only without enough room) the smallest shortfall, then lowest
        cost, then name. Empty if no region is eligible."""
        planned = self._planned(critical)
        if planned and planned not in without and not self.refusal(critical, planned):
            return planned
        eligible = [r for name, r in self._regions.items() if name not in without and not self.refusal(critical, name)]
        if not eligible:
            return ""

        def order(region: Region) -> tuple[object, ...]:
            name = region.metadata.name
            need = critical.need(name)
            # Where nothing has to start, the room that others leave does not matter.
            surplus = self._remaining(region, critical, self._room(region, critical.shape)) - need if need else 0
            unslotted = max(0, need - self._remaining(region, critical, free_slots(region, critical.shape)))
            return (surplus < 0, need, unslotted, -surplus if surplus < 0 else 0, region.spec.cost, name)

        return min(eligible, key=order).metadata.name

    def _remaining(self, region: Region, critical: CriticalWorkload, fits: int) -> int:
        """Places that earlier choices leave."""
        reserved = self._reserved.get(region.metadata.name, {})
        used = max(
            (-(-reserved.get(name, 0) // amount) for name, amount in critical.shape.items() if amount), default=0
        )
        return fits - used


def reported_headroom(region: Region, shape: Amounts) -> int:
    """How many replicas of a shape fit by the region's report: free recovery slots plus free capacity."""
    report = region.status.report
    if report is None:
        return 0
    places = free_slots(region, shape)
    capacity, used, kept = amounts(report.capacity), amounts(report.used), amounts(report.recovery_reserved)
    free = min(
        ((capacity.get(n, 0) - used.get(n, 0) - kept.get(n, 0)) // amount for n, amount in shape.items() if amount),
        default=0,
    )
    if report.free_shapes:
        free = min(free, FreeNodes(report.free_shapes).room_for(shape, lambda _: True))
    return places + max(0, free)


def free_slots(region: Region, shape: Amounts) -> int:
    """Free recovery slots of the region that hold a replica of the shape, by its report."""
    report = region.status.report
    places = 0
    for place in report.recovery_slots if report is not None else ():
        held = amounts(place.resources)
        if all(held.get(name, 0) >= amount for name, amount in shape.items()):
            places += place.admitted - place.consumed
    return places
