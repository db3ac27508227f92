"""`holdfast node`: cordon, uncordon, revoke, and drain with its progress and what blocks it."""

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
    """Keep new work off a node, or empty it.

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
    """Place no new work on a node; what runs there stays.

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
    """Allow new work on a node again, and end its drain.

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
    help="How many seconds it should take at most.",
)  # fmt: skip
@click.option("--wait/--no-wait", default=True, show_default=True, help="Follow it until it is done or overdue.")
@state_option
@output_option
def drain(name: str, *, deadline: float, wait: bool, state: str, output: str) -> None:
    """Move everything off a node, as disruption budgets allow.

    Replicas leave one by one; each leaves its endpoint first and has its replacement elsewhere. When the deadline
    passes, the drain goes on, and this command says which replica blocks it and why, and ends with code 5.

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
                f"node {name} is not empty after {deadline:g} s",
                why=message,
                next_step="it goes on; raise the budget, delete the replica, or: holdfast node uncordon " + name,
                code=Exit.TIMED_OUT,
            )
        time.sleep(LOOK_EVERY_S)


@node.command()
@click.argument("name")
@state_option
@output_option
def revoke(name: str, state: str, output: str) -> None:
    """Refuse a node's certificates from now on, as when its machine is lost or stolen.

    Its agent is cut off at once: the lease ends, the node is fenced, and its work is placed elsewhere; exclusive work
    ends before the lease does. To take the node back, let it join again with a token made for it.

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
            f"node {name} never joined with a token",
            why="its certificate was given to it by other means",
            next_step="revoke that where it was made",
        ) from None
    change = {"spec": {"revokedGeneration": generation}}
    api.request("PATCH", path, change, content_type="application/merge-patch+json")
    tell(output, name, "revoked", generation=generation)


def path_of(name: str) -> str:
    return f"/apis/holdfast.dev/v1/nodes/{quote(name)}"


def find(state: str, name: str) -> tuple[Api, dict[str, Any]]:
    """The region's API that knows the node, and the node."""
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
    unheard = f"; not heard: {', '.join(silent)}" if silent else ""
    raise Stop(f"no region has a node {name}{unheard}", next_step="holdfast get nodes lists them")


def change(api: Api, name: str, spec: dict[str, Any]) -> None:
    api.request("PATCH", path_of(name), {"spec": spec}, content_type="application/merge-patch+json")


def tell(output: str, name: str, result: str, **more: Any) -> None:
    if output == "json":
        print_json({"node": name, "result": result, **more})
    else:
        click.echo(f"node {name} {result}")
