"""`holdfast exec`."""

from __future__ import annotations

import shlex

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.output import print_json


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="[TENANT/]REPLICA", shell_complete=shell_completion.complete_replicas)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-i", "--stdin", "with_input", is_flag=True, help="Connect the command's standard input.")
@click.option("-t", "--tty", is_flag=True, help="Run the command on a terminal of its own.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds until the command is killed.",
)
@state_option
@output_option
def exec_(
    name: str, command: tuple[str, ...], *, with_input: bool, tty: bool, timeout_s: float, state: str, output: str
) -> int:
    """Run a command in a replica's environment.

    The command runs on the replica's node with the environment, working directory and user of its task. The call goes
    through the region's API to the node's agent. It is audited, and allowed for operators and the tenant's own users.
    Exits with the command's exit code. With -i or -t the command has streams in both directions and no timeout.

    \b
    Examples:
      holdfast exec risk-api-us-east-0 -- env
      holdfast exec -it payments/risk-api-us-east-0 -- sh
      holdfast exec payments/risk-api-us-east-0 -- sh -c 'ls -l && id'
    """
    if with_input or tty:
        return _interactive(state, name, command, with_input=with_input, tty=tty)
    from holdfast.platform.agent_calls import call_replica_agent, find_replicas

    found = [placed for placed in find_replicas(state, name) if placed.node]
    if not found:
        raise CommandError(f"{name}: no running replica (expected 1, found 0)", next_step="holdfast get replicas")
    if len(found) > 1:
        names = [f"{p.tenant}/{p.name}" for p in found]
        shown = ", ".join(names[:10])
        raise CommandError(
            f"{name}: matches several running replicas (expected 1, found {len(names)}: {shown})",
            next_step=f"holdfast exec {names[0]} -- {shlex.join(command)}",
        )
    rows = list(call_replica_agent(found[0], kind="Exec", command=list(command), timeoutSeconds=timeout_s))
    if not rows:
        raise CommandError(f"node {found[0].node}: its agent sent no response", next_step="run the command again")
    result = rows[-1]
    if output == "json":
        print_json({"replica": found[0].name, "node": found[0].node, **result})
    elif result.get("output"):
        click.echo(result["output"])
    return int(result.get("code", 0))


def _interactive(state: str, name: str, command: tuple[str, ...], *, with_input: bool, tty: bool) -> int:
    import sys

    from holdfast.platform import pod_sessions

    flags = "i" * with_input + "t" * tty
    placed = pod_sessions.running_replica(state, name, f"holdfast exec -{flags} REPLICA -- {shlex.join(command)}")
    return pod_sessions.execute(placed, command, source=sys.stdin.buffer if with_input else None, tty=tty)
