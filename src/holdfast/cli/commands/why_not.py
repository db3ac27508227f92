"""`holdfast why-not`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, parse_tenant_name, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json

if TYPE_CHECKING:
    from holdfast.insight.why_not import WhyNotResult


@click.command(name="why-not")
@click.argument("replica", metavar="TENANT/REPLICA", shell_complete=shell_completion.complete_replicas)
@click.argument("node", shell_complete=shell_completion.complete_nodes)
@state_option
@output_option
def why_not(replica: str, node: str, state: str, output: str) -> int:
    """Show why a replica cannot run on a node, or how the node scores.

    Runs the planner's filters and scores on the region's current state, without the replica's own claim. The tenant's
    remaining quota in the region counts: if it does not cover the replica, that is the first obstacle on every node.

    \b
    Examples:
      holdfast why-not payments/risk-api-us-east-0 us-east-a1
    """
    import msgspec

    from holdfast.insight.what_if import explain_node, node_elsewhere
    from holdfast.platform.region_connections import connect_regions

    key = parse_tenant_name(replica, "REPLICA")
    regions = connect_regions(state)
    found = regions.find_replica(key)
    if found is None:
        regions.raise_not_found(f"replica {replica}: not found", next_step=f"holdfast get replicas -n {key.namespace}")
    region, item = found
    regions.learn_quota_need(key.namespace)
    verdict = explain_node(region, item, node)
    if verdict is None:
        step = f"holdfast get nodes --region {region.name}"
        if elsewhere := node_elsewhere(regions.reachable, region, item, node):
            workload = f"{key.namespace}/{item.spec.workload}"
            step = f"holdfast explain {workload}, or list the node's region in spec.placement.regions of {workload}"
            raise CommandError(f"{replica}: {elsewhere}", next_step=step)
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
