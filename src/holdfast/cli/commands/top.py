"""`holdfast top`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from holdfast.cli.options import output_option, repeat_until_interrupted, state_option, watch_option
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
@watch_option
@state_option
@output_option
def top(by: str, *, watch: bool, state: str, output: str) -> None:
    """Show resource usage and requests.

    Each node's agent measures its tasks: CPU over the last half second, current memory and process count. Unreachable
    nodes are listed. A tenant's token shows that tenant's tasks.

    \b
    Examples:
      holdfast top
      holdfast top --by workload
    """
    if watch:
        repeat_until_interrupted(lambda: usage_text(*measured(state, by)))
    summed, unreachable = measured(state, by)
    if output == "json":
        print_json({"by": by, "rows": summed, "unreachable": unreachable})
        return
    click.echo(usage_text(summed, []))
    for line in unreachable:
        print_note(f"not measured: {line}")


def measured(state: str, by: str) -> tuple[list[dict[str, Any]], list[str]]:
    from holdfast.platform.resource_usage import measure_usage

    rows, unreachable = measure_usage(state)
    return sum_usage(rows, by), unreachable


def usage_text(summed: list[dict[str, Any]], unreachable: list[str]) -> str:
    headers = ("NAME", "REPLICAS", "CPU", "REQUESTED", "MEMORY", "REQUESTED", "PROCESSES")
    return "\n".join((table(headers, [usage_row(row) for row in summed]), *(f"not measured: {u}" for u in unreachable)))


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
