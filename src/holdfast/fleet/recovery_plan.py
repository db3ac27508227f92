"""Missing replicas of each critical workload per region, and the choice of a recovery target. Pure.

The real recovery, the check that objectives are backed, and `holdfast plan --lose-region` use the same functions.
All replicas of a workload in a region count, ordinary and recovery, so a second failure adds only missing replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from holdfast.fleet.assign import open_zones, why_not
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.override import Override
from holdfast.model.priority_class import PriorityClass
from holdfast.model.quantity import Amounts, add, amounts, scaled
from holdfast.model.region import HealthState, Region
from holdfast.model.template import requests
from holdfast.model.view import View
from holdfast.model.workload import RecoveryPromise, Workload, WorkloadType


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Replica counts of a workload in one region."""

    counted: int = 0
    assigned: int = 0
    bound: int = 0
    ready: int = 0
    serving: int = 0


class Critical(msgspec.Struct, frozen=True):
    """A workload with a recovery objective, and its replicas per region."""

    workload: Workload
    promise: RecoveryPromise
    rank: int
    shape: Amounts
    standing: dict[str, Standing]

    @property
    def tenant(self) -> str:
        return self.workload.metadata.namespace

    @property
    def name(self) -> str:
        return self.workload.metadata.name

    def at(self, region: str) -> Standing:
        return self.standing.get(region, Standing())

    def need(self, region: str) -> int:
        return max(0, self.promise.min_serving - self.at(region).counted)


def criticals(view: View) -> list[Critical]:
    """Every workload with a recovery objective, highest priority first."""
    found = []
    for workload in view.list(Workload):
        promise = workload.spec.recovery
        if promise is None or workload.metadata.terminating or workload.spec.type is not WorkloadType.SERVICE:
            continue
        found.append(critical_of(workload, promise, view))
    return sorted(found, key=lambda c: (-c.rank, c.tenant, c.name))


def critical_of(workload: Workload, promise: RecoveryPromise, view: View) -> Critical:
    priority = view.get(PriorityClass, workload.spec.priority_class_name)
    parts: dict[str, list[Assignment]] = {}
    for item in view.by(Assignment, "workload", str(workload.key)):
        parts.setdefault(item.spec.region, []).append(item)
    return Critical(
        workload=workload,
        promise=promise,
        rank=priority.spec.rank if priority is not None else 0,
        shape=requests(workload.spec.template),
        standing={region: _standing(items) for region, items in sorted(parts.items())},
    )


def _standing(items: Sequence[Assignment]) -> Standing:
    """A pending ordinary replica does not count. A pending recovery replica does, so that it is not requested twice."""
    counted = 0
    for item in items:
        waiting = item.status.queued if item.spec.purpose is Purpose.NORMAL else 0
        counted += max(item.status.serving, item.spec.replicas - waiting - item.status.unknown)
    return Standing(
        counted=counted,
        assigned=sum(i.spec.replicas for i in items),
        bound=sum(i.status.bound for i in items),
        ready=sum(i.status.ready for i in items),
        serving=sum(i.status.serving for i in items),
    )


def may_take(critical: Critical, region: Region, avoidances: Collection[Override], *, lost_zone: str = "") -> str:
    """Why the region is not eligible as recovery target of the workload; empty if it is eligible. An avoided region may, if all
    that the promise needs is bound there already: avoidance only keeps new replicas away. A lost zone binds none."""
    name = region.metadata.name
    if critical.promise.regions and name not in critical.promise.regions:
        return "not in spec.recovery.regions"
    why = why_not(critical.workload, region)
    if why:
        return why
    if region.status.health.state is not HealthState.HEALTHY:
        return f"the region is {region.status.health.state.value}"
    bound = 0 if lost_zone else critical.at(name).bound
    if avoidances and bound < critical.promise.min_serving:
        left = [zone for zone in open_zones(critical.workload, region, avoidances) if zone != lost_zone]
        return "" if left else "overrides keep new replicas away"
    return ""


class Targets:
    """Chooses targets one after another. Earlier choices reduce the room, so that not all choose the same region."""

    def __init__(
        self, regions: Iterable[Region], avoidances: Collection[Override], room: Callable[[Region, Amounts], int]
    ) -> None:
        """`room` returns how many replicas of a shape fit into a region by its last report."""
        self._regions = {r.metadata.name: r for r in regions}
        self._avoidances = avoidances
        self._room = room
        self._taken: dict[str, Amounts] = {}

    def take(self, critical: Critical, region: str, count: int) -> None:
        add(self._taken.setdefault(region, {}), scaled(critical.shape, count))

    def refusal(self, critical: Critical, region: str) -> str:
        """Why the region may not recover the workload, or an empty string."""
        found = self._regions.get(region)
        return may_take(critical, found, self._avoidances) if found is not None else "it does not exist"

    def choose(self, critical: Critical, *, without: frozenset[str] = frozenset()) -> str:
        """The best target: enough reported room first, then fewest replicas to start, then (only without enough room)
        the smallest shortfall, then lowest cost, then name. Empty if no region is eligible."""
        eligible = [r for name, r in self._regions.items() if name not in without and not self.refusal(critical, name)]
        if not eligible:
            return ""

        def order(region: Region) -> tuple[object, ...]:
            name = region.metadata.name
            need = critical.need(name)
            surplus = self._left(region, critical) - need
            return (surplus < 0, need, -surplus if surplus < 0 else 0, region.spec.cost, name)

        return min(eligible, key=order).metadata.name

    def _left(self, region: Region, critical: Critical) -> int:
        fits = self._room(region, critical.shape)
        reserved = self._taken.get(region.metadata.name, {})
        used = max(
            (-(-reserved.get(name, 0) // amount) for name, amount in critical.shape.items() if amount), default=0
        )
        return fits - used


def reported_room(region: Region, shape: Amounts) -> int:
    """How many replicas of a shape fit by the region's report: free recovery slots plus free capacity."""
    report = region.status.report
    if report is None:
        return 0
    places = 0
    for place in report.places:
        held = amounts(place.resources)
        if all(held.get(name, 0) >= amount for name, amount in shape.items()):
            places += place.kept - place.drawn
    capacity, used, kept = amounts(report.capacity), amounts(report.used), amounts(report.held)
    free = min(
        ((capacity.get(n, 0) - used.get(n, 0) - kept.get(n, 0)) // amount for n, amount in shape.items() if amount),
        default=0,
    )
    return places + max(0, free)
