"""`holdfast pool`: lists node pools and runs the local node provider."""

from __future__ import annotations

import click

from holdfast.cli.options import directory_option, output_option, state_option
from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.output import print_json, print_note, table


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
    from holdfast.platform.agent_calls import region_apis

    rows = []
    for region, api in region_apis(state):
        for item in api.list("nodepools"):
            status = item.get("status", {})
            rows.append(
                {
                    "region": region,
                    "pool": item["metadata"]["name"],
                    "nodes": len(status.get("nodes", [])),
                    "max": item["spec"].get("maxNodes", 0),
                    "reason": status.get("reason", ""),
                    "message": status.get("message", ""),
                }
            )
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

    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.cpu_metrics import CpuMetricsPusher
    from holdfast.platform.layout import Layout
    from holdfast.platform.pool_provider import POLL_EVERY_S, LocalNodeProvider, acquire_provider_lock, reconcile_pools

    layout = Layout(state)
    platform = layout.load()
    acquire_provider_lock(layout)
    apis = {name: connect_cell(layout, platform, name) for name, _ in platform.cells}
    provider = LocalNodeProvider(layout, platform, lambda region: apis[region])
    meter = CpuMetricsPusher(apis, print_note) if measure else None
    unreachable: set[str] = set()
    while True:
        for region in platform.regions:
            try:
                reconcile_pools(apis[region.name], region.name, provider, print_note)
                unreachable.discard(region.name)
            except CommandError as stop:
                if region.name not in unreachable:
                    print_note(f"{stop.message}; retrying")
                unreachable.add(region.name)
        if meter is not None:
            meter.push_if_due(time.monotonic())
        if once:
            return
        time.sleep(POLL_EVERY_S)
