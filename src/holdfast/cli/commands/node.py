"""`holdfast node`: cordon, uncordon, drain and revoke nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import note, output_option, print_json, state_option

if TYPE_CHECKING:
    from holdfast.cli.http import Api

LOOK_EVERY_S = 0.5


@click.group()
def node() -> None:
    """Cordon, drain and revoke nodes.

    \b
    Examples:
      holdfast node cordon us-east-1
      holdfast node drain us-east-1 --deadline 120
      holdfast node uncordon us-east-1
    """


@node.command()
@click.argument("name")
@state_option
@output_option
def cordon(name: str, state: str, output: str) -> None:
    """Mark a node unschedulable. Its replicas keep running.

    \b
    Example:
      holdfast node cordon us-east-1
    """
    api, _ = find(state, name)
    change(api, name, {"unschedulable": True})
    tell(output, name, "cordoned")


@node.command()
@click.argument("name")
@state_option
@output_option
def uncordon(name: str, state: str, output: str) -> None:
    """Mark a node schedulable and end its drain.

    \b
    Example:
      holdfast node uncordon us-east-1
    """
    api, _ = find(state, name)
    change(api, name, {"unschedulable": False, "drain": False, "drainSeconds": 0})
    tell(output, name, "uncordoned")


@node.command()
@click.argument("name")
@click.option(
    "--deadline", type=click.FloatRange(1, 7 * 86400), default=300.0, show_default=True,
    help="Seconds until the drain is overdue.",
)  # fmt: skip
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

    api, _ = find(state, name)
    change(api, name, {"unschedulable": True, "drain": True, "drainSeconds": deadline})
    if not wait:
        tell(output, name, "draining")
        return
    last = ""
    while True:
        block = api.get(path_of(name)).get("status", {}).get("drain") or {}
        phase, message = block.get("phase", ""), block.get("message", "")
        if message != last and output == "text":
            note(f"{phase}: {message}")
            last = message
        if phase == "Drained":
            tell(output, name, "drained", **block)
            return
        if phase == "Overdue":
            if output == "json":
                print_json({"node": name, "result": "overdue", **block})
            raise Stop(
                f"node {name}: not drained after {deadline:g} s; the drain continues ({message})",
                next_step=f"raise spec.disruption.maxUnavailable of the workload, or holdfast node uncordon {name}",
                code=Exit.TIMED_OUT,
            )
        time.sleep(LOOK_EVERY_S)


@node.command()
@click.argument("name")
@state_option
@output_option
def revoke(name: str, state: str, output: str) -> None:
    """Revoke a node's certificate, for example when the machine is lost or stolen.

    The agent loses access at once: the lease expires, the node is fenced, and its replicas are rescheduled. Exclusive
    tasks stop before the lease expires. To use the node again, let it join with a new token.

    \b
    Example:
      holdfast node revoke us-east-1
      holdfast token create again --join us-east --node us-east-1
    """
    from holdfast.cli.http import Refusal

    api, _ = find(state, name)
    path = f"/apis/holdfast.dev/v1/nodeidentities/{quote(name)}"
    try:
        generation = api.get(path)["spec"]["generation"]
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        raise Stop(
            f"node {name}: it did not join with a token, so this platform did not issue its certificate",
            next_step="revoke the certificate at the CA that issued it",
        ) from None
    change = {"spec": {"revokedGeneration": generation}}
    api.request("PATCH", path, change, content_type="application/merge-patch+json")
    tell(output, name, "revoked", generation=generation)


def path_of(name: str) -> str:
    return f"/apis/holdfast.dev/v1/nodes/{quote(name)}"


def find(state: str, name: str) -> tuple[Api, dict[str, Any]]:
    """The API of the node's region, and the node object."""
    from holdfast.cli.http import Refusal
    from holdfast.cli.platform.layout import Layout
    from holdfast.cli.platform.survey import connect

    layout = Layout(state)
    platform = layout.load()
    silent = []
    for region in platform.regions:
        api = connect(layout, platform, region.name)
        try:
            return api, api.get(path_of(name))
        except Refusal as refusal:
            if refusal.status != 404:
                raise
        except Stop as stop:
            if stop.code is not Exit.UNREACHABLE:
                raise
            silent.append(region.name)
    unheard = f" (unreachable regions: {', '.join(silent)})" if silent else ""
    raise Stop(f"node {name}: not found in any region{unheard}", next_step="holdfast get nodes")


def change(api: Api, name: str, spec: dict[str, Any]) -> None:
    api.request("PATCH", path_of(name), {"spec": spec}, content_type="application/merge-patch+json")


def tell(output: str, name: str, result: str, **more: Any) -> None:
    if output == "json":
        print_json({"node": name, "result": result, **more})
    else:
        click.echo(f"node {name} {result}")
