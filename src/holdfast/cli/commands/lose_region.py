"""`holdfast plan --lose-region`: recovery targets, nodes, preempted replicas, and missed recovery objectives."""

from __future__ import annotations

from typing import Any

import click

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, table


def plan_loss(state: str, region: str, zone: str, output: str) -> int:
    """Prints the forecast of one loss. Exits with 4 if a replica would be pending or an objective would be missed."""
    from holdfast.drills.outage import region_plan
    from holdfast.insight.region_loss import region_loss
    from holdfast.platform.layout import Layout
    from holdfast.platform.region_connections import connect_regions

    plan = region_plan(Layout(state).load(), region)
    if zone and zone not in plan.zones:
        raise CommandError(
            f"zone {zone}: not in region {region} (expected one of {', '.join(plan.zones)})", code=ExitCode.USAGE
        )
    result = region_loss(connect_regions(state), region, zone)
    if output == "json":
        print_json(result)
    else:
        click.echo(_as_text(result))
    return ExitCode.PLAN_NOT_PLACEABLE if result["short"] or result["waits"] else ExitCode.OK


def _as_text(result: dict[str, Any]) -> str:
    where = result["lost"]
    parts = [f"if {'zone ' + where['zone'] + ' of ' if where['zone'] else ''}region {where['region']} is lost:"]
    if result["effects"]:
        rows = [(f"{e['tenant']}/{e['workload']}", e["text"]) for e in result["effects"]]
        parts.append(table(("WORKLOAD", "WHAT HAPPENS"), rows))
    if result["places"]:
        nodes = [(p["replica"], p["region"], p["node"]) for p in result["places"]]
        parts.append(table(("REPLICA", "REGION", "NODE"), nodes))
    if result["evicts"]:
        leaving = [(e["region"], e["node"], e["tenant"], e["replica"], e["for"]) for e in result["evicts"]]
        parts.append(table(("REGION", "NODE", "TENANT", "PREEMPTED", "FOR"), leaving))
    for row in result["waits"]:
        cure = f" (to fit: {row['toFit']})" if row["toFit"] else ""
        parts.append(f"PENDING: {row['replica']} in {row['region']}: {row['reason']}: {row['message']}{cure}")
    if not result["decided"]:
        parts.append("the search reached its limit: a better plan may exist")
    return "\n\n".join(parts)
