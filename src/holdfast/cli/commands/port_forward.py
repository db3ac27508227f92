"""`holdfast port-forward`."""

from __future__ import annotations

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode


@click.command("port-forward")
@click.argument("name", metavar="[TENANT/]REPLICA", shell_complete=shell_completion.complete_replicas)
@click.argument("ports", metavar="[LOCAL:]REMOTE")
@state_option
@output_option
def port_forward(name: str, ports: str, state: str, output: str) -> None:
    """Forward a local port to a replica's port.

    REMOTE is the name of a port of the replica's template, or its number. LOCAL is a port of this machine; 0 or nothing
    chooses a free one. Connections go through the region's API to the replica's node, until you press Ctrl-C. Only the
    replica's own TCP ports can be reached.

    \b
    Examples:
      holdfast port-forward payments/risk-api-us-east-0 8080:http
    """
    import json

    from holdfast.platform import pod_sessions

    local_text, _, remote_text = ports.rpartition(":")
    if local_text and not (local_text.isdigit() and int(local_text) < 65536):
        raise CommandError(f"{ports}: the local port must be a number up to 65535", code=ExitCode.USAGE)
    placed = pod_sessions.running_replica(state, name, f"holdfast port-forward REPLICA {ports}")
    remote = pod_sessions.port_number(placed, remote_text)

    def announce(port: int) -> None:
        if output == "json":
            click.echo(json.dumps({"replica": placed.name, "local": port, "remote": remote}))
        else:
            click.echo(f"Forwarding from 127.0.0.1:{port} to {remote} of {placed.name}")

    pod_sessions.forward_port(placed, int(local_text or 0), remote, announce)
