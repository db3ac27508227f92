"""`holdfast endpoints`."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

POLL_EVERY_S = 0.5
# Time limit of the --on-change command. A command that runs longer ends `holdfast endpoints` with an error.
ON_CHANGE_TIMEOUT_S = 30.0


@click.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "json", "http-sd", "nginx", "haproxy")),
    default="table",
    show_default=True,
    help="Output format: http-sd for Prometheus, nginx (upstream) or haproxy (backend) for proxies.",
)
@click.option("--port", default="", help="Name of the port; the first port of the replica if not set.")
@click.option("--write", "path", type=click.Path(dir_okay=False), help="Write to this file, replaced atomically.")
@click.option("--follow", is_flag=True, help="Keep the file or output up to date until interrupted.")
@click.option("--on-change", default="", help="Command to run after each change, such as a proxy reload.")
@state_option
@output_option
def endpoints(
    workload: str, *, form: str, port: str, path: str | None, follow: bool, on_change: str, state: str, output: str
) -> None:
    """List the addresses that serve a workload.

    Every address belongs to a replica that is ready and serving. An address is removed before its replica stops. With
    --follow the command keeps the configuration of a proxy up to date. While the global cell does not answer, each
    region is asked for its own addresses.

    \b
    Examples:
      holdfast endpoints payments/risk-api
      holdfast endpoints payments/risk-api --format http-sd > targets.json
      holdfast endpoints payments/risk-api --format haproxy --write backend.cfg --follow --on-change "kill -USR2 1234"
    """
    import time

    from holdfast.cli.address_source import AddressSource
    from holdfast.platform.layout import Layout

    tenant, _, name = workload.partition("/")
    if not tenant or not name:
        raise CommandError(
            f"{workload}: the tenant is missing (expected TENANT/WORKLOAD)",
            next_step="holdfast endpoints payments/risk-api",
            code=ExitCode.USAGE,
        )
    source = AddressSource.of_platform(Layout(state))
    found: list[dict[str, Any]] | None = source.read(tenant, name)
    if not found and not follow and not source.is_known(tenant, name):
        raise CommandError(f"workload {tenant}/{name}: not found", next_step=f"holdfast get workloads -n {tenant}")
    if source.notice:
        print_note(source.notice)
    if form == "table" and path is None and not follow:
        print_addresses(output, tenant, name, found or [])
        return
    last = None
    while True:
        if found is not None and found != last:
            publish_addresses(
                form, tenant, name, found, port=port, path=path, on_change=on_change if last is not None else ""
            )
            last = found
        if not follow:
            return
        time.sleep(POLL_EVERY_S)
        found = source.read_or_none(tenant, name)


def print_addresses(output: str, tenant: str, name: str, found: list[dict[str, Any]]) -> None:
    if output == "json":
        print_json({"tenant": tenant, "workload": name, "addresses": found})
        return
    rows = [
        (f"{a['address']}:{port}", port_name, a["region"], a.get("zone", ""), a.get("node", ""), a.get("replica", ""))
        for a in found
        for port_name, port in sorted(a.get("ports", {}).items())
    ]
    click.echo(table(("ADDRESS", "PORT", "REGION", "ZONE", "NODE", "REPLICA"), rows))


def publish_addresses(
    form: str, tenant: str, name: str, found: list[dict[str, Any]], *, port: str, path: str | None, on_change: str
) -> None:
    import os
    import subprocess

    from holdfast.platform.endpoint_formats import render_endpoints

    text = render_endpoints("json" if form == "table" else form, tenant, name, found, port)
    if path is None:
        click.echo(text, nl=False)
    else:
        part = f"{path}.part"
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    if on_change:
        completed = subprocess.run(
            on_change, shell=True, capture_output=True, text=True, timeout=ON_CHANGE_TIMEOUT_S, check=False
        )
        if completed.returncode:
            output = completed.stderr.strip()[:200]
            print_note(f"--on-change: the command exited with code {completed.returncode}: {output}")
