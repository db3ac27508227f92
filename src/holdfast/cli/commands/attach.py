"""`holdfast attach`."""

from __future__ import annotations

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option


@click.command()
@click.argument("name", metavar="[TENANT/]REPLICA", shell_complete=shell_completion.complete_replicas)
@state_option
@output_option
def attach(name: str, state: str, output: str) -> int:
    """Print the output of a running replica.

    Prints what the replica's task writes from now on, until the task ends or you press Ctrl-C. The task's standard
    input is not connected. With -o json each piece of output is one JSON object.

    \b
    Examples:
      holdfast attach payments/risk-api-us-east-0
    """
    import json

    from holdfast.model.pod_session import Channel
    from holdfast.platform import pod_sessions

    def show(channel: int, data: bytes) -> None:
        stream = "stderr" if channel == Channel.STDERR else "stdout"
        click.echo(json.dumps({"stream": stream, "text": data.decode(errors="replace")}, ensure_ascii=False))

    placed = pod_sessions.running_replica(state, name, "holdfast attach REPLICA")
    return pod_sessions.attach(placed, show if output == "json" else None)
