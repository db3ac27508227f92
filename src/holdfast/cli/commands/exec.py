"""`holdfast exec`."""

from __future__ import annotations

import click

from holdfast.cli.exits import Stop
from holdfast.cli.output import output_option, print_json, state_option


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="[TENANT/]REPLICA")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 3600), default=60.0, show_default=True,
              help="How many seconds the command may take.")  # fmt: skip
@state_option
@output_option
def exec_(name: str, command: tuple[str, ...], timeout_s: float, state: str, output: str) -> int:
    """Run a command in a replica's environment.

    It runs beside the work on its node, with the work's environment, directory and user; only operators may. The
    question goes through the region's API to the node's agent. Ends with the command's own code.

    \b
    Examples:
      holdfast exec risk-api-us-east-0 -- env
      holdfast exec payments/risk-api-us-east-0 -- sh -c 'ls -l && id'
    """
    from holdfast.cli.platform.asking import ask_replica, find_replicas

    found = [placed for placed in find_replicas(state, name) if placed.node]
    if len(found) != 1:
        raise Stop(
            f"{name} names {len(found)} replicas that have a node",
            why=", ".join(f"{p.tenant}/{p.name}" for p in found[:10]) or "none runs",
            next_step="name exactly one: holdfast exec TENANT/REPLICA -- COMMAND",
        )
    rows = list(ask_replica(found[0], kind="Exec", command=list(command), timeoutSeconds=timeout_s))
    if not rows:
        raise Stop(f"the agent of {found[0].node} gave no answer")
    done = rows[-1]
    if output == "json":
        print_json({"replica": found[0].name, "node": found[0].node, **done})
    elif done.get("output"):
        click.echo(done["output"])
    return int(done.get("code", 0))
