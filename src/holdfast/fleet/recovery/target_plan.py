"""The recovery target of every critical workload after a loss. Pure.

The one decision for `recover`, when it opens an incident, and for `holdfast plan --lose-region`, which forecasts it.

- Workloads that matching recovery slots cover get the region of their slots (`slot_matching`).
- The others get the region with the most free slots and capacity that the first ones leave (`TargetSelector`).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from holdfast.fleet.recovery.backing import Loss, LossForecast, forecast_loss
from holdfast.fleet.recovery.need import CriticalWorkload, TargetSelector, critical_workloads, reported_headroom
from holdfast.model.meta import Key
from holdfast.model.override import Override, active_avoidances
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import Region
from holdfast.model.view import View


class TargetPlan(msgspec.Struct, frozen=True):
    """`targets`: region of each workload that needs replicas elsewhere, by tenant and name. `uncovered` are the
    (workload, region, replicas) among them without matching recovery slots."""

    forecast: LossForecast
    targets: dict[Key, str]
    uncovered: tuple[tuple[CriticalWorkload, str, int], ...]


def plan_targets(loss: Loss, view: View, now: float) -> TargetPlan:
    """Targets after the loss, for the workloads that have too few replicas in every other region."""
    critical = {Key(c.tenant, c.name): c for c in critical_workloads(view)}
    forecast = forecast_loss(loss, view, view.list(RecoveryBudget), now, tuple(critical.values()))
    avoidances = active_avoidances(view.list(Override), now)
    selector = _selector(loss, view, avoidances)
    targets: dict[Key, str] = {}
    for demand, region, count in forecast.match.placements:
        key = Key(demand.tenant, demand.name)
        targets[key] = region
        selector.reserve(critical[key], region, count)
    uncovered = []
    for shortage in forecast.match.shortages:
        key = Key(shortage.demand.tenant, shortage.demand.name)
        region = selector.choose(critical[key])
        if region:
            targets[key] = region
            count = dict(shortage.demand.options).get(region, 0)
            selector.reserve(critical[key], region, count)
            uncovered.append((critical[key], region, count))
    return TargetPlan(forecast, targets, tuple(uncovered))


def _selector(loss: Loss, view: View, avoidances: Collection[Override]) -> TargetSelector:
    remaining = [r for r in view.list(Region) if loss.zone or r.metadata.name != loss.region]
    return TargetSelector(remaining, avoidances, reported_headroom)
