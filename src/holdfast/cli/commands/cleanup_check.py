"""`holdfast cleanup-check`."""

from __future__ import annotations

import click

from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.output import print_json


@click.command("cleanup-check")
@click.option("--only", default="", metavar="TEXT", help="Only findings that name this override, recovery or region.")
@state_option
@output_option
def cleanup_check(only: str, state: str, output: str) -> int:
    """List resources that an incident has not returned.

    Checks for open Recoveries, recovery Assignments and grants, consumed recovery slots, unbound Reservations,
    suspended Assignments, emergency quota and active overrides. Exits with 1 if it finds any, so that a runbook can end
    with this command.

    \b
    Examples:
      holdfast cleanup-check
      holdfast cleanup-check -o json
    """
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.drills.unreturned_resources import unreturned_resources
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    observer = PlatformObserver(layout, layout.load())
    try:
        found = [line for line in unreturned_resources(observer) if only in line]
    finally:
        observer.close()
    if output == "json":
        print_json({"clean": not found, "unreturned": found})
    else:
        click.echo("\n".join(found) if found else "all resources are returned")
    return ExitCode.FAILED if found else ExitCode.OK
