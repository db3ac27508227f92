"""`holdfast maintenance`."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli import shell_completion
from holdfast.cli.commands.tokens import parse_duration_s
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi

WINDOWS = "/apis/holdfast.dev/v1/maintenancewindows"
MERGE_PATCH = "application/merge-patch+json"
# Local times of a window have minutes. A window that starts now is stored with the second.
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


@click.group()
def maintenance() -> None:
    """Start, list and end maintenance of a region, a zone or nodes.

    While it lasts they get no new work, and their nodes are drained within disruption budgets. It ends by itself.
    Windows that recur are MaintenanceWindow objects, made with `kubectl apply`.

    \b
    Examples:
      holdfast maintenance start --region us-east --node us-east-1 --for 2h --reason "new disk"
      holdfast maintenance list
      holdfast maintenance end us-east-k3x9q
    """


def _connect(state: str) -> CellApi:
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    return connect_cell(layout, layout.load(), "global")


@maintenance.command("start")
@click.option("--region", shell_complete=shell_completion.complete_regions, required=True, help="The region.")
@click.option("--zone", default="", help="Only this zone of the region.")
@click.option(
    "--node",
    "nodes",
    shell_complete=shell_completion.complete_nodes,
    multiple=True,
    help="Only this node of the region; may be repeated.",
)
@click.option("--for", "duration", required=True, metavar="DURATION", help="How long, such as 30m or 4h.")
@click.option("--in", "delay", default="0s", show_default=True, metavar="DURATION", help="Start after this time.")
@click.option("--notice", default="0s", show_default=True, metavar="DURATION", help="Notice before the start.")
@click.option("--reason", required=True, help="What is done there.")
@click.option("--owner", default="", help="Whom to ask; without it, the user of this shell.")
@click.option("--name", default="", help="Name of the window; made from the region without it.")
@click.option("--drain/--no-drain", default=True, help="Whether nodes are drained, or only get no new work.")
@state_option
@output_option
def start(
    *,
    region: str,
    zone: str,
    nodes: tuple[str, ...],
    duration: str,
    delay: str,
    notice: str,
    reason: str,
    owner: str,
    name: str,
    drain: bool,
    state: str,
    output: str,
) -> None:
    """Start a window, now or in a while.

    \b
    Examples:
      holdfast maintenance start --region us-east --for 4h --reason "power work"
      holdfast maintenance start --region us-east --zone us-east-a --in 1h --notice 1h --for 30m --reason "switch"
    """
    import getpass

    starts_s = time.time() + parse_duration_s(delay)
    window = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "MaintenanceWindow",
        "metadata": {"name": name} if name else {"generateName": f"{region[:20]}-"},
        "spec": {
            "region": region,
            "start": _utc(starts_s),
            "end": _utc(starts_s + parse_duration_s(duration)),
            "reason": reason,
            "owner": owner or getpass.getuser(),
            "noticeSeconds": parse_duration_s(notice),
            "drain": drain,
            **({"zone": zone} if zone else {}),
            **({"nodes": list(nodes)} if nodes else {}),
        },
    }
    api = _connect(state)
    try:
        _check_place(api, region, zone)
        made = api.request("POST", WINDOWS, window)
    finally:
        api.close()
    if output == "json":
        print_json(made)
        return
    what = zone or ", ".join(nodes) or f"region {region}"
    print_note(
        f"maintenance {made['metadata']['name']}: {what} from {made['spec']['start']} to {made['spec']['end']} UTC"
    )
    print_note(f"next: holdfast maintenance list; holdfast maintenance end {made['metadata']['name']}")


def _check_place(api: CellApi, region: str, zone: str) -> None:
    """A window of a region that does not exist would never act, and nobody would see why."""
    regions = {item["metadata"]["name"]: item["spec"].get("zones", []) for item in api.list("regions")}
    if region not in regions:
        known = ", ".join(regions) or "none"
        raise CommandError(
            f"region {region}: not found (expected one of {known})",
            next_step="kubectl get regions",
            code=ExitCode.USAGE,
        )
    if zone and zone not in regions[region]:
        known = ", ".join(regions[region])
        raise CommandError(
            f"zone {zone}: not in region {region} (expected one of {known})",
            next_step=f"kubectl get region {region} -o yaml",
            code=ExitCode.USAGE,
        )


def _utc(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime(_TIME_FORMAT)


@maintenance.command("list")
@click.option("--all", "every", is_flag=True, help="Also windows that have ended.")
@state_option
@output_option
def list_windows(*, every: bool, state: str, output: str) -> None:
    """List windows with their phase, times, owner and reason.

    \b
    Example:
      holdfast maintenance list
    """
    api = _connect(state)
    try:
        found = api.get(WINDOWS)["items"]
    finally:
        api.close()
    if not every:
        found = [item for item in found if item.get("status", {}).get("phase") != "Ended"]
    if output == "json":
        print_json(found)
        return
    rows = [
        (
            item["metadata"]["name"],
            item["spec"]["region"],
            item["spec"].get("zone") or ",".join(item["spec"].get("nodes", [])) or "region",
            item.get("status", {}).get("phase", ""),
            item.get("status", {}).get("startsAt", "") or "-",
            item.get("status", {}).get("endsAt", "") or "-",
            item["spec"]["owner"],
            item["spec"]["reason"],
        )
        for item in found
    ]
    click.echo(table(("WINDOW", "REGION", "SCOPE", "PHASE", "STARTS", "ENDS", "OWNER", "REASON"), rows))


@maintenance.command("end")
@click.argument("name")
@state_option
@output_option
def end(name: str, *, state: str, output: str) -> None:
    """End a window now. A window that recurs is suspended and starts no more until `spec.suspend` is false again.

    \b
    Example:
      holdfast maintenance end us-east-k3x9q
    """
    path = f"{WINDOWS}/{quote(name)}"
    api = _connect(state)
    try:
        window: dict[str, Any] = api.get(path)
        if window["spec"].get("recurrence"):
            api.request("PATCH", path, {"spec": {"suspend": True}}, content_type=MERGE_PATCH)
            done = "suspended"
        else:
            api.request("DELETE", path)
            done = "ended"
    finally:
        api.close()
    if output == "json":
        print_json({"window": name, "result": done})
    else:
        print_note(f"maintenance {name}: {done}; what it drained takes work again")
