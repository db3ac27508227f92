"""`holdfast node`: cordon, uncordon, drain and revoke nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli import shell_completion
from holdfast.cli.commands.node_install import node_join, node_leave, node_token
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi

POLL_EVERY_S = 0.5


class NodeNotFound(CommandError):
    """No reachable region has it."""


@click.group()
def node() -> None:
    """Join, cordon, drain and revoke nodes.

    \b
    Examples:
      holdfast node token --region us-east
      holdfast node join TOKEN
      holdfast node cordon us-east-1
      holdfast node drain us-east-1 --deadline 120
      holdfast node uncordon us-east-1
    """


for _command in (node_token, node_join, node_leave):
    node.add_command(_command)


@node.command()
@click.argument("name", shell_complete=shell_completion.complete_nodes)
@state_option
@output_option
def cordon(name: str, state: str, output: str) -> None:
    """Mark a node unschedulable. Its replicas keep running.

    \b
    Example:
      holdfast node cordon us-east-1
    """
    api, _ = find_node(state, name)
    patch_node_spec(api, name, {"unschedulable": True})
    print_result(output, name, "cordoned")


@node.command()
@click.argument("name", shell_complete=shell_completion.complete_nodes)
@state_option
@output_option
def uncordon(name: str, state: str, output: str) -> None:
    """Mark a node schedulable and end its drain.

    \b
    Example:
      holdfast node uncordon us-east-1
    """
    api, _ = find_node(state, name)
    patch_node_spec(api, name, {"unschedulable": False, "drain": False, "drainSeconds": 0})
    print_result(output, name, "uncordoned")


@node.command()
@click.argument("name", shell_complete=shell_completion.complete_nodes)
@click.option(
    "--deadline",
    type=click.FloatRange(1, 7 * 86400),
    default=300.0,
    show_default=True,
    help="Seconds until the drain is overdue.",
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the drain is complete or overdue.")
@state_option
@output_option
def drain(name: str, *, deadline: float, wait: bool, state: str, output: str) -> None:
    """Evict all replicas from a node, within disruption budgets.

    Each replica leaves its endpoint before it stops and is replaced on another node. If the deadline passes, the
    command prints the blocking replica and the reason, and exits with 5. The drain continues.

    \b
    Examples:
      holdfast node drain us-east-1
      holdfast node drain us-east-1 --deadline 60 -o json
    """
    import time

    api, _ = find_node(state, name)
    patch_node_spec(api, name, {"unschedulable": True, "drain": True, "drainSeconds": deadline})
    if not wait:
        print_result(output, name, "draining")
        return
    last = ""
    while True:
        block = api.get(node_path(name)).get("status", {}).get("drain") or {}
        phase, message = block.get("phase", ""), block.get("message", "")
        if message != last and output == "text":
            print_note(f"{phase}: {message}")
            last = message
        if phase == "Drained":
            print_result(output, name, "drained", **block)
            return
        if phase == "Overdue":
            if output == "json":
                print_json({"node": name, "result": "overdue", **block})
            raise CommandError(
                f"node {name}: not drained after {deadline:g} s; the drain continues ({message})",
                next_step=f"raise spec.disruption.maxUnavailable of the workload, or holdfast node uncordon {name}",
                code=ExitCode.TIMED_OUT,
            )
        time.sleep(POLL_EVERY_S)


@node.command()
@click.argument("name", shell_complete=shell_completion.complete_nodes)
@state_option
@output_option
def revoke(name: str, state: str, output: str) -> None:
    """Revoke a node's certificate, for example when the machine is lost or stolen.

    The agent loses access at once: the lease expires, the node is fenced, and its replicas are rescheduled. Exclusive
    tasks stop before the lease expires. A node that was deleted from its region keeps its certificate until it is
    revoked. To use the node again, let it join with a new token.

    \b
    Example:
      holdfast node revoke us-east-1
      holdfast token create rejoin-us-east-1 --join us-east --node us-east-1
    """
    api, identity = find_identity(state, name)
    generation = identity["spec"]["generation"]
    change = {"spec": {"revokedGeneration": generation}}
    api.request("PATCH", identity_path(name), change, content_type="application/merge-patch+json")
    print_result(output, name, "revoked", generation=generation)


def find_identity(state: str, name: str) -> tuple[CellApi, dict[str, Any]]:
    """The identity of a node, and the API of its region: that of the node, or if it was deleted, the region that has
    its identity."""
    from holdfast.client.sync_api import ApiRefusal

    try:
        api, _ = find_node(state, name)
    except NodeNotFound:
        api, identity = _find_object(state, name, identity_path(name))
        print_note(f"node {name} is not in region {api.name} any more; its identity there is revoked")
        return api, identity
    try:
        return api, api.get(identity_path(name))
    except ApiRefusal as refusal:
        if refusal.status != 404:
            raise
        raise CommandError(
            f"node {name}: it did not join with a token, so this platform did not issue its certificate",
            next_step="revoke the certificate at the CA that issued it",
        ) from None


def identity_path(name: str) -> str:
    return f"/apis/holdfast.dev/v1/nodeidentities/{quote(name)}"


def node_path(name: str) -> str:
    return f"/apis/holdfast.dev/v1/nodes/{quote(name)}"


def find_node(state: str, name: str) -> tuple[CellApi, dict[str, Any]]:
    """The API of the node's region, and the node object."""
    return _find_object(state, name, node_path(name))


def _find_object(state: str, name: str, path: str) -> tuple[CellApi, dict[str, Any]]:
    """The object at the path, and the API of the first region that has it."""
    from holdfast.client.sync_api import ApiRefusal
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    platform = layout.load()
    unreachable = []
    for region in platform.regions:
        api = connect_cell(layout, platform, region.name)
        try:
            return api, api.get(path)
        except ApiRefusal as refusal:
            if refusal.status != 404:
                raise
        except CommandError as stop:
            if stop.code is not ExitCode.UNREACHABLE:
                raise
            unreachable.append(region.name)
    hint = f" (unreachable regions: {', '.join(unreachable)})" if unreachable else ""
    raise NodeNotFound(f"node {name}: not found in any region{hint}", next_step="holdfast get nodes")


def patch_node_spec(api: CellApi, name: str, spec: dict[str, Any]) -> None:
    api.request("PATCH", node_path(name), {"spec": spec}, content_type="application/merge-patch+json")


def print_result(output: str, name: str, result: str, **more: Any) -> None:
    if output == "json":
        print_json({"node": name, "result": result, **more})
    else:
        click.echo(f"node {name} {result}")
