"""`holdfast credentials`: lists, rotates and revokes the certificates of regions and nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import directory_option, output_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.platform.credentials import Credentials
    from holdfast.platform.layout import Platform

HOLDERS = click.Choice(("region", "node"))
POLL_EVERY_S = 0.3
# Time for a cell or an agent to use its new certificate. After that the command fails and the old one stays valid.
ADOPTION_TIMEOUT_S = 60.0


@click.group()
def credentials() -> None:
    """List, rotate and revoke the certificates of regions and nodes.

    A region authenticates to the global cell with the certificate of its link. A node authenticates to its region with
    the certificate it received on joining; its agent renews that certificate. Users authenticate with tokens
    (`holdfast token`).

    \b
    Examples:
      holdfast credentials list
      holdfast credentials rotate region eu-west
      holdfast credentials revoke node eu-west-1
    """


def _platform(state: str) -> tuple[Platform, Credentials, PlatformObserver]:
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.platform.credentials import Credentials
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    platform = layout.load()
    return platform, Credentials(layout), PlatformObserver(layout, platform)


@credentials.command("list")
@directory_option
@output_option
def list_(state: str, output: str) -> None:
    """List certificates with holder, expiry and state.

    \b
    Example:
      holdfast credentials list
    """
    from holdfast.model.times import seconds_text

    platform, credentials, observer = _platform(state)
    refused = credentials.revoked_serials()
    rows: list[dict[str, Any]] = []
    try:
        for region in platform.regions:
            serial, ends = credentials.link_serial(region.name), seconds_text(credentials.link_expires_s(region.name))
            rows.append(
                {
                    "holder": "region",
                    "name": region.name,
                    "serial": serial,
                    "expires": ends,
                    "revoked": serial in refused,
                }
            )
            for item in observer.try_list("nodeidentities", region.name) or ():
                spec = item["spec"]
                rows.append(
                    {
                        "holder": "node",
                        "name": item["metadata"]["name"],
                        "serial": spec.get("serial", ""),
                        "expires": spec.get("expiresAt", ""),
                        "revoked": spec["generation"] <= spec.get("revokedGeneration", 0),
                    }
                )
    finally:
        observer.close()
    if output == "json":
        print_json(rows)
        return
    shown = [
        (r["holder"], r["name"], r["serial"][:16], r["expires"], "revoked" if r["revoked"] else "valid") for r in rows
    ]
    click.echo(table(("HOLDER", "NAME", "SERIAL", "EXPIRES", "STATE"), shown))


@credentials.command()
@click.argument("holder", type=HOLDERS)
@click.argument("name")
@directory_option
@output_option
def rotate(holder: str, name: str, state: str, output: str) -> None:
    """Replace a certificate while the region or node runs, then revoke the old one.

    A region's cell loads its new certificate without a restart. A node joins again with a new key. Tasks keep running
    in both cases. The old certificate is revoked only after the new one is in use.

    \b
    Examples:
      holdfast credentials rotate region eu-west
      holdfast credentials rotate node eu-west-1
    """
    rotated = _rotate_region(state, name) if holder == "region" else _rotate_node(state, name)
    if output == "json":
        print_json({"holder": holder, "name": name, "result": "rotated", **rotated})
    else:
        click.echo(f"{holder} {name}: certificate rotated, the old one is revoked")


@credentials.command()
@click.argument("holder", type=HOLDERS)
@click.argument("name")
@directory_option
@output_option
@click.pass_context
def revoke(ctx: click.Context, holder: str, name: str, state: str, output: str) -> None:
    """Revoke the certificate of a region or node, for example after theft.

    A revoked region is partitioned from the global cell at once; `rotate` reconnects it. A revoked node loses its
    lease, is fenced, and its replicas are rescheduled.

    \b
    Examples:
      holdfast credentials revoke region eu-west
      holdfast credentials revoke node eu-west-1
    """
    if holder == "node":
        from holdfast.cli.commands.node import revoke as revoke_node

        ctx.invoke(revoke_node, name=name, state=state, output=output)
        return
    platform, credentials, observer = _platform(state)
    observer.close()
    _require_region(platform, name)
    serial = credentials.link_serial(name)
    credentials.revoke(serial)
    if output == "json":
        print_json({"holder": holder, "name": name, "result": "revoked", "serial": serial})
    else:
        click.echo(f"region {name}: certificate revoked")
        print_note(f"next: holdfast credentials rotate region {name} reconnects it")


def _require_region(platform: Platform, name: str) -> None:
    known = [region.name for region in platform.regions]
    if name not in known:
        raise CommandError(f"region {name}: not found (expected one of {', '.join(known)})", code=ExitCode.USAGE)


def _rotate_region(state: str, name: str) -> dict[str, Any]:
    platform, credentials, observer = _platform(state)
    try:
        _require_region(platform, name)
        old = credentials.link_serial(name)
        new = credentials.renew_link(name)
        # Revoke the old certificate only after the region's metrics show that its link uses the new one.
        ends_s = credentials.link_expires_s(name)
        _wait_until(
            lambda: _shown_until_s(observer, name) == ends_s,
            f"region {name}: the cell does not use its new certificate; the old one is still valid",
            f"read the log of cell-{name}",
        )
        credentials.revoke(old)
        last_contact = _last_contact_at(observer, name)
        _wait_until(
            lambda: _last_contact_at(observer, name) > last_contact,
            f"region {name}: no contact since the old certificate was revoked",
            f"read the log of cell-{name} (new certificate {new})",
        )
    finally:
        observer.close()
    return {"old": old, "new": new}


def _shown_until_s(observer: PlatformObserver, region: str) -> float:
    """Expiry time of the certificate that the region's link uses, from the cell's metrics."""
    from holdfast.drills.counters import read_counters

    family = "holdfast_link_certificate_expiry_timestamp_seconds"
    return read_counters(observer, (family,)).get((region, family), 0.0)


def _last_contact_at(observer: PlatformObserver, region: str) -> str:
    return str(observer.get("regions", region)["status"].get("health", {}).get("lastContactAt", ""))


def _rotate_node(state: str, name: str) -> dict[str, Any]:
    from holdfast.cli.commands.node import find_node
    from holdfast.client.sync_api import ApiRefusal
    from holdfast.platform.join_tokens import JOIN_TOKENS_PATH, create_join_token
    from holdfast.platform.layout import Layout, write_atomically

    layout = Layout(state)
    api, _ = find_node(state, name)
    path = f"/apis/holdfast.dev/v1/nodeidentities/{name}"
    before = int(api.get(path)["spec"]["generation"])
    token_name = f"rotate-{name}-{before}"
    with contextlib.suppress(ApiRefusal):
        api.request("DELETE", f"{JOIN_TOKENS_PATH}/{token_name}")  # left by an earlier, unfinished rotation
    text = create_join_token(api, api.name, token_name, node=name, ttl_s=600.0)
    layout.join_token(name).parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(layout.join_token(name), text.encode() + b"\n")
    command = f"holdfast token create NAME --join {api.name} --node {name}"
    _wait_until(
        lambda: int(api.get(path)["spec"]["generation"]) > before,
        f"node {name}: its agent has not joined again",
        f"start the agent; on another machine, with the token of {command}",
    )
    layout.join_token(name).unlink(missing_ok=True)
    return {"old": before, "new": int(api.get(path)["spec"]["generation"])}


def _wait_until(condition: Callable[[], bool], what: str, next_step: str) -> None:
    deadline = time.monotonic() + ADOPTION_TIMEOUT_S
    while not condition():
        if time.monotonic() >= deadline:
            text = f"{what} (waited {ADOPTION_TIMEOUT_S:.0f} s)"
            raise CommandError(text, next_step=next_step, code=ExitCode.TIMED_OUT)
        time.sleep(POLL_EVERY_S)
