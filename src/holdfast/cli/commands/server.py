"""`holdfast server`: the servers of cells, the tokens with which they join, and their revocation."""

from __future__ import annotations

import sys

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
@state_option
@output_option
def token(cell: str, *, hosts: tuple[str, ...], expires: str, state: str, output: str) -> None:
    """Print a token with which one further machine becomes a server of a cell: `global`, or a region.

    The cell's store must be etcd. The token works once. The machine gets the keys that the cell's servers share: for
    the global cell, the key of the CA.

    \b
    Example:
      holdfast server token us-east > us-east.server
    """
    from holdfast.install.regions import global_api, server_join_string

    text = server_join_string(global_api(state), cell, ttl_s=parse_duration_s(expires), hosts=hosts)
    if output == "json":
        print_json({"cell": cell, "token": text, "expires": expires})
        return
    click.echo(text)
    role = "global" if cell == "global" else "region"
    print_note(f"next: on the new machine: holdfast init {role} --join TOKEN --advertise HOST (within {expires})")


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
