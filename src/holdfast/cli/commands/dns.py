"""`holdfast dns`."""

from __future__ import annotations

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode


@click.command()
@click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    default="",
    help="Region of this machine: its replicas are answered first, then the nearest.",
)
@click.option("--zone", default="holdfast.internal", show_default=True, help="Zone of the names.")
@click.option(
    "--listen", default="127.0.0.1:7453", show_default=True, metavar="HOST:PORT", help="Address for UDP and TCP."
)
@state_option
def dns(*, region: str, zone: str, listen: str, state: str) -> None:
    """Answer DNS queries for workloads with the addresses of serving replicas.

    WORKLOAD.TENANT.holdfast.internal is the nearest region that serves; WORKLOAD.TENANT.REGION.holdfast.internal is one
    region; _PORT._tcp.WORKLOAD.TENANT.holdfast.internal (SRV) has the ports of all regions, the nearest first. Answers
    may be cached for five seconds. The name server sees what its credentials may read: all tenants, or one.

    \b
    Examples:
      holdfast dns --region us-east
      dig @127.0.0.1 -p 7453 _http._tcp.risk-api.payments.holdfast.internal SRV
    """
    import uvloop

    from holdfast.client.connecting import connect_async
    from holdfast.dns.name_server import run_name_server
    from holdfast.foundation.log import configure
    from holdfast.foundation.ports import SystemPorts
    from holdfast.model.errors import BadRequest

    host, port = parse_address(listen)
    try:
        client = connect_async(state)
    except BadRequest as error:
        what, _, advice = str(error).partition("; next: ")
        raise CommandError(what, next_step=advice) from error
    configure(cell=region or "global", component="dns")
    uvloop.run(run_name_server(client, region=region, zone=zone, host=host, port=port, ports=SystemPorts()))


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise CommandError(
            f"--listen {text}: invalid (expected HOST:PORT)", next_step="--listen 127.0.0.1:7453", code=ExitCode.USAGE
        )
    return host.strip("[]"), int(port)
