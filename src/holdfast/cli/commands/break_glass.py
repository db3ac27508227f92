"""`holdfast break-glass`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli import shell_completion
from holdfast.cli.commands.tokens import parse_duration_s
from holdfast.cli.options import output_option, state_option
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi

PATH = "/apis/holdfast.dev/v1/breakglasssessions"
MERGE_PATCH = "application/merge-patch+json"
_region = click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    default="",
    help="In this region; without it, in the global cell.",
)


@click.group("break-glass")
def break_glass() -> None:
    """Open access in an emergency: scoped, short, alarmed, and reviewed by another person.

    A session gives rights to a person; `holdfast override create --break-glass` changes what a cut-off region does.
    Both last at most 30 minutes.

    \b
    Examples:
      holdfast break-glass open --tenant payments --for 15m --reason "INC-214: rollout is stuck"
      holdfast break-glass list
      holdfast break-glass review ann-x7k2p --note "deleted two replicas, as the incident says"
    """


def _connect(state: str, region: str) -> CellApi:
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    return connect_cell(layout, layout.load(), region or "global")


@break_glass.command("open")
@click.option("--reason", required=True, help="Why, for the review.")
@click.option(
    "--tenant", shell_complete=shell_completion.complete_tenants, default="", help="Limit the session to this tenant."
)
@click.option("--verb", "verbs", multiple=True, help="Permit this verb; may be repeated. Without it, all.")
@click.option("--resource", "resources", multiple=True, help="Permit this resource; may be repeated. Without it, all.")
@click.option("--for", "duration", default="15m", show_default=True, metavar="DURATION", help="At most 30m.")
@_region
@state_option
@output_option
def open_session(
    *,
    reason: str,
    tenant: str,
    verbs: tuple[str, ...],
    resources: tuple[str, ...],
    duration: str,
    region: str,
    state: str,
    output: str,
) -> None:
    """Open a session for yourself. It ends by itself, and an alert fires at once.

    \b
    Examples:
      holdfast break-glass open --tenant payments --reason "INC-214: rollout is stuck"
      holdfast break-glass open --region eu-west --resource nodes --verb patch --for 5m --reason "INC-215: bad rack"
    """
    spec: dict[str, Any] = {"reason": reason, "durationSeconds": parse_duration_s(duration)}
    spec |= {"tenant": tenant} if tenant else {}
    spec |= {"verbs": list(verbs)} if verbs else {}
    spec |= {"resources": list(resources)} if resources else {}
    api = _connect(state, region)
    try:
        made = api.request("POST", PATH, {"metadata": {"generateName": "session-"}, "spec": spec})
    finally:
        api.close()
    if output == "json":
        print_json(made)
    else:
        print_note(f"session {made['metadata']['name']}: in force for {duration}; it must be reviewed by someone else")


@break_glass.command("list")
@_region
@state_option
@output_option
def list_sessions(*, region: str, state: str, output: str) -> None:
    """List sessions and their reviews.

    \b
    Example:
      holdfast break-glass list --region eu-west
    """
    api = _connect(state, region)
    try:
        found = api.get(PATH)["items"]
    finally:
        api.close()
    if output == "json":
        print_json(found)
        return
    rows = [
        (
            item["metadata"]["name"],
            item["spec"]["requester"],
            item["spec"].get("tenant", "") or "all",
            f"{item['spec']['durationSeconds']:g}s from {item['metadata']['creationTimestamp']}",
            item["spec"].get("review", {}).get("reviewer", "none"),
            item["spec"]["reason"],
        )
        for item in found
    ]
    click.echo(table(("NAME", "REQUESTER", "TENANT", "IN FORCE", "REVIEWER", "REASON"), rows))


@break_glass.command("close")
@click.argument("name")
@_region
@state_option
@output_option
def close(*, name: str, region: str, state: str, output: str) -> None:
    """End a session early.

    \b
    Example:
      holdfast break-glass close session-x7k2p
    """
    _patch(name, {"closed": True}, region, state, output, "closed")


@break_glass.command("review")
@click.argument("name")
@click.option("--note", required=True, help="What was done, and whether it was right.")
@_region
@state_option
@output_option
def review(*, name: str, note: str, region: str, state: str, output: str) -> None:
    """Review a session of another person. `holdfast audit --by USER` shows what was done.

    \b
    Example:
      holdfast break-glass review session-x7k2p --note "deleted two replicas, as the incident says"
    """
    _patch(name, {"review": {"note": note}}, region, state, output, "reviewed")


def _patch(  # noqa: PLR0917 - the options of the two commands
    name: str, spec: dict[str, Any], region: str, state: str, output: str, done: str
) -> None:
    api = _connect(state, region)
    try:
        made = api.request("PATCH", f"{PATH}/{quote(name, safe='')}", {"spec": spec}, content_type=MERGE_PATCH)
    finally:
        api.close()
    if output == "json":
        print_json(made)
    else:
        print_note(f"session {name}: {done}")
