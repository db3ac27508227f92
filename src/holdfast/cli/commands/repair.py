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
      holdfast repair finalizer Workload payments/risk-api --finalizer holdfast.dev/assignments
    """


@repair.command("list")
@state_option
@output_option
def list_repairs(state: str, output: str) -> int:
    """List stuck finalizers, repairs, leaked Reservations and broken links of records. Exits with 1 if it finds any.

    Links are compared both ways: a Binding without a replica, a replica without its Binding, a recovery slot without
    its budget, an address without a serving replica. Their owners repair them within seconds.

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


@repair.command("finalizer")
@click.argument("kind")
@click.argument("name", metavar="[TENANT/]NAME")
@click.option("--finalizer", required=True, help="The finalizer to remove, as `holdfast repair list` names it.")
@click.option("--cell", default="global", show_default=True, help="The cell of the object: global, or a region.")
@click.option("--foreign", is_flag=True, help="Remove a finalizer that Holdfast does not know. You vouch for its work.")
@click.option("--yes", "approved", is_flag=True, help="Approve the removal. Without it nothing is changed (dry run).")
@state_option
@output_option
def remove_finalizer(
    kind: str, name: str, *, finalizer: str, cell: str, foreign: bool, approved: bool, state: str, output: str
) -> int:
    """Remove a stale finalizer from an object whose deletion is stuck.

    A finalizer of Holdfast is removed only past its deadline and only if nothing is left that its owner would clean up.
    Without --yes the server checks the same request and changes nothing. The audit log records who removed it.

    \b
    Examples:
      holdfast repair finalizer Workload payments/risk-api --finalizer holdfast.dev/assignments
      holdfast repair finalizer Tenant search --finalizer holdfast.dev/tenant-contents --yes
    """
    import time

    import msgspec

    from holdfast.drills.finalizer_repair import repair_finalizer
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.foundation.exit_codes import CommandError
    from holdfast.model.kinds import BY_NAME
    from holdfast.platform.layout import Layout

    entry = BY_NAME.get(kind)
    if entry is None:
        text = f"kind {kind}: not known (expected one of {', '.join(sorted(BY_NAME))})"
        raise CommandError(text, next_step="holdfast repair list", code=ExitCode.USAGE)
    namespace, _, plain = name.rpartition("/")
    layout = Layout(state)
    observer = PlatformObserver(layout, layout.load())
    try:
        if cell != "global" and cell not in observer.regions:
            raise CommandError(f"cell {cell}: not found", next_step="holdfast get regions", code=ExitCode.USAGE)
        found = repair_finalizer(
            observer.api(cell),
            cell,
            entry,
            (namespace, plain),
            finalizer,
            now=time.time(),
            foreign=foreign,
            approved=approved,
        )
    finally:
        observer.close()
    if output == "json":
        print_json(msgspec.to_builtins(found))
    elif found.left:
        click.echo(f"{found.object}: {found.owner} has work left: {', '.join(found.left)}")
        click.echo("nothing was removed; see docs/runbooks/stuck-repair.md")
    elif found.removed:
        click.echo(f"{found.object}: finalizer {finalizer} of {found.owner} removed")
    else:
        click.echo(f"{found.object}: finalizer {finalizer} of {found.owner} is stale; add --yes to remove it")
    return ExitCode.FAILED if found.left else ExitCode.OK
