"""Demand of one tenant's workloads for quota in all regions, and the quota that its grants hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.fleet.free_shapes import FreeNodes
from holdfast.fleet.grant_demand import (
    QuotaUnit,
    RegionAmounts,
    demand_by_region,
    provisional_demand,
    quota_demand,
    quota_units,
    rollout_surge_demand,
)
from holdfast.fleet.region_health import silence_s
from holdfast.model.active_policy import active_policy
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.override import Override, OverrideKind, in_force, is_in_scope
from holdfast.model.quantity import amounts
from holdfast.model.quota import Grant, GrantClass, max_enforced_limit
from holdfast.model.region import HealthState, Region, RegionReport
from holdfast.model.scheduler_policy import PartitionMode, PolicyRevision
from holdfast.model.view import View

# Units of one tenant for which room is looked for in one decision, the most important first. A bound on the work: a
# tenant whose replicas all differ must not occupy the global cell. Units beyond it are assumed to find room.
ROOM_UNITS_MAX = 128


class TenantDemand:
    """The demand of one tenant in all regions, and its grants so far."""

    def __init__(self, view: View, tenant: str, grants: Sequence[Grant], now: float) -> None:
        self._view, self._tenant, self._now = view, tenant, now
        self.grants = grants
        self.granted: dict[GrantClass, RegionAmounts] = {}
        """The new limits of each class that is settled."""
        self.regions = [r.metadata.name for r in view.list(Region) if not r.metadata.terminating]
        self.frozen = {g.key for g in grants if is_lease_expired(g, view.get(Region, g.spec.region), now)}
        lost = {r.metadata.name for r in view.list(Region) if r.status.health.state is HealthState.LOST}
        self.unreachable = lost | {g.spec.region for g in grants if g.key in self.frozen}
        self._units = view.total(Assignment, tenant, quota_units)
        self._free: dict[str, _ReportedRoom | None] = {}
        self._asked = 0

    def units(self, purpose: Purpose) -> dict[QuotaUnit, int]:
        return {unit: count for unit, count in self._units.items() if unit.purpose is purpose}

    def room_for(self, unit: QuotaUnit, count: int) -> int:
        """How many of so many units find room on the free nodes that their region reports, beside those asked before.

        All of them if room may appear by itself: by preemption or by a node that a pool adds. The reported pending
        reason is not used: without quota a region does not look for room, so two full regions would exchange quota
        forever."""
        if unit.may_preempt:
            return count
        if unit.region not in self._free:
            region = self._view.get(Region, unit.region)
            self._free[unit.region] = _free_nodes(region.status.report if region is not None else None)
        free = self._free[unit.region]
        if free is None or not unit.shape or self._asked >= ROOM_UNITS_MAX:
            return count
        self._asked += 1
        need = dict(unit.shape)
        nodes = free.for_reclaimable if unit.reclaimable else free.for_firm
        found = min(count, nodes.room_for(need, lambda _: True) // unit.members)
        for some in free:
            some.place(need, found * unit.members)
        return found

    def demand(self, purpose: Purpose) -> RegionAmounts:
        return demand_by_region(self._view.total(Assignment, self._tenant, quota_demand), purpose)

    def surge(self, purpose: Purpose) -> RegionAmounts:
        return demand_by_region(self._view.total(Assignment, self._tenant, rollout_surge_demand), purpose)

    def provisional(self) -> RegionAmounts:
        """Demand for provisional work in regions whose policy allows it: the same replicas once more."""
        spare = demand_by_region(self._view.total(Assignment, self._tenant, provisional_demand), Purpose.NORMAL)
        if not spare:
            return {}
        revisions, overrides = self._view.list(PolicyRevision), self._view.list(Override)
        modes = {
            r: active_policy(revisions, overrides, r, self._now).rules.partition_mode
            for r in self.regions
            if r in spare
        }
        return {r: spare[r] for r, mode in modes.items() if mode is PartitionMode.PROVISIONAL}

    def of_class(self, grant_class: GrantClass) -> dict[str, Grant]:
        return {g.spec.region: g for g in self.grants if g.spec.grant_class is grant_class}

    def held(self, grant_class: GrantClass) -> RegionAmounts:
        """Quota that a new limit cannot free: usage, or all that an unreachable region may enforce."""
        return {
            region: max_enforced_limit(g) if region in self.unreachable else amounts(g.status.used)
            for region, g in self.of_class(grant_class).items()
        }

    def emergencies(self, region: str | None) -> list[Override]:
        """The active emergency quotas of the tenant: in one region, or in any (None)."""
        found = in_force(self._view.list(Override), OverrideKind.EMERGENCY_QUOTA, self._now)
        return [o for o in found if is_in_scope(o, region=region, tenant=self._tenant, workload=None)]


class _ReportedRoom(NamedTuple):
    """Capacity of recovery slots is available only to reclaimable work."""

    for_firm: FreeNodes
    for_reclaimable: FreeNodes


def _free_nodes(report: RegionReport | None) -> _ReportedRoom | None:
    """The free nodes of a region; None if its report does not tell, or if a pool may add nodes."""
    if report is None or not report.node_shapes or sum(s.nodes for s in report.node_shapes) > report.nodes:
        return None
    return _ReportedRoom(FreeNodes(report.free_shapes), FreeNodes(report.free_shapes, reclaimable=True))


def is_lease_expired(grant: Grant, region: Region | None, now: float) -> bool:
    """Whether the region has been out of contact for longer than the grant lease. It then neither spends nor returns.

    The lease counts from the region's reports, here by their arrival on this cell's clock. `renewedAt` is a time of the
    region's clock and is compared only there."""
    if region is None:
        return bool(grant.status.renewed_at)
    return bool(region.status.health.last_contact_at) and silence_s(region, now) > grant.spec.lease_seconds
