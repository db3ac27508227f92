"""`holdfast pool`: lists node pools and runs the local node provider."""

from __future__ import annotations

import click

from holdfast.cli.exits import Stop
from holdfast.cli.output import directory_option, note, output_option, print_json, state_option, table


@click.group()
def pool() -> None:
    """List node pools, and start and stop their nodes.

    \b
    Examples:
      holdfast pool list
      holdfast pool provide
    """


@pool.command("list")
@state_option
@output_option
def list_(state: str, output: str) -> None:
    """List the node pools of every region with their size and state.

    \b
    Example:
      holdfast pool list
    """
    from holdfast.cli.platform.asking import regions

    rows = []
    for region, api in regions(state):
        for item in api.list("nodepools"):
            status = item.get("status", {})
            rows.append(
                {
                    "region": region, "pool": item["metadata"]["name"], "nodes": len(status.get("nodes", [])),
                    "max": item["spec"].get("maxNodes", 0), "reason": status.get("reason", ""),
                    "message": status.get("message", ""),
                }
            )  # fmt: skip
    if output == "json":
        print_json(rows)
        return
    headers = ("REGION", "POOL", "NODES", "MAX", "REASON", "MESSAGE")
    keys = ("region", "pool", "nodes", "max", "reason", "message")
    click.echo(table(headers, [tuple(row[key] for key in keys) for row in rows]))


@pool.command()
@click.option("--once", is_flag=True, help="Reconcile once and exit.")
@click.option("--measure", is_flag=True, help="Also push cpuPercent of every workload that scales by it.")
@directory_option
def provide(*, once: bool, measure: bool, state: str) -> None:
    """Start and stop agents on this machine so that every pool has its desired nodes.

    Runs until stopped. `holdfast up` runs it with --measure, unless --no-provider is set.

    \b
    Example:
      holdfast pool provide
    """
    import time

    from holdfast.cli.platform.layout import Layout
    from holdfast.cli.platform.measuring import Meter
    from holdfast.cli.platform.pool_provider import LOOK_EVERY_S, LocalProvider, alone, converge
    from holdfast.cli.platform.survey import connect

    layout = Layout(state)
    platform = layout.load()
    alone(layout)
    apis = {name: connect(layout, platform, name) for name, _ in platform.cells}
    provider = LocalProvider(layout, platform, lambda region: apis[region])
    meter = Meter(apis, note) if measure else None
    silent: set[str] = set()
    while True:
        for region in platform.regions:
            try:
                converge(apis[region.name], region.name, provider, note)
                silent.discard(region.name)
            except Stop as stop:
                if region.name not in silent:
                    note(f"{stop.what}; retrying")
                silent.add(region.name)
        if meter is not None:
            meter.look(time.monotonic())
        if once:
            return
        time.sleep(LOOK_EVERY_S)
