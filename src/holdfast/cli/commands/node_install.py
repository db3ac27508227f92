"""`holdfast node token`, `holdfast node join` and `holdfast node leave`."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import shell_completion
from holdfast.cli.commands.agent import parse_pairs, parse_port_range
from holdfast.cli.commands.init import install_options, install_state_option, preflight, read_token
from holdfast.cli.commands.leave import leave_role
from holdfast.cli.commands.tokens import parse_duration_s
from holdfast.cli.options import output_option, state_option
from holdfast.platform.output import print_json, print_note


@click.command("token")
@click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    required=True,
    help="Region that nodes join with the token.",
)
@click.option(
    "--node",
    shell_complete=shell_completion.complete_nodes,
    default="",
    help="Restrict the token to this node, also to join again.",
)
@click.option("--uses", type=click.IntRange(1, 256), default=1, show_default=True, help="Nodes that may use it.")
@click.option("--expires", default="1h", show_default=True, metavar="DURATION", help="Lifetime of the token.")
@click.option(
    "--certificate", default="30d", show_default=True, metavar="DURATION", help="Lifetime of each node certificate."
)
@state_option
@output_option
def node_token(*, region: str, node: str, uses: int, expires: str, certificate: str, state: str, output: str) -> None:
    """Print a token with which machines join a region as nodes.

    It names the region's address and the hash of the platform's CA. The region stores only a hash of its secret.

    \b
    Examples:
      holdfast node token --region us-east
      holdfast node token --region us-east --uses 20 --expires 2h > us-east.nodes
    """
    from holdfast.install.regions import node_join_string

    text = node_join_string(
        state,
        region,
        node=node,
        uses=uses,
        ttl_s=parse_duration_s(expires),
        certificate_s=parse_duration_s(certificate),
    )
    if output == "json":
        print_json({"region": region, "token": text, "uses": uses, "expires": expires})
        return
    click.echo(text)
    print_note(f"next: on each node: holdfast node join TOKEN (within {expires})")


@click.command("join")
@click.argument("token")
@click.option("--name", default="", help="Node name. Default: the host name.")
@click.option("--zone", default="", help="Zone of the node. Default: the region's only zone.")
@click.option(
    "--address", default="", help="Address at which tasks are reachable. Default: the one towards the region."
)
@click.option("--ports", default="20000-20999", show_default=True, metavar="FROM-TO", help="Port range for tasks.")
@click.option("--pool", default="", help="Node pool.")
@click.option("--tenant", default="", help="Dedicate the node to one tenant.")
@click.option("--capacity", multiple=True, metavar="RESOURCE=AMOUNT", help="Capacity; detected if not set.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the node; may be repeated.")
@click.option("--driver", "drivers", multiple=True, help="Driver of the node: process, oci; may be repeated.")
@install_options
@output_option
def node_join(*, token: str, state: str | None, no_start: bool, skip_checks: bool, output: str, **options: Any) -> None:
    """Install and start the agent on this machine, with a token of `holdfast node token`. TOKEN - reads it from stdin.

    \b
    Example:
      holdfast node join hf1.… --zone us-east-a
    """
    from holdfast.install.doctor import Needs
    from holdfast.install.join_string import parse_join_string
    from holdfast.install.nodes import join_node, plan_node
    from holdfast.install.places import Places

    places = Places(state)
    joining = parse_join_string(read_token(token), "node")
    plan = plan_node(
        joining,
        name=options["name"],
        zone=options["zone"],
        address=options["address"],
        port_range=parse_port_range(options["ports"]),
        pool=options["pool"],
        tenant=options["tenant"],
        capacity=parse_pairs("--capacity", options["capacity"]),
        labels=parse_pairs("--label", options["labels"]),
        drivers=options["drivers"],
        start=not no_start,
    )
    if not skip_checks:
        preflight(places, "agent", Needs(task_ports=plan.port_range, other=joining.url))
    join_node(places, plan, joining, print_note)
    if output == "json":
        print_json({"node": plan.name, "region": joining.name, "zone": plan.zone, "started": plan.start})
        return
    print_note(f"\nNode {plan.name} {'is Ready in' if plan.start else 'is installed for'} region {joining.name}.")
    print_note("next: on a machine with operator credentials: holdfast get nodes")


@click.command("leave")
@install_state_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-state", is_flag=True, help="Keep the agent's files, so that it can be installed again.")
@output_option
def node_leave(*, state: str | None, yes: bool, keep_state: bool, output: str) -> None:
    """Remove the agent from this machine. Drain the node first: `holdfast node drain NAME`.

    \b
    Example:
      holdfast node leave
    """
    leave_role("agent", state=state, yes=yes, keep_state=keep_state, output=output)
