"""`holdfast cleanup-check`."""

from __future__ import annotations

import click

from holdfast.cli.exits import Exit
from holdfast.cli.output import output_option, print_json, state_option


@click.command("cleanup-check")
@state_option
@output_option
def cleanup_check(state: str, output: str) -> int:
    """List resources that an incident has not returned.

    Checks for open Recoveries, recovery Assignments and grants, consumed recovery slots, unbound Reservations,
    suspended Assignments, emergency quota and active overrides. Exits with 1 if it finds any, so that a runbook can end
    with this command.

    \b
    Examples:
      holdfast cleanup-check
      holdfast cleanup-check -o json
    """
    from holdfast.cli.drills.leftovers import leftovers
    from holdfast.cli.drills.world import Watcher
    from holdfast.cli.platform.layout import Layout

    layout = Layout(state)
    watcher = Watcher(layout, layout.load())
    try:
        found = leftovers(watcher)
    finally:
        watcher.close()
    if output == "json":
        print_json({"clean": not found, "unreturned": found})
    else:
        click.echo("\n".join(found) if found else "all resources are returned")
    return Exit.FAILED if found else Exit.OK
