"""`holdfast top`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.output import print_json, print_note, table

_AMOUNTS = ("cpu", "cpuRequested", "memory", "memoryRequested", "processes")
MIB = 1024 * 1024


@click.command()
@click.option(
    "--by",
    type=click.Choice(("node", "workload", "replica")),
    default="node",
    show_default=True,
    help="Group rows by this.",
)
@state_option
@output_option
def top(by: str, state: str, output: str) -> None:
    """Show resource usage and requests.

    Each node's agent measures its tasks: CPU over the last half second, current memory and process count. Unreachable
    nodes are listed.

    \b
    Examples:
      holdfast top
      holdfast top --by workload
    """
    from holdfast.platform.agent_calls import call_node_agent, region_apis

    rows: list[dict[str, Any]] = []
    unreachable: list[str] = []
    for region, api in region_apis(state):
        try:
            nodes = [item["metadata"]["name"] for item in api.list("nodes")]
        except CommandError as stop:
            unreachable.append(stop.message)
            continue
        for node in nodes:
            try:
                rows += [{"region": region, "node": node, **row} for row in call_node_agent(api, node, kind="Usage")]
            except CommandError as stop:
                unreachable.append(f"{node}: {stop.message}")
    summed = sum_usage(rows, by)
    if output == "json":
        print_json({"by": by, "rows": summed, "unreachable": unreachable})
        return
    headers = ("NAME", "REPLICAS", "CPU", "REQUESTED", "MEMORY", "REQUESTED", "PROCESSES")
    click.echo(table(headers, [usage_row(row) for row in summed]))
    for line in unreachable:
        print_note(f"not measured: {line}")


def sum_usage(rows: Iterable[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        own = {"node": row["node"], "workload": f"{row['namespace']}/{row['workload']}"}
        name = own.get(by) or f"{row['namespace']}/{row['replica']}"
        into = sums.setdefault(name, {"name": name, "replicas": 0, **dict.fromkeys(_AMOUNTS, 0)})
        into["replicas"] += 1
        for key in _AMOUNTS:
            into[key] += row.get(key, 0)
    return [sums[name] for name in sorted(sums)]


def usage_row(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["name"],
        row["replicas"],
        f"{row['cpu']}m",
        f"{row['cpuRequested']}m",
        f"{row['memory'] // MIB}Mi",
        f"{row['memoryRequested'] // MIB}Mi",
        row["processes"],
    )
