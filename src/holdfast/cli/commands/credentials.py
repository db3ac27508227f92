"""`holdfast credentials`: replaces or refuses what regions and nodes prove themselves with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import directory_option, note, output_option, print_json, table

if TYPE_CHECKING:
    from holdfast.cli.drills.world import Watcher
    from holdfast.cli.platform.credentials import Credentials
    from holdfast.cli.platform.layout import Platform

HOLDERS = click.Choice(("region", "node"))
LOOK_EVERY_S = 0.3
TAKEN_UP_WITHIN_S = 60.0


@click.group()
def credentials() -> None:
    """Replace or refuse the credentials of regions and nodes.

    A region shows its link's certificate to the global cell; a node shows to its region the one it got by joining,
    which its agent renews by itself. People have tokens: `holdfast token`.

    \b
    Examples:
      holdfast credentials list
      holdfast credentials rotate region eu-west
      holdfast credentials revoke node eu-west-1
    """


def _platform(state: str) -> tuple[Platform, Credentials, Watcher]:
    from holdfast.cli.drills.world import Watcher
    from holdfast.cli.platform.credentials import Credentials
    from holdfast.cli.platform.layout import Layout

    layout = Layout(state)
    platform = layout.load()
    return platform, Credentials(layout), Watcher(layout, platform)


@credentials.command("list")
@directory_option
@output_option
def list_(state: str, output: str) -> None:
    """List them: who holds which certificate, until when, and whether it is refused.

    \b
    Example:
      holdfast credentials list
    """
    from holdfast.model.times import seconds_text

    platform, held, watcher = _platform(state)
    refused = held.refused()
    rows: list[dict[str, Any]] = []
    try:
        for region in platform.regions:
            serial, ends = held.link_serial(region.name), seconds_text(held.link_ends_s(region.name))
            rows.append({"holder": "region", "name": region.name, "serial": serial, "ends": ends,
                         "refused": serial in refused})  # fmt: skip
            for item in watcher.try_list("nodeidentities", region.name) or ():
                spec = item["spec"]
                rows.append({"holder": "node", "name": item["metadata"]["name"], "serial": spec.get("serial", ""),
                             "ends": spec.get("expiresAt", ""),
                             "refused": spec["generation"] <= spec.get("revokedGeneration", 0)})  # fmt: skip
    finally:
        watcher.close()
    if output == "json":
        print_json(rows)
        return
    shown = [(r["holder"], r["name"], r["serial"][:16], r["ends"], "refused" if r["refused"] else "good") for r in rows]
    click.echo(table(("HOLDER", "NAME", "SERIAL", "ENDS", "STATE"), shown))


@credentials.command()
@click.argument("holder", type=HOLDERS)
@click.argument("name")
@directory_option
@output_option
def rotate(holder: str, name: str, state: str, output: str) -> None:
    """Give a region or a node new credentials while it runs, and refuse the old ones once the new are in use.

    A region's work and its link go on; its cell takes the new certificate up by itself. A node joins again with a new
    key; its work goes on.

    \b
    Examples:
      holdfast credentials rotate region eu-west
      holdfast credentials rotate node eu-west-1
    """
    told = _rotate_region(state, name) if holder == "region" else _rotate_node(state, name)
    if output == "json":
        print_json({"holder": holder, "name": name, "result": "rotated", **told})
    else:
        click.echo(f"{holder} {name} has new credentials; the old ones are refused")


@credentials.command()
@click.argument("holder", type=HOLDERS)
@click.argument("name")
@directory_option
@output_option
@click.pass_context
def revoke(ctx: click.Context, holder: str, name: str, state: str, output: str) -> None:
    """Refuse the credentials of a region or a node from now on, as when they were stolen.

    A region is cut off from the global cell at once, and goes on by itself as in any other cut. A node is cut off from
    its region: it is fenced, and its work is placed elsewhere. `rotate` takes a region back in.

    \b
    Examples:
      holdfast credentials revoke region eu-west
      holdfast credentials revoke node eu-west-1
    """
    if holder == "node":
        from holdfast.cli.commands.node import revoke as revoke_node

        ctx.invoke(revoke_node, name=name, state=state, output=output)
        return
    platform, held, watcher = _platform(state)
    watcher.close()
    _known_region(platform, name)
    serial = held.link_serial(name)
    held.refuse(serial)
    if output == "json":
        print_json({"holder": holder, "name": name, "result": "revoked", "serial": serial})
    else:
        click.echo(f"region {name} is refused by the global cell from now on")
        note(f"to take it back: holdfast credentials rotate region {name}")


def _known_region(platform: Platform, name: str) -> None:
    known = [region.name for region in platform.regions]
    if name not in known:
        raise Stop(f"there is no region {name!r}", next_step=f"choose one of {', '.join(known)}", code=Exit.USAGE)


def _rotate_region(state: str, name: str) -> dict[str, Any]:
    platform, held, watcher = _platform(state)
    try:
        _known_region(platform, name)
        old = held.link_serial(name)
        new = held.renew_link(name)
        # The region's own word that it shows the new one; only then is the old one refused.
        ends_s = held.link_ends_s(name)
        _until(
            lambda: _shown_until_s(watcher, name) == ends_s,
            f"the cell of region {name} has not taken up its new certificate",
            f"look at the log of cell-{name}; the old certificate is still good",
        )
        held.refuse(old)
        heard = _heard_at(watcher, name)
        _until(lambda: _heard_at(watcher, name) > heard, f"the global cell does not hear region {name} any more",
               f"look at the log of cell-{name}: its new certificate is {new}")  # fmt: skip
    finally:
        watcher.close()
    return {"old": old, "new": new}


def _shown_until_s(watcher: Watcher, region: str) -> float:
    """Until when the certificate is good that the region's cell says it shows to the global cell."""
    from holdfast.cli.drills.meters import read

    family = "holdfast_link_certificate_ends_timestamp_seconds"
    return read(watcher, (family,)).get((region, family), 0.0)


def _heard_at(watcher: Watcher, region: str) -> str:
    return str(watcher.get("regions", region)["status"].get("health", {}).get("heardAt", ""))


def _rotate_node(state: str, name: str) -> dict[str, Any]:
    from holdfast.cli.commands.node import find
    from holdfast.cli.http import Refusal
    from holdfast.cli.platform.enrol import PATH, make_token
    from holdfast.cli.platform.layout import Layout, write_whole

    layout = Layout(state)
    api, _ = find(state, name)
    path = f"/apis/holdfast.dev/v1/nodeidentities/{name}"
    before = int(api.get(path)["spec"]["generation"])
    token_name = f"rotate-{name}-{before}"
    with contextlib.suppress(Refusal):
        api.request("DELETE", f"{PATH}/{token_name}")  # of an earlier try that the agent did not take up
    text = make_token(api, api.name, token_name, node=name, ttl_s=600.0)
    layout.join_token(name).parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(layout.join_token(name), text.encode() + b"\n")
    _until(lambda: int(api.get(path)["spec"]["generation"]) > before, f"the agent of node {name} has not joined again",
           f"is it running? elsewhere, hand it a token of `holdfast token create … --node {name}`")  # fmt: skip
    layout.join_token(name).unlink(missing_ok=True)
    return {"old": before, "new": int(api.get(path)["spec"]["generation"])}


def _until(true: Callable[[], bool], what: str, next_step: str) -> None:
    deadline = time.monotonic() + TAKEN_UP_WITHIN_S
    while not true():
        if time.monotonic() >= deadline:
            raise Stop(what, why=f"not within {TAKEN_UP_WITHIN_S:.0f} s", next_step=next_step, code=Exit.TIMED_OUT)
        time.sleep(LOOK_EVERY_S)
