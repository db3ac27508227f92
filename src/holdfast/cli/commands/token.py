"""`holdfast token`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import directory_option, note, output_option, print_json, table

if TYPE_CHECKING:
    from holdfast.cli.http import Api

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.group()
def token() -> None:
    """Create, list and revoke API tokens, and the join tokens of nodes.

    A token is shown once, when it is made; only its hash is kept. Cells notice changes at once. With --join REGION the
    commands are about the tokens with which that region's nodes join.

    \b
    Examples:
      holdfast token create ci --tenant payments --expires 30d
      holdfast token create rack-7 --join eu-west --uses 12 --expires 2h
    """


@token.command("create")
@click.argument("name")
@click.option("--user", default="", help="The user it stands for; its own name when not given.")
@click.option("--tenant", "tenants", multiple=True, help="A tenant it may work in; may be repeated.")
@click.option("--viewer", is_flag=True, help="It may read everything and change nothing.")
@click.option("--operator", is_flag=True, help="It may do everything an operator may.")
@click.option("--cell", "cells", multiple=True, help="Use it at this cell only; may be repeated.")
@click.option("--join", "region", default="", metavar="REGION", help="A token with which nodes join this region.")
@click.option(
    "--node", "node_name", default="", help="With --join: the one node it is for, which may have joined before."
)
@click.option("--uses", type=click.IntRange(1, 256), default=1, show_default=True, help="With --join: how many nodes.")
@click.option(
    "--certificate",
    "certificate",
    default="30d",
    show_default=True,
    metavar="DURATION",
    help="With --join: how long each certificate is good; agents renew theirs in time.",
)
@click.option(
    "--expires",
    default="",
    metavar="DURATION",
    help="How long it is good, as 12h or 30d; for ever if not given, or 1h with --join.",
)
@directory_option
@output_option
def create(
    *,
    name: str,
    user: str,
    tenants: tuple[str, ...],
    viewer: bool,
    operator: bool,
    cells: tuple[str, ...],
    region: str,
    node_name: str,
    uses: int,
    certificate: str,
    expires: str,
    state: str,
    output: str,
) -> None:
    """Make a token and print it: the only time it can be seen.

    \b
    Examples:
      holdfast token create ci --tenant payments --expires 30d
      holdfast token create n7 --join eu-west --node n7 > join-token
      holdfast kubeconfig --token "$(holdfast token create me --viewer)" > viewer.kubeconfig
    """
    import time

    from holdfast.cli.platform.layout import Layout
    from holdfast.gate.principal import OPERATORS, TENANT_PREFIX, VIEWERS
    from holdfast.gate.tokens import TokenFile

    if region:
        if tenants or viewer or operator or cells or user:
            why = "a join token lets nodes join, and nothing else"
            raise Stop(f"token {name} was not made", why=why, next_step="leave the other options out", code=Exit.USAGE)
        lasts_s = duration_s(expires or "1h"), duration_s(certificate)
        create_join(name, region, node_name, uses, lasts_s, state=state, output=output)
        return
    if not (tenants or viewer or operator):
        raise Stop(
            "a token that may do nothing is of no use",
            next_step="say --tenant NAME, --viewer or --operator",
            code=Exit.USAGE,
        )
    groups = (
        *(f"{TENANT_PREFIX}{tenant}" for tenant in tenants),
        *((VIEWERS,) if viewer else ()),
        *((OPERATORS,) if operator else ()),
    )
    layout = Layout(state)
    layout.load()
    expires_at_s = time.time() + duration_s(expires) if expires else None
    try:
        made = TokenFile(layout.tokens).issue(name, user or name, groups, expires_at_s=expires_at_s, cells=cells)
    except ValueError as error:
        raise Stop(f"token {name} was not made", why=str(error), code=Exit.CONFLICT) from None
    if output == "json":
        print_json({"name": name, "user": user or name, "groups": groups, "token": made})
    else:
        click.echo(made)


def create_join(
    name: str, region: str, node: str, uses: int, lasts_s: tuple[float, float], *, state: str, output: str
) -> None:
    """`lasts_s`: how long the token is good, and how long a certificate that it gives."""
    from holdfast.cli.platform.enrol import make_token

    text = make_token(
        region_api(state, region), region, name, node=node, uses=uses, ttl_s=lasts_s[0], certificate_s=lasts_s[1]
    )
    if output == "json":
        print_json({"name": name, "region": region, "node": node, "uses": uses, "token": text})
    else:
        click.echo(text)


def region_api(state: str, region: str) -> Api:
    from holdfast.cli.platform.layout import Layout
    from holdfast.cli.platform.survey import connect

    layout = Layout(state)
    platform = layout.load()
    if region not in {planned.name for planned in platform.regions}:
        names = ", ".join(planned.name for planned in platform.regions)
        raise Stop(f"there is no region {region}", next_step=f"the regions are {names}", code=Exit.USAGE)
    return connect(layout, platform, region)


@token.command("list")
@click.option("--join", "region", default="", metavar="REGION", help="The join tokens of this region instead.")
@directory_option
@output_option
def list_tokens(region: str, state: str, output: str) -> None:
    """List the tokens there are, never their secrets.

    \b
    Examples:
      holdfast token list -o json
      holdfast token list --join eu-west
    """
    if region:
        list_join(region_api(state, region), output)
        return
    from holdfast.cli.platform.layout import Layout
    from holdfast.gate.tokens import TokenFile

    layout = Layout(state)
    layout.load()
    tokens = TokenFile(layout.tokens).all()
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


def list_join(api: Api, output: str) -> None:
    found = api.list("jointokens")
    rows = [
        {
            "name": item["metadata"]["name"], "node": item["spec"].get("node", ""), "uses": item["spec"]["uses"],
            "used": [use["node"] for use in item["status"].get("used", [])],
            "made": item["metadata"]["creationTimestamp"], "ttlSeconds": item["spec"]["ttlSeconds"],
        }
        for item in found
    ]  # fmt: skip
    if output == "json":
        print_json(rows)
        return
    lines = [
        (r["name"], r["node"] or "any", f"{len(r['used'])}/{r['uses']}", r["made"], f"{r['ttlSeconds']:g}s")
        for r in rows
    ]
    click.echo(table(("NAME", "NODE", "USED", "MADE", "GOOD FOR"), lines))


@token.command("revoke")
@click.argument("name")
@click.option("--join", "region", default="", metavar="REGION", help="A join token of this region.")
@directory_option
@output_option
def revoke(name: str, *, region: str, state: str, output: str) -> None:
    """Refuse a token from now on. Nodes that joined with it stay; `holdfast node revoke` is about those.

    \b
    Examples:
      holdfast token revoke ci
      holdfast token revoke rack-7 --join eu-west
    """
    from holdfast.cli.platform.layout import Layout
    from holdfast.gate.tokens import TokenFile

    layout = Layout(state)
    layout.load()
    if region:
        region_api(state, region).request("DELETE", f"/apis/holdfast.dev/v1/jointokens/{quote(name)}")
    elif not TokenFile(layout.tokens).revoke(name):
        raise Stop(f"there is no token {name}", next_step="holdfast token list shows them")
    if output == "json":
        print_json({"name": name, "revoked": True})
    else:
        note(f"revoked {name}")


def duration_s(text: str) -> float:
    """`90s`, `15m`, `12h`, `30d`."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None:
        raise Stop(f"{text!r} is not a duration", why="it is written as 90s, 15m, 12h or 30d", code=Exit.USAGE)
    return int(match[1]) * float(UNITS_S[match[2]])
