"""`holdfast repair`."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.output import print_json, table


@click.group()
def repair() -> None:
    """List stuck objects, their owners, and requested repairs.

    The repair controller requests a reschedule; it never deletes a claim itself. A stuck deletion is listed with the
    owner of its finalizer, the deadline and the owner's last heartbeat. `holdfast override create PauseRepair` stops
    repairs; `ApproveRepair` allows more of them at once.

    \b
    Examples:
      holdfast repair list
    """


@repair.command("list")
@state_option
@output_option
def list_repairs(state: str, output: str) -> int:
    """List stuck finalizers, repairs, leaked Reservations and orphaned Bindings. Exits with 1 if there is one.

    \b
    Examples:
      holdfast repair list
      holdfast repair list -o json
    """
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.drills.stuck_objects import find_stuck_objects
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    observer = PlatformObserver(layout, layout.load())
    try:
        found: list[dict[str, Any]] = find_stuck_objects(observer)
    finally:
        observer.close()
    if output == "json":
        print_json(found)
    elif not found:
        click.echo("nothing is stuck")
    else:
        columns = ("cell", "what", "object", "owner", "since", "deadline", "lastHeartbeat", "message")
        rows = [tuple(row.get(name, "") for name in columns) for row in found]
        click.echo(table(("CELL", "WHAT", "OBJECT", "OWNER", "SINCE", "DEADLINE", "LAST HEARTBEAT", "MESSAGE"), rows))
    return ExitCode.FAILED if found else ExitCode.OK
