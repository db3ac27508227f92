"""`holdfast cp`."""

from __future__ import annotations

import click

from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@state_option
@output_option
def cp(source: str, target: str, state: str, output: str) -> None:
    """Copy files to or from a running replica.

    One of SOURCE and TARGET is a local path, the other [TENANT/]REPLICA:PATH. Directories are copied with their
    content. The replica's node needs tar. Files are read and written with the rights of the replica's user.

    \b
    Examples:
      holdfast cp app.conf payments/risk-api-us-east-0:/tmp/app.conf
      holdfast cp payments/risk-api-us-east-0:/tmp/dump ./dump
    """
    from holdfast.platform import pod_sessions
    from holdfast.platform.output import print_json

    names = [text.partition(":") for text in (source, target)]
    remote = [bool(colon) for _, colon, _ in names]
    if remote[0] is remote[1]:
        raise CommandError(
            "cp: exactly one of SOURCE and TARGET must be [TENANT/]REPLICA:PATH",
            next_step="holdfast cp FILE TENANT/REPLICA:/tmp/FILE",
            code=ExitCode.USAGE,
        )
    name, _, path = names[0] if remote[0] else names[1]
    placed = pod_sessions.running_replica(state, name, f"holdfast cp with REPLICA:{path}")
    if remote[0]:
        pod_sessions.copy_from_replica(placed, path, target)
    else:
        pod_sessions.copy_to_replica(placed, source, path)
    if output == "json":
        print_json({"replica": placed.name, "source": source, "target": target})
