"""`holdfast plan --lose-region`: recovery targets, nodes, preempted replicas, and workloads that stay short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.output import print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.controllers.cache import Cache
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.fleet.recovery.backing import LossForecast
    from holdfast.insight.region_clients import RegionClients
    from holdfast.insight.what_if import PlannedPlacement

KINDS_READ = ("Region", "Workload", "Assignment", "RecoveryBudget", "Quota", "PriorityClass", "Tenant", "Override")


def plan_loss(state: str, region: str, zone: str, output: str) -> int:
    """Prints the forecast of one loss. Exits with 4 if a replica would be pending or an objective would be missed."""
    from holdfast.drills.outage import region_plan
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.fleet.recovery.backing import Loss, forecast_loss
    from holdfast.foundation.exit_codes import CommandError
    from holdfast.insight.region_clients import RegionClients, now_s
    from holdfast.model.recovery_budget import RecoveryBudget
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    platform = layout.load()
    plan = region_plan(platform, region)
    if zone and zone not in plan.zones:
        raise CommandError(f"zone {zone}: not in region {region} (expected one of {', '.join(plan.zones)})", code=ExitCode.USAGE)
    watcher = PlatformObserver(layout, platform)
    try:
        view = _view(watcher)
        seen = forecast_loss(Loss(region, zone), view, view.list(RecoveryBudget), now_s())
        told = _told(seen, watcher, region, zone)
        told |= _placed(_placings(RegionClients(state), seen, view))
    finally:
        watcher.close()
    if output == "json":
        print_json(told)
    else:
        click.echo(_as_text(told))
    return ExitCode.PLAN_NOT_PLACEABLE if told["short"] or told["waits"] else ExitCode.OK


def _view(watcher: PlatformObserver) -> Cache:
    import msgspec

    from holdfast.controllers.cache import Cache
    from holdfast.model.kinds import BY_NAME

    cache = Cache()
    for name in KINDS_READ:
        kind = BY_NAME[name]
        for item in watcher.list(kind.plural):
            cache.put(msgspec.convert(item, kind.type))
    return cache


def _told(seen: LossForecast, watcher: PlatformObserver, region: str, zone: str) -> dict[str, Any]:
    recovers: list[dict[str, Any]] = [
        {"tenant": item.tenant, "workload": item.name, "region": target, "replicas": count}
        for item, target, count in seen.match.placements
    ]
    lost = [a for a in watcher.list("assignments") if a["spec"]["region"] == region and _has_work(a)]
    promised = {(w["metadata"]["namespace"], w["metadata"]["name"]) for w in watcher.critical_workloads()}
    return {
        "lost": {"region": region, "zone": zone},
        "recovers": recovers,
        "safe": [{"tenant": c.tenant, "workload": c.name} for c in seen.safe],
        "short": [
            {"tenant": s.demand.tenant, "workload": s.demand.name, "why": s.message} for s in seen.match.shortages
        ],
        "decided": seen.match.exact,
        "unprotected": [
            {
                "tenant": a["metadata"]["namespace"],
                "workload": a["spec"]["workload"],
                "replicas": a["spec"]["replicas"],
            }
            for a in lost
            if (a["metadata"]["namespace"], a["spec"]["workload"]) not in promised and not zone
        ],
    }  # fmt: skip


def _has_work(assignment: dict[str, Any]) -> bool:
    """Whether the Assignment still has replicas to run. A completed batch has none."""
    spec, batch = assignment["spec"], assignment["spec"].get("batch") or {}
    done = bool(batch) and assignment.get("status", {}).get("succeeded", 0) >= batch.get("completions", 1)
    return bool(spec.get("replicas")) and not done


def _placings(regions: RegionClients, seen: LossForecast, view: Cache) -> list[PlannedPlacement]:
    """Placements by the planner of each target region, on a copy of the region's current state."""
    from holdfast.insight.what_if import placings_of_recovery
    from holdfast.model.workload import Workload

    found: list[PlannedPlacement] = []
    for target in sorted({region for _, region, _ in seen.match.placements}):
        there = next((r for r in regions.all if r.name == target), None)
        if there is None:
            continue
        mine = [(item, count) for item, region, count in seen.match.placements if region == target]
        known = [(view.get(Workload, item.name, item.tenant), count) for item, count in mine]
        wanted = [(workload, count) for workload, count in known if workload is not None]
        zone = seen.loss.zone if target == seen.loss.region else ""
        found += placings_of_recovery(there, wanted, view, lost_zone=zone)
    return found


def _placed(placings: Sequence[PlannedPlacement]) -> dict[str, Any]:
    """The node of each replica, the preempted replicas, and the replicas that would be pending."""
    return {
        "places": [{"region": p.region, "replica": p.replica, "node": p.node} for p in placings if p.node],
        "evicts": [
            {
                "region": p.region,
                "node": p.node,
                "tenant": victim.partition("/")[0],
                "replica": victim.partition("/")[2].rpartition(".")[0],
                "for": p.replica,
            }
            for p in placings
            for victim in p.victims
        ],
        "waits": [
            {"region": p.region, "replica": p.replica, "reason": p.reason, "message": p.message, "toFit": p.to_fit}
            for p in placings
            if not p.node
        ],
    }


def _as_text(told: dict[str, Any]) -> str:
    where = told["lost"]
    parts = [f"if {'zone ' + where['zone'] + ' of ' if where['zone'] else ''}region {where['region']} is lost:"]
    if told["recovers"]:
        rows = [(r["tenant"], r["workload"], r["region"], r["replicas"]) for r in told["recovers"]]
        parts.append(table(("TENANT", "RECOVERS", "IN", "REPLICAS"), rows))
        nodes = [(p["replica"], p["region"], p["node"]) for p in told["places"]]
        parts.append(table(("REPLICA", "REGION", "NODE"), nodes))
    for row in told["safe"]:
        parts.append(f"{row['tenant']}/{row['workload']}: still serves minServing in another region")
    for row in told["short"]:
        parts.append(f"STAYS SHORT: {row['tenant']}/{row['workload']}: {row['why']}")
    if told["evicts"]:
        leaving = [(e["region"], e["node"], e["tenant"], e["replica"], e["for"]) for e in told["evicts"]]
        parts.append(table(("REGION", "NODE", "TENANT", "PREEMPTED", "FOR"), leaving))
    for row in told["waits"]:
        cure = f" (to fit: {row['toFit']})" if row["toFit"] else ""
        parts.append(f"PENDING: {row['replica']} in {row['region']}: {row['reason']}: {row['message']}{cure}")
    if told["unprotected"]:
        waiting = [(u["tenant"], u["workload"], u["replicas"]) for u in told["unprotected"]]
        parts.append(table(("TENANT", "NOT RECOVERED (NO OBJECTIVE)", "REPLICAS"), waiting))
    if not told["decided"]:
        parts.append("the search reached its limit: a better plan may exist")
    return "\n\n".join(parts)
