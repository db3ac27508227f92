"""`holdfast server`: the servers of cells, the tokens with which they join, and their revocation."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from holdfast.cli.commands.tokens import parse_duration_s
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

YES = click.option("--yes", is_flag=True, help="Do not ask.")
REASON = click.option("--reason", default="", help="Why, for the audit log.")


@click.group()
def server() -> None:
    """Let further servers join a cell, list and revoke them.

    \b
    Examples:
      holdfast server token global
      holdfast server list
      holdfast server revoke global-1a2b3c4d
    """


@server.command()
@click.argument("cell")
@click.option("--host", "hosts", multiple=True, help="Allow only these names in the server's certificate.")
@click.option("--expires", default="1h", show_default=True, metavar="DURATION", help="Lifetime of the token.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 7),
    help="Planned number of servers: print a token for each that has not joined yet. Default: one token.",
)
@state_option
@output_option
def token(cell: str, *, hosts: tuple[str, ...], expires: str, replicas: int | None, state: str, output: str) -> None:
    """Print a token with which one further machine becomes a server of a cell: `global`, or a region.

    The cell's store must be etcd. The token works once. The machine gets the keys that the cell's servers share: for
    the global cell, the key of the CA.

    \b
    Examples:
      holdfast server token us-east > us-east.server
      holdfast server token us-east --replicas 3 > us-east.servers
    """
    from holdfast.install.regions import global_api, missing_server_join_strings, server_join_string

    api, ttl_s = global_api(state), parse_duration_s(expires)
    if replicas is None:
        texts = [server_join_string(api, cell, ttl_s=ttl_s, hosts=hosts)]
    else:
        texts = missing_server_join_strings(api, cell, replicas, ttl_s=ttl_s, hosts=hosts)
    if output == "json":
        one = {"token": texts[0]} if replicas is None else {"tokens": texts, "replicas": replicas}
        print_json({"cell": cell, **one, "expires": expires})
        return
    print_server_tokens(cell, texts, expires)


def print_server_tokens(cell: str, texts: Sequence[str], expires: str) -> None:
    """The tokens on standard output, one per line, and the command of the other machines as a note."""
    for text in texts:
        click.echo(text)
    role = "global" if cell == "global" else "region"
    command = f"holdfast init {role} --join TOKEN --advertise HOST (within {expires})"
    if len(texts) == 1:
        print_note(f"next: on the new machine: {command}")
    elif texts:
        print_note(f"next: on each of the {len(texts)} new machines, one after the other: {command}")
    else:
        print_note(f"cell {cell}: no server is missing")
        print_note("next: to replace a lost server, revoke it first: holdfast server revoke NAME")


@server.command("list")
@state_option
@output_option
def list_servers(*, state: str, output: str) -> None:
    """List the servers of all cells.

    \b
    Example:
      holdfast server list
    """
    from holdfast.install.regions import global_api

    found = global_api(state).list("servers")
    rows = [
        {
            "name": item["metadata"]["name"],
            "cell": item["spec"]["cell"],
            "url": item["spec"]["url"],
            "revoked": item["spec"].get("revoked", False),
            "expires": item.get("status", {}).get("expiresAt", ""),
        }
        for item in found
    ]
    if output == "json":
        print_json(rows)
        return
    lines = [(r["name"], r["cell"], r["url"], "yes" if r["revoked"] else "no", r["expires"]) for r in rows]
    click.echo(table(("NAME", "CELL", "URL", "REVOKED", "EXPIRES"), lines))


@server.command()
@click.argument("name")
@REASON
@YES
@state_option
@output_option
def revoke(name: str, *, reason: str, yes: bool, state: str, output: str) -> None:
    """Revoke one server of a cell: its certificates are refused, and its etcd member is removed.

    Refused for the last server of a cell. Shows the effects and asks before it revokes.

    \b
    Example:
      holdfast server revoke us-east-1a2b3c4d --reason "disk failed"
    """
    revoke_asking("servers", name, reason=reason, yes=yes, state=state, output=output)


def revoke_asking(plural: str, name: str, *, reason: str, yes: bool, state: str, output: str) -> None:
    """Asks the global cell for the effects, then the user, and then revokes."""
    from holdfast.client.sync_api import ApiRefusal
    from holdfast.install.regions import global_api, revoke

    api = global_api(state)
    try:
        done = revoke(api, plural, name, confirm=yes, reason=reason)
    except ApiRefusal as refusal:
        if refusal.status != 409 or yes or "confirm it" not in refusal.why:
            raise
        effects = refusal.why.partition("; next:")[0]
        if not sys.stdin.isatty():
            raise CommandError(effects, next_step="add --yes to revoke it", code=ExitCode.CONFLICT) from None
        click.confirm(f"{effects}\nRevoke?", abort=True, err=True)
        done = revoke(api, plural, name, confirm=True, reason=reason)
    if output == "json":
        print_json({"name": name, **done})
        return
    what = ", ".join(done["revoked"]) or "no server"
    print_note(f"{plural.removesuffix('s')} {name}: revoked ({what}; {len(done['tokens'])} join tokens deleted)")
    if done["next"]:
        print_note(f"next: {done['next']}")
