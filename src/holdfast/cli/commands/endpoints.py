"""`holdfast endpoints`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli import completing
from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import note, output_option, print_json, state_option, table

if TYPE_CHECKING:
    from holdfast.cli.http import Api

LOOK_EVERY_S = 0.5
PATIENCE_S = 30.0


@click.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=completing.workloads)
@click.option(
    "--format", "form", type=click.Choice(("table", "json", "http-sd", "nginx", "haproxy")), default="table",
    show_default=True, help="A form for people, programs, Prometheus (http_sd), nginx (upstream) or HAProxy (backend).",
)  # fmt: skip
@click.option("--port", default="", help="The name of the port to use; a replica's first when not given.")
@click.option("--write", "path", type=click.Path(dir_okay=False), help="Write to a file, replaced only as a whole.")
@click.option("--follow", is_flag=True, help="Keep the file or output current until interrupted.")
@click.option("--on-change", default="", help="A command to run after each change, such as a proxy's reload.")
@state_option
@output_option
def endpoints(
    workload: str, *, form: str, port: str, path: str | None, follow: bool, on_change: str, state: str, output: str
) -> None:
    """List who may receive traffic for a workload.

    Every address listed belongs to a replica that is ready and serving; it leaves the list before the replica stops.
    With --follow it keeps a proxy's configuration current.

    \b
    Examples:
      holdfast endpoints payments/risk-api
      holdfast endpoints payments/risk-api --format http-sd > targets.json
      holdfast endpoints payments/risk-api --format haproxy --write backend.cfg --follow --on-change "kill -USR2 1234"
    """
    import time

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
    api = connect(layout, layout.load(), "global")
    found: list[dict[str, Any]] | None = serving(api, tenant, name)
    if not found and not follow and not any(w["metadata"]["name"] == name for w in api.list("workloads", tenant)):
        raise Stop(
            f"there is no workload {name} in tenant {tenant}",
            next_step="kubectl get workloads -A lists them",
        )
    if form == "table" and path is None and not follow:
        show(output, tenant, name, found or [])
        return
    last = None
    while True:
        if found is not None and found != last:
            publish(form, tenant, name, found, port=port, path=path, on_change=on_change if last is not None else "")
            last = found
        if not follow:
            return
        time.sleep(LOOK_EVERY_S)
        found = asked(api, tenant, name)


def show(output: str, tenant: str, name: str, found: list[dict[str, Any]]) -> None:
    if output == "json":
        print_json({"tenant": tenant, "workload": name, "addresses": found})
        return
    rows = [
        (f"{a['address']}:{port}", port_name, a["region"], a.get("zone", ""), a.get("node", ""), a.get("replica", ""))
        for a in found
        for port_name, port in sorted(a.get("ports", {}).items())
    ]
    click.echo(table(("ADDRESS", "PORT", "REGION", "ZONE", "NODE", "REPLICA"), rows))


def publish(
    form: str, tenant: str, name: str, found: list[dict[str, Any]], *, port: str, path: str | None, on_change: str
) -> None:
    import os
    import subprocess

    from holdfast.cli.platform.traffic import rendered

    text = rendered("json" if form == "table" else form, tenant, name, found, port)
    if path is None:
        click.echo(text, nl=False)
    else:
        part = f"{path}.part"
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    if on_change:
        done = subprocess.run(on_change, shell=True, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if done.returncode:
            note(f"--on-change ended with code {done.returncode}: {done.stderr.strip()[:200]}")


def asked(api: Api, tenant: str, name: str) -> list[dict[str, Any]] | None:
    """None while the cell cannot be reached: what a proxy has stays, as nothing better is known."""
    try:
        return serving(api, tenant, name)
    except Stop as stop:
        if stop.code is not Exit.UNREACHABLE and getattr(stop, "status", 0) not in (429, 503, 504):
            raise
        return None


def serving(api: Api, tenant: str, name: str) -> list[dict[str, Any]]:
    """What the cell says may receive traffic now: addresses of a region it no longer hears are left out by it."""
    told = api.get(f"/endpoints/{quote(tenant)}/{quote(name)}")["workloads"].get(name, [])
    return sorted(told, key=lambda address: (address["region"], address.get("replica", "")))
