"""`holdfast token`."""

from __future__ import annotations

import re

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import note, output_option, print_json, state_option, table

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.group()
def token() -> None:
    """Create, list and revoke API tokens.

    A token is shown once, when it is made; only its hash is kept. Cells notice changes at once.

    \b
    Example:
      holdfast token create ci --tenant payments --expires 30d
    """


@token.command("create")
@click.argument("name")
@click.option("--user", default="", help="The user it stands for; its own name when not given.")
@click.option("--tenant", "tenants", multiple=True, help="A tenant it may work in; may be repeated.")
@click.option("--viewer", is_flag=True, help="It may read everything and change nothing.")
@click.option("--operator", is_flag=True, help="It may do everything an operator may.")
@click.option("--cell", "cells", multiple=True, help="Use it at this cell only; may be repeated.")
@click.option(
    "--expires", default="", metavar="DURATION", help="How long it is good, as 12h or 30d; for ever if not given."
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
    cells: tuple[str, ...],
    expires: str,
    state: str,
    output: str,
) -> None:
    """Make a token and print it: the only time it can be seen.

    \b
    Examples:
      holdfast token create ci --tenant payments --expires 30d
      holdfast kubeconfig --token "$(holdfast token create me --viewer)" > viewer.kubeconfig
    """
    import time

    from holdfast.cli.platform.layout import Layout
    from holdfast.gate.principal import OPERATORS, TENANT_PREFIX, VIEWERS
    from holdfast.gate.tokens import TokenFile

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


@token.command("list")
@state_option
@output_option
def list_tokens(state: str, output: str) -> None:
    """List the tokens there are, never their secrets.

    \b
    Example:
      holdfast token list -o json
    """
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


@token.command("revoke")
@click.argument("name")
@state_option
@output_option
def revoke(name: str, *, state: str, output: str) -> None:
    """Refuse a token from now on.

    \b
    Example:
      holdfast token revoke ci
    """
    from holdfast.cli.platform.layout import Layout
    from holdfast.gate.tokens import TokenFile

    layout = Layout(state)
    layout.load()
    if not TokenFile(layout.tokens).revoke(name):
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
