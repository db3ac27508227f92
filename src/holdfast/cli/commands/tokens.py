"""`holdfast token`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.group()
def tokens() -> None:
    """Create, list and revoke API tokens and join tokens.

    A token is shown once, on creation; only its hash is stored. Cells apply changes at once. With --join REGION the
    commands manage the join tokens of that region's nodes, over the API and from any machine. `list` and `revoke` with
    --join global manage those of regions and servers.

    \b
    Examples:
      holdfast token create ci --tenant payments --expires 30d
      holdfast token create rack-7 --join eu-west --uses 12 --expires 2h
    """


@tokens.command("create")
@click.argument("name")
@click.option("--user", default="", help="User name; the token's name if not set.")
@click.option(
    "--tenant",
    "tenants",
    shell_complete=shell_completion.complete_tenants,
    multiple=True,
    help="Grant access to this tenant; may be repeated.",
)
@click.option("--viewer", is_flag=True, help="Grant read access to everything.")
@click.option("--operator", is_flag=True, help="Grant the operator role.")
@click.option("--monitor", is_flag=True, help="Grant access to /metrics and nothing else, for Prometheus.")
@click.option("--cell", "cells", multiple=True, help="Restrict the token to this cell; may be repeated.")
@click.option("--join", "region", default="", metavar="REGION", help="Create a join token for nodes of this region.")
@click.option(
    "--node",
    "node_name",
    shell_complete=shell_completion.complete_nodes,
    default="",
    help="With --join: restrict the token to this node, also to rejoin.",
)
@click.option("--uses", type=click.IntRange(1, 256), default=1, show_default=True, help="With --join: number of uses.")
@click.option(
    "--certificate",
    "certificate",
    default="30d",
    show_default=True,
    metavar="DURATION",
    help="With --join: lifetime of each node certificate. Agents renew their certificates.",
)
@click.option(
    "--expires",
    default="",
    metavar="DURATION",
    help="Lifetime, such as 12h or 30d. Default: unlimited, or 1h with --join.",
)
@state_option
@output_option
def create(
    *,
    name: str,
    user: str,
    tenants: tuple[str, ...],
    viewer: bool,
    operator: bool,
    monitor: bool,
    cells: tuple[str, ...],
    region: str,
    node_name: str,
    uses: int,
    certificate: str,
    expires: str,
    state: str,
    output: str,
) -> None:
    """Create a token and print it. It cannot be shown again.

    \b
    Examples:
      holdfast token create ci --tenant payments --expires 30d
      holdfast token create n7 --join eu-west --node n7 > join-token
      holdfast kubeconfig --token "$(holdfast token create me --viewer)" > viewer.kubeconfig
    """
    import time

    from holdfast.model.principal import MONITORS, OPERATORS, TENANT_PREFIX, VIEWERS
    from holdfast.platform.credentials import token_file

    if region == "global":
        raise CommandError(
            f"token {name}: nodes join a region, not the global cell",
            next_step="holdfast region token NAME for a region, holdfast server token CELL for a server",
            code=ExitCode.USAGE,
        )
    if region:
        if tenants or viewer or operator or monitor or cells or user:
            options = "--tenant, --viewer, --operator, --monitor, --cell, --user"
            text = f"token {name}: a join token grants no API access ({options})"
            raise CommandError(text, next_step=f"holdfast token create {name} --join {region}", code=ExitCode.USAGE)
        lasts_s = parse_duration_s(expires or "1h"), parse_duration_s(certificate)
        create_join_token(name, region, node_name, uses, lasts_s, state=state, output=output)
        return
    if not (tenants or viewer or operator or monitor):
        raise CommandError(
            f"token {name}: no access granted (expected --tenant, --viewer, --operator or --monitor)",
            next_step=f"holdfast token create {name} --viewer",
            code=ExitCode.USAGE,
        )
    groups = (
        *(f"{TENANT_PREFIX}{tenant}" for tenant in tenants),
        *((VIEWERS,) if viewer else ()),
        *((OPERATORS,) if operator else ()),
        *((MONITORS,) if monitor else ()),
    )
    expires_at_s = time.time() + parse_duration_s(expires) if expires else None
    try:
        made = token_file(state).issue(name, user or name, groups, expires_at_s=expires_at_s, cells=cells)
    except ValueError as error:
        raise CommandError(
            f"token {name}: {error}", next_step=f"holdfast token revoke {name}", code=ExitCode.CONFLICT
        ) from None
    if output == "json":
        print_json({"name": name, "user": user or name, "groups": groups, "token": made})
    else:
        click.echo(made)


def create_join_token(
    name: str, region: str, node: str, uses: int, lasts_s: tuple[float, float], *, state: str, output: str
) -> None:
    """Creates a join token and prints it. `lasts_s` holds the lifetimes of the token and of the node certificates."""
    from holdfast.platform.join_tokens import create_join_token

    text = create_join_token(
        region_api(state, region), region, name, node=node, uses=uses, ttl_s=lasts_s[0], certificate_s=lasts_s[1]
    )
    if output == "json":
        print_json({"name": name, "region": region, "node": node, "uses": uses, "token": text})
    else:
        click.echo(text)


def region_api(state: str, region: str) -> CellApi:
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    platform = layout.load()
    if region != "global" and region not in {planned.name for planned in platform.regions}:
        names = ", ".join(planned.name for planned in platform.regions)
        raise CommandError(f"region {region}: not found (expected one of {names})", code=ExitCode.USAGE)
    return connect_cell(layout, platform, region)


@tokens.command("list")
@click.option("--join", "region", default="", metavar="REGION", help="List the join tokens of this region.")
@state_option
@output_option
def list_tokens(region: str, state: str, output: str) -> None:
    """List tokens, without their secrets.

    \b
    Examples:
      holdfast token list -o json
      holdfast token list --join eu-west
    """
    if region:
        list_join_tokens(region_api(state, region), output)
        return
    from holdfast.platform.credentials import token_file

    tokens = token_file(state).all()
    if output == "json":
        print_json(
            [
                {"name": t.name, "user": t.user, "groups": t.groups, "expires": t.expires, "cells": t.cells}
                for t in tokens
            ]
        )
        return
    rows = [(t.name, t.user, ",".join(t.groups), t.expires or "never", ",".join(t.cells) or "all") for t in tokens]
    click.echo(table(("NAME", "USER", "GROUPS", "EXPIRES", "CELLS"), rows))


def list_join_tokens(api: CellApi, output: str) -> None:
    found = api.list("jointokens")
    rows = [
        {
            "name": item["metadata"]["name"],
            "node": item["spec"].get("node", ""),
            "for": _purpose(item["spec"]),
            "uses": item["spec"]["uses"],
            "used": [use["node"] for use in item["status"].get("used", [])],
            "created": item["metadata"]["creationTimestamp"],
            "ttlSeconds": item["spec"]["ttlSeconds"],
        }
        for item in found
    ]
    if output == "json":
        print_json(rows)
        return
    lines = [
        (r["name"], r["for"], f"{len(r['used'])}/{r['uses']}", r["created"], f"{r['ttlSeconds']:g}s") for r in rows
    ]
    click.echo(table(("NAME", "FOR", "USED", "CREATED", "TTL"), lines))


def _purpose(spec: dict[str, Any]) -> str:
    """What joins with the token."""
    if spec.get("region"):
        return f"{'server of' if spec.get('server') else 'region'} {spec['region']}"
    return f"node {spec['node']}" if spec.get("node") else "any node"


@tokens.command("revoke")
@click.argument("name")
@click.option("--join", "region", default="", metavar="REGION", help="Revoke a join token of this region.")
@state_option
@output_option
def revoke(name: str, *, region: str, state: str, output: str) -> None:
    """Revoke a token. Nodes that joined with it keep their certificates; see `holdfast node revoke`.

    \b
    Examples:
      holdfast token revoke ci
      holdfast token revoke rack-7 --join eu-west
    """
    from holdfast.platform.credentials import token_file

    if region:
        region_api(state, region).request("DELETE", f"/apis/holdfast.dev/v1/jointokens/{quote(name)}")
    elif not token_file(state).revoke(name):
        raise CommandError(f"token {name}: not found", next_step="holdfast token list")
    if output == "json":
        print_json({"name": name, "revoked": True})
    else:
        print_note(f"token {name}: revoked")


def parse_duration_s(text: str) -> float:
    """Parses `90s`, `15m`, `12h` or `30d` to seconds."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None:
        raise CommandError(
            f"{text}: not a duration (expected a form such as 90s, 15m, 12h or 30d)", code=ExitCode.USAGE
        )
    return int(match[1]) * float(UNITS_S[match[2]])
