"""`holdfast why-not`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import output_option, print_json, state_option

if TYPE_CHECKING:
    from holdfast.flow.why_not import Verdict


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

    from holdfast.cli.platform.foresight import request_for
    from holdfast.cli.platform.regions import Regions, now_s, parse_subject
    from holdfast.flow.ask import ask_of

    key = parse_subject(replica, "REPLICA")
    regions = Regions(state)
    found = regions.replica(key)
    if found is None:
        regions.missing(f"replica {replica}: not found", next_step=f"holdfast get replicas -n {key.namespace}")
    region, item = found
    request = request_for(item, attempt=item.status.placement.attempt)
    for name in (item.status.placement.binding, item.status.placement.reservation):
        for kind in ("Binding", "Reservation"):
            claim = next((c for c in region.every(kind) if c.metadata.name == name and name), None)
            if claim is not None and claim.metadata.namespace == key.namespace:
                region.builder().delete(claim)
    verdict = region.question(ask_of(request), now_s()).verdict(node)
    if verdict is None:
        step = f"holdfast get nodes --region {region.name}"
        raise Stop(f"node {node}: not found in region {region.name}, the region of the replica", next_step=step)
    if output == "json":
        print_json(msgspec.to_builtins(verdict))
    else:
        click.echo(as_text(replica, item.status.placement.node, verdict))
    return Exit.OK


def as_text(replica: str, where: str, verdict: Verdict) -> str:
    now = f" (currently on {where})" if where else ""
    if verdict.obstacles:
        lines = [f"{replica}: cannot run on node {verdict.node}{now}:"]
        for obstacle in verdict.obstacles:
            lines += [f"  {obstacle.reason}: {obstacle.message}", f"    to fit: {obstacle.cure}"]
        return "\n".join(lines)
    parts = ", ".join(f"{s.name} {s.value} (weight {s.weight})" for s in verdict.scores)
    lines = [
        f"{replica}: can run on node {verdict.node}{now}: rank {verdict.place} of {verdict.feasible} feasible nodes",
        f"  score {verdict.score}: {parts}",
    ]
    if verdict.best != verdict.node:
        lines.append(f"  best: node {verdict.best} with score {verdict.best_score}")
    return "\n".join(lines)
