"""`holdfast cleanup-check`."""

from __future__ import annotations

import click

from holdfast.cli.exits import Exit
from holdfast.cli.output import output_option, print_json, state_option


@click.command("cleanup-check")
@state_option
@output_option
def cleanup_check(state: str, output: str) -> int:
    """List what an incident left behind.

    Open recoveries, recovery assignments and grants, drawn places, reservations that were never bound, suspensions,
    emergency quota, overrides and pins. Exits with 1 when there is one, so that a runbook can end with it.

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
        print_json({"clean": not found, "leftovers": found})
    else:
        click.echo("\n".join(found) if found else "nothing is left over")
    return Exit.FAILED if found else Exit.OK
