"""Forecast of the loss of a region or zone: recovery targets, nodes, preempted replicas, missed recovery objectives.

Runs the recovery decisions of the fleet and the planner of each target region on copies. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.controllers.cache import Cache
from holdfast.fleet.assign import region_refusal_reason
from holdfast.fleet.reassign import reassign_after_s
from holdfast.fleet.recovery.backing import Loss, LossForecast
from holdfast.fleet.recovery.target_plan import TargetPlan, plan_targets
from holdfast.insight.region_clients import RegionClients, list_all, now_s
from holdfast.insight.what_if import PlannedPlacement, what_if_recovered
from holdfast.model.assignment import Assignment
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key
from holdfast.model.region import HealthState, Region
from holdfast.model.view import View
from holdfast.model.workload import Workload

KINDS_READ = ("Region", "Workload", "Assignment", "RecoveryBudget", "Quota", "PriorityClass", "Tenant", "Override")


def region_loss(regions: RegionClients, region: str, zone: str = "") -> dict[str, Any]:
    """The forecast as plain data. `short` and `waits` are empty if every recovery objective is met."""
    view = Cache()
    for name in KINDS_READ:
        kind = BY_NAME[name]
        for item in list_all(regions.global_api, f"/apis/holdfast.dev/v1/{kind.plural}", {}):
            view.put(msgspec.convert(item, kind.type))
    plan = plan_targets(Loss(region, zone), view, now_s())
    return loss_outcome(plan, view) | replica_rows(_placements(regions, plan.forecast, view))


def loss_outcome(plan: TargetPlan, view: View) -> dict[str, Any]:
    """The forecast by workload. `effects` says it in words, the most urgent first."""
    found = _by_effect(plan, view)
    return found | {"effects": loss_effects(found)}


def _by_effect(plan: TargetPlan, view: View) -> dict[str, Any]:
    """Workloads that recover, need no recovery, miss their recovery objective (`short`) or have none. Recovery tries a
    `short` workload in its `region`, if one is eligible."""
    forecast = plan.forecast
    lost = forecast.loss
    hit = [a for a in view.list(Assignment) if a.spec.region == lost.region and has_work(a)]
    critical = {w.key for w in view.list(Workload) if w.spec.recovery is not None}
    known = {w.key: w for w in view.list(Workload)}
    unprotected = [a for a in hit if Key(a.metadata.namespace, a.spec.workload) not in critical and not lost.zone]
    return {
        "lost": {"region": lost.region, "zone": lost.zone},
        "recovers": [
            {"tenant": item.tenant, "workload": item.name, "region": target, "replicas": count}
            for item, target, count in forecast.match.placements
        ],
        "safe": [{"tenant": c.tenant, "workload": c.name} for c in forecast.safe],
        "short": [
            {
                "tenant": s.demand.tenant,
                "workload": s.demand.name,
                "why": s.message,
                "region": plan.targets.get(Key(s.demand.tenant, s.demand.name), ""),
            }
            for s in forecast.match.shortages
        ],
        "decided": forecast.match.exact,
        "unprotected": [
            {
                "tenant": a.metadata.namespace,
                "workload": a.spec.workload,
                "replicas": a.spec.replicas,
                "reassignAfterSeconds": reassign_after_s(owner, view) if owner is not None else 0.0,
                "canRunElsewhere": owner is not None and _has_other_region(owner, lost.region, view),
            }
            for a in unprotected
            for owner in (known.get(Key(a.metadata.namespace, a.spec.workload)),)
        ],
    }


def _has_other_region(workload: Workload, lost: str, view: View) -> bool:
    """Whether a healthy region is left that the workload's rules allow."""
    left = [r for r in view.list(Region) if r.metadata.name != lost and r.status.health.state is HealthState.HEALTHY]
    return any(not region_refusal_reason(workload, region) for region in left)


def loss_effects(outcome: dict[str, Any]) -> list[dict[str, str]]:
    """What the loss does to each workload, in the words of the CLI and of the console."""
    texts: dict[str, Callable[[dict[str, Any]], str]] = {
        "short": _shortage_text,
        "recovers": lambda row: f"{_replicas(row['replicas'], 'starts', 'start')} in {row['region']}",
        "safe": lambda row: "still serves minServing in another region",
        "unprotected": _unprotected_text,
    }
    return [
        {"tenant": row["tenant"], "workload": row["workload"], "effect": effect, "text": text(row)}
        for effect, text in texts.items()
        for row in outcome[effect]
    ]


def _shortage_text(row: dict[str, Any]) -> str:
    tried = f"; recovery tries {row['region']}" if row["region"] else ""
    return f"misses its recovery objective: {row['why']}{tried}"


def _unprotected_text(row: dict[str, Any]) -> str:
    after_s = row["reassignAfterSeconds"]
    if not after_s:
        return f"{_replicas(row['replicas'], 'waits', 'wait')} for the region (no recovery objective)"
    if not row["canRunElsewhere"]:
        return f"{_replicas(row['replicas'], 'waits', 'wait')}: no other region can run it (no recovery objective)"
    return f"{_replicas(row['replicas'], 'starts', 'start')} elsewhere after {after_s:g} s (no recovery objective)"


def _replicas(count: int, one: str, many: str) -> str:
    return f"1 replica {one}" if count == 1 else f"{count} replicas {many}"


def has_work(assignment: Assignment) -> bool:
    """Whether the Assignment still has replicas to run. A completed batch has none."""
    batch = assignment.spec.batch
    done = batch is not None and assignment.status.succeeded >= batch.completions
    return assignment.spec.replicas > 0 and not done


def _placements(regions: RegionClients, forecast: LossForecast, view: View) -> list[PlannedPlacement]:
    """Placements by the planner of each target region, on a copy of the region's current state."""
    found: list[PlannedPlacement] = []
    for target in sorted({region for _, region, _ in forecast.match.placements}):
        there = next((r for r in regions.all if r.name == target), None)
        if there is None:
            continue
        mine = [(item, count) for item, region, count in forecast.match.placements if region == target]
        known = [(view.get(Workload, item.name, item.tenant), count) for item, count in mine]
        wanted = [(workload, count) for workload, count in known if workload is not None]
        zone = forecast.loss.zone if target == forecast.loss.region else ""
        found += what_if_recovered(there, wanted, view, lost_zone=zone)
    return found


def replica_rows(placements: Sequence[PlannedPlacement]) -> dict[str, Any]:
    """The node of each replica, the preempted replicas, and the replicas that would be pending."""
    return {
        "places": [{"region": p.region, "replica": p.replica, "node": p.node} for p in placements if p.node],
        "evicts": [
            {
                "region": p.region,
                "node": p.node,
                "tenant": victim.partition("/")[0],
                "replica": victim.partition("/")[2].rpartition(".")[0],
                "for": p.replica,
            }
            for p in placements
            for victim in p.victims
        ],
        "waits": [
            {"region": p.region, "replica": p.replica, "reason": p.reason, "message": p.message, "toFit": p.to_fit}
            for p in placements
            if not p.node
        ],
    }
