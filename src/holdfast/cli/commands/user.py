"""`holdfast user`."""

from __future__ import annotations

import click

from holdfast.cli import shell_completion
from holdfast.cli.commands.tokens import parse_duration_s
from holdfast.cli.options import directory_option, output_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table


@click.group()
def user() -> None:
    """Add, list and remove people: a role binding, and a credential.

    \b
    Examples:
      holdfast user add ann --role operator
      holdfast user add bob --role tenant-admin --tenant payments --certificate
    """


@user.command("add")
@click.argument("name")
@click.option("--role", required=True, help="A built-in role such as viewer, or a ClusterRole.")
@click.option(
    "--tenant", shell_complete=shell_completion.complete_tenants, default="", help="Give the role in this tenant only."
)
@click.option("--certificate", is_flag=True, help="Issue a client certificate instead of a token.")
@click.option("--no-credential", is_flag=True, help="Only bind the role, for a user of an OIDC issuer.")
@click.option("--expires", default="30d", show_default=True, metavar="DURATION", help="Lifetime of the credential.")
@directory_option
@output_option
def add(
    *, name: str, role: str, tenant: str, certificate: bool, no_credential: bool, expires: str, state: str, output: str
) -> None:
    """Bind a role to a user and create a credential. A token is printed once and cannot be shown again.

    \b
    Examples:
      holdfast user add ann --role viewer
      holdfast user add bob --role tenant-user --tenant payments --certificate
      holdfast kubeconfig --user bob > bob.kubeconfig
    """
    import time

    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.credentials import token_file
    from holdfast.platform.layout import Layout
    from holdfast.platform.people import binding_of, issue_user_certificate

    lasts_s = parse_duration_s(expires)
    if name.startswith(("holdfast:", "system:")) or not name.strip():
        text = f"user {name}: names that begin with holdfast: or system: belong to the platform"
        raise CommandError(text, next_step="choose another name", code=ExitCode.USAGE)
    layout = Layout(state)
    path, body = binding_of(name, role, tenant)
    api = connect_cell(layout, layout.load(), "global")
    try:
        api.request("POST", path, body)
    finally:
        api.close()
    made: dict[str, str] = {"user": name, "role": role, "tenant": tenant, "binding": body["metadata"]["name"]}
    if certificate:
        made["serial"] = issue_user_certificate(layout, name, max(1, round(lasts_s / 86_400)))
    elif not no_credential:
        try:
            made["token"] = token_file(state).issue(f"user-{name}", name, (), expires_at_s=time.time() + lasts_s)
        except ValueError as error:
            raise CommandError(
                str(error), next_step=f"holdfast token revoke user-{name}", code=ExitCode.CONFLICT
            ) from None
    if output == "json":
        print_json(made)
        return
    print_note(f"user {name}: {role}" + (f" in tenant {tenant}" if tenant else " everywhere"))
    if certificate:
        print_note(f"next: holdfast kubeconfig --user {name} > {name}.kubeconfig")
    elif "token" in made:
        click.echo(made["token"])


@user.command("list")
@directory_option
@output_option
def list_users(*, state: str, output: str) -> None:
    """List who has which role.

    \b
    Example:
      holdfast user list
    """
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout
    from holdfast.platform.people import bindings

    layout = Layout(state)
    api = connect_cell(layout, layout.load(), "global")
    try:
        found = bindings(api)
    finally:
        api.close()
    rows = [
        {
            "kind": subject["kind"],
            "name": subject["name"],
            "role": item["roleRef"]["name"],
            "tenant": item["metadata"].get("namespace", ""),
            "binding": item["metadata"]["name"],
        }
        for item in found
        for subject in item.get("subjects", [])
    ]
    if output == "json":
        print_json(rows)
    else:
        lines = [(r["kind"], r["name"], r["role"], r["tenant"] or "all", r["binding"]) for r in rows]
        click.echo(table(("KIND", "NAME", "ROLE", "TENANT", "BINDING"), lines))


@user.command("remove")
@click.argument("name")
@directory_option
@output_option
def remove(*, name: str, state: str, output: str) -> None:
    """Remove a user's bindings, token and certificate. Open watches of the user end within seconds.

    \b
    Example:
      holdfast user remove bob
    """
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.credentials import token_file
    from holdfast.platform.layout import Layout
    from holdfast.platform.people import remove_bindings, revoke_user_certificate

    layout = Layout(state)
    api = connect_cell(layout, layout.load(), "global")
    try:
        count = remove_bindings(api, name)
    finally:
        api.close()
    had_token = token_file(state).revoke(f"user-{name}")
    had_certificate = revoke_user_certificate(layout, name)
    if not (count or had_token or had_certificate):
        raise CommandError(f"user {name}: not found", next_step="holdfast user list")
    if output == "json":
        print_json({"user": name, "bindings": count, "token": had_token, "certificate": had_certificate})
    else:
        print_note(f"user {name}: removed {count} bindings; its credentials are revoked")
