"""`holdfast why-not`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import output_option, print_json, state_option

if TYPE_CHECKING:
    from holdfast.insight.why_not import WhyNotResult


@click.command(name="why-not")
@click.argument("replica", metavar="TENANT/REPLICA")
@click.argument("node")
@state_option
@output_option
def why_not(replica: str, node: str, state: str, output: str) -> int:
    """Show why a replica cannot run on a node, or how the node scores.

    Runs the planner's filters and scores on the region's current state, without the replica's own claim.

    \b
    Examples:
      holdfast why-not payments/risk-api-us-east-0 us-east-a1
    """
    import msgspec

    from holdfast.insight.region_clients import RegionClients, now_s, parse_tenant_name
    from holdfast.insight.what_if import request_for
    from holdfast.scheduling.replica_requirements import requirements_of

    key = parse_tenant_name(replica, "REPLICA")
    regions = RegionClients(state)
    found = regions.find_replica(key)
    if found is None:
        regions.raise_not_found(f"replica {replica}: not found", next_step=f"holdfast get replicas -n {key.namespace}")
    region, item = found
    request = request_for(item, attempt=item.status.placement.attempt)
    for name in (item.status.placement.binding, item.status.placement.reservation):
        for kind in ("Binding", "Reservation"):
            claim = next((c for c in region.list_objects(kind) if c.metadata.name == name and name), None)
            if claim is not None and claim.metadata.namespace == key.namespace:
                region.builder().delete(claim)
    verdict = region.why_not_query(requirements_of(request), now_s()).explain_node(node)
    if verdict is None:
        step = f"holdfast get nodes --region {region.name}"
        raise CommandError(f"node {node}: not found in region {region.name}, the region of the replica", next_step=step)
    if output == "json":
        print_json(msgspec.to_builtins(verdict))
    else:
        click.echo(as_text(replica, item.status.placement.node, verdict))
    return ExitCode.OK


def as_text(replica: str, where: str, verdict: WhyNotResult) -> str:
    now = f" (currently on {where})" if where else ""
    if verdict.blockers:
        lines = [f"{replica}: cannot run on node {verdict.node}{now}:"]
        for obstacle in verdict.blockers:
            lines += [f"  {obstacle.reason}: {obstacle.message}", f"    to fit: {obstacle.fix}"]
        return "\n".join(lines)
    parts = ", ".join(f"{s.name} {s.value} (weight {s.weight})" for s in verdict.scores)
    lines = [
        f"{replica}: can run on node {verdict.node}{now}: rank {verdict.position} of {verdict.feasible} feasible nodes",
        f"  score {verdict.score}: {parts}",
    ]
    if verdict.best != verdict.node:
        lines.append(f"  best: node {verdict.best} with score {verdict.best_score}")
    return "\n".join(lines)
