"""`holdfast access`."""

from __future__ import annotations

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.output import print_json, table


@click.group()
def access() -> None:
    """Ask who may do what.

    \b
    Examples:
      holdfast access check delete workloads -n payments
      holdfast access who-can patch nodes --region eu-west
    """


_region = click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    default="",
    help="Ask this region; without it, the global cell.",
)
_namespace = click.option("-n", "--namespace", default="", help="In this tenant.")


@access.command("check")
@click.argument("verb")
@click.argument("resource")
@_namespace
@_region
@click.option("--as", "user", default="", help="Ask about this user instead of yourself.")
@click.option("--group", "groups", multiple=True, help="Ask about a member of this group; may be repeated.")
@state_option
@output_option
def check(
    *,
    verb: str,
    resource: str,
    namespace: str,
    region: str,
    user: str,
    groups: tuple[str, ...],
    state: str,
    output: str,
) -> None:
    """Say whether a verb on a resource is allowed. The exit status is 1 if it is not.

    \b
    Examples:
      holdfast access check create workloads -n payments
      holdfast access check list nodes --as ann --region eu-west -o json
    """
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout
    from holdfast.platform.people import access_attributes, access_review

    layout = Layout(state)
    api = connect_cell(layout, layout.load(), region or "global")
    try:
        found = access_review(api, access_attributes(verb, resource, namespace), user, groups)
    finally:
        api.close()
    if output == "json":
        print_json(found)
    else:
        click.echo("yes" if found["allowed"] else "no")
    if not found["allowed"]:
        raise CommandError(found.get("reason", "not allowed"), next_step=f"holdfast access who-can {verb} {resource}")


@access.command("who-can")
@click.argument("verb")
@click.argument("resource")
@_namespace
@_region
@state_option
@output_option
def who_can(*, verb: str, resource: str, namespace: str, region: str, state: str, output: str) -> None:
    """List the users and groups that may do this. Groups of certificates and tokens are listed by their built-in role.

    \b
    Examples:
      holdfast access who-can delete workloads -n payments
      holdfast access who-can create secrets -n payments -o json
    """
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout
    from holdfast.platform.people import access_attributes, subjects_allowed

    layout = Layout(state)
    api = connect_cell(layout, layout.load(), region or "global")
    try:
        found = list(subjects_allowed(api, access_attributes(verb, resource, namespace)))
    finally:
        api.close()
    if output == "json":
        print_json([{"kind": kind, "name": name} for kind, name in found])
    else:
        click.echo(table(("KIND", "NAME"), found))
