"""What a tenant's Quota lacks until it covers everything of the tenant that waits, in all regions. Pure.

A region's grant shows only its part: quota that is added for one region goes to whichever replica of the tenant comes
first. So the raise is computed from the demand of all the tenant's Assignments, as the controller `grant` sums it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from holdfast.fleet.grant_demand import RegionAmounts, demand_by_region, quota_demand, quota_units
from holdfast.fleet.tenant_demand import TenantDemand
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.quantity import Amounts, add, amount_text, amounts
from holdfast.model.quota import Grant, GrantClass, Quota
from holdfast.model.view import View


class QuotaNeed(msgspec.Struct, frozen=True):
    """`missing` is the least raise of `spec.hard`, `hard` its value afterwards, and `caps` the caps of regions that are
    too low, with the values that are sufficient. Together they cover all `waiting` replicas of the tenant.

    `unreachable` regions receive no quota. `shares` is the most that each replica of a workload may request without any
    raise; only of workloads that have no bound replica, as others also need quota for their old replicas meanwhile.
    `requested` is the demand of each workload."""

    tenant: str
    missing: Amounts
    hard: Amounts
    caps: RegionAmounts
    waiting: int
    unreachable: Collection[str] = ()
    shares: Mapping[str, Amounts] = {}
    requested: Mapping[str, Amounts] = {}

    def stop_text(self, workload: str) -> str:
        """What to stop instead; empty if the tenant's other workloads do not request as much as is missing."""
        others = _sum({name: values for name, values in self.requested.items() if name != workload})
        if self.caps or any(others.get(name, 0) < amount for name, amount in self.missing.items()):
            return ""
        return f"stop other workloads of tenant {self.tenant} that request {_joined(self.missing)}"

    def raise_text(self) -> str:
        """The change of the Quota, with its numbers; empty if the Quota covers everything already."""
        parts = []
        if self.missing:
            parts.append(f"raise the Quota of tenant {self.tenant} by {_joined(self.missing)}, to {_joined(self.hard)}")
        caps = [f"regionCaps.{region} to {_joined(values)}" for region, values in sorted(self.caps.items())]
        if caps:
            parts.append(f"raise {' and '.join(caps)} in the Quota of tenant {self.tenant}")
        covered = {0: "the running rollouts", 1: "the one waiting replica"}.get(
            self.waiting, f"all {self.waiting} waiting replicas"
        )
        return f"{' and '.join(parts)}: it then covers {covered} of the tenant" if parts else ""


def quota_need(view: View, tenant: str, now: float) -> QuotaNeed | None:
    """The need of a tenant, from the objects of the global cell; None without a Quota."""
    quota = view.get(Quota, "quota", tenant)
    if quota is None or quota.metadata.terminating:
        return None
    known = TenantDemand(view, tenant, view.list(Grant, tenant), now)
    held, wanted = known.held(GrantClass.NORMAL), known.demand(Purpose.NORMAL)
    need = _need(held, wanted, known.unreachable)
    hard = amounts(quota.spec.hard)
    total = _sum(need)
    missing = {name: amount - hard.get(name, 0) for name, amount in total.items() if amount > hard.get(name, 0)}
    caps: RegionAmounts = {}
    for region, values in quota.spec.region_caps.items():
        low = {name: cap for name, cap in amounts(values).items() if need.get(region, {}).get(name, 0) > cap}
        if low and region not in known.unreachable:
            caps[region] = {name: need[region][name] for name in low}
    units = [(u, count) for u, count in known.units(Purpose.NORMAL).items() if not (u.bound or u.surge)]
    return QuotaNeed(
        tenant,
        missing,
        {name: total[name] for name in missing},
        caps,
        sum(count * (u.members + u.optional) for u, count in units if u.region not in known.unreachable),
        known.unreachable,
        _shares(view.list(Assignment, tenant), hard, known, held, wanted) if missing and not caps else {},
        _requested(view.list(Assignment, tenant)),
    )


def _requested(assignments: Collection[Assignment]) -> dict[str, Amounts]:
    found: dict[str, Amounts] = {}
    for assignment in assignments:
        for values in demand_by_region(quota_demand(assignment), Purpose.NORMAL).values():
            add(found.setdefault(assignment.spec.workload, {}), values)
    return found


def _need(held: RegionAmounts, wanted: RegionAmounts, unreachable: Collection[str]) -> RegionAmounts:
    """The quota of each region: its usage, or all that it requests. An unreachable region keeps what it may enforce."""
    found: RegionAmounts = {}
    for region in sorted({*held, *wanted}):
        here = wanted.get(region, {}) if region not in unreachable else {}
        kept = held.get(region, {})
        found[region] = {name: max(kept.get(name, 0), here.get(name, 0)) for name in sorted({*kept, *here})}
    return found


def _shares(
    assignments: Collection[Assignment], hard: Amounts, known: TenantDemand, held: RegionAmounts, wanted: RegionAmounts
) -> dict[str, Amounts]:
    """For each workload without a bound replica: what the Quota leaves for each of its replicas, beside everything else
    of the tenant."""
    by_workload: dict[str, list[Assignment]] = {}
    for assignment in assignments:
        if assignment.spec.purpose is Purpose.NORMAL:
            by_workload.setdefault(assignment.spec.workload, []).append(assignment)
    found: dict[str, Amounts] = {}
    for workload, own in by_workload.items():
        if any(a.status.bound for a in own) or any(a.spec.region in known.unreachable for a in own):
            continue
        others = {region: dict(values) for region, values in wanted.items()}
        for assignment in own:
            for region, values in demand_by_region(quota_demand(assignment), Purpose.NORMAL).items():
                for name, amount in values.items():
                    others[region][name] -= amount
        taken = _sum(_need(held, others, known.unreachable))
        replicas = sum(count * (u.members + u.optional) for a in own for u, count in quota_units(a).items())
        if replicas:
            names = {name for a in own for u in quota_units(a) for name, _ in u.shape}
            found[workload] = {
                name: max(0, hard.get(name, 0) - taken.get(name, 0)) // replicas for name in sorted(names)
            }
    return found


def _sum(values: Mapping[str, Amounts]) -> Amounts:
    found: Amounts = {}
    for here in values.values():
        add(found, here)
    return found


def _joined(values: Amounts) -> str:
    return " and ".join(f"{amount_text(name, amount)} {name}" for name, amount in values.items())
