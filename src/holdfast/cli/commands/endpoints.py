"""`holdfast endpoints`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import output_option, print_json, state_option, table

if TYPE_CHECKING:
    from holdfast.cli.http import Api


@click.command()
@click.argument("workload", metavar="TENANT/WORKLOAD")
@state_option
@output_option
def endpoints(workload: str, state: str, output: str) -> None:
    """List who may receive traffic for a workload.

    Every address listed belongs to a replica that is ready and serving. Text output prints one address per line, so
    that it can be used in a script.

    \b
    Examples:
      holdfast endpoints payments/risk-api
      holdfast endpoints payments/risk-api -o json | jq -r '.addresses[] | "\\(.address):\\(.ports.http)"'
    """
    from holdfast.cli.platform.layout import Layout
    from holdfast.cli.platform.survey import connect

    tenant, _, name = workload.partition("/")
    if not tenant or not name:
        raise Stop(
            f"{workload!r} names no workload",
            why="a workload is named by its tenant and its own name",
            next_step="holdfast endpoints TENANT/WORKLOAD, for example payments/risk-api",
            code=Exit.USAGE,
        )
    layout = Layout(state)
    platform = layout.load()
    api = connect(layout, platform, "global")
    found = serving(api, tenant, name)
    if not found and not any(w["metadata"]["name"] == name for w in api.list("workloads", tenant)):
        raise Stop(
            f"there is no workload {name} in tenant {tenant}",
            next_step="kubectl get workloads -A lists them",
        )
    if output == "json":
        print_json({"tenant": tenant, "workload": name, "addresses": found})
        return
    rows = [
        (f"{a['address']}:{port}", port_name, a["region"], a.get("zone", ""), a.get("node", ""), a.get("replica", ""))
        for a in found
        for port_name, port in sorted(a.get("ports", {}).items())
    ]
    click.echo(table(("ADDRESS", "PORT", "REGION", "ZONE", "NODE", "REPLICA"), rows))


def serving(api: Api, tenant: str, name: str) -> list[dict[str, Any]]:
    """What the cell says may receive traffic now: addresses of a region it no longer hears are left out by it."""
    told = api.get(f"/endpoints/{quote(tenant)}/{quote(name)}")["workloads"].get(name, [])
    return sorted(told, key=lambda address: (address["region"], address.get("replica", "")))
