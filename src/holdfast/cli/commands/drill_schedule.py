"""`holdfast drill schedule`."""

from __future__ import annotations

import time

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import directory_option, output_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table


@click.group()
def schedule() -> None:
    """Run drills on a schedule, so that every promise stays proven.

    The supervisor of `holdfast up` starts them, one at a time. A scheduled drill does not start during planned
    maintenance, or while the fleet is not healthy; the history says so. A failed one is sent to NotificationReceivers.

    \b
    Examples:
      holdfast drill schedule add region-loss --region eu-central --cron "0 3 * * 0"
      holdfast drill schedule list
      holdfast drill schedule remove region-loss-eu-central
    """


@schedule.command("add")
@click.argument("drill", shell_complete=shell_completion.complete_drills)
@click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    required=True,
    help="Region in which the failure happens.",
)
@click.option("--cron", required=True, help='Schedule as in cron, for example "0 3 * * 0": Sundays at 3.')
@click.option("--time-zone", default="UTC", show_default=True, help="IANA name of the schedule's time zone.")
@click.option("--name", default="", help="Name of the schedule; DRILL-REGION without it.")
@directory_option
@output_option
def add(drill: str, *, region: str, cron: str, time_zone: str, name: str, state: str, output: str) -> None:
    """Add a schedule, or replace the one of the same name.

    \b
    Example:
      holdfast drill schedule add region-loss --region eu-central --cron "0 3 * * 0" --time-zone Europe/Berlin
    """
    import msgspec

    from holdfast.drills.catalog import DRILLS
    from holdfast.platform.drill_schedule import DrillSchedule, add_schedule, next_time
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    regions = [r.name for r in layout.load().regions]
    for what, given, known in (("drill", drill, list(DRILLS)), ("region", region, regions)):
        if given not in known:
            raise CommandError(f"{what} {given}: not found (expected one of {', '.join(known)})", code=ExitCode.USAGE)
    entry = DrillSchedule(name or f"{drill}-{region}", drill, region, cron, time.time(), time_zone)
    add_schedule(layout, entry)
    if output == "json":
        print_json(msgspec.to_builtins(entry))
    else:
        print_note(f"drill schedule {entry.name}: next at {_time(next_time(entry, time.time()))}")


@schedule.command("list")
@directory_option
@output_option
def list_schedules(*, state: str, output: str) -> None:
    """List schedules with their next and last time.

    \b
    Example:
      holdfast drill schedule list
    """
    import msgspec

    from holdfast.platform.drill_schedule import next_time, read_handled, read_schedules
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    layout.load()
    entries, handled, now = read_schedules(layout), read_handled(layout), time.time()
    if output == "json":
        shown = [
            {**msgspec.to_builtins(e), "next": next_time(e, now), "last": msgspec.to_builtins(handled.get(e.name))}
            for e in entries
        ]
        print_json(shown)
        return
    rows = []
    for entry in entries:
        last = handled.get(entry.name)
        at, outcome = (_time(last.at_s), last.outcome) if last is not None else ("never", "-")
        when = f"{entry.cron} {entry.time_zone}"
        rows.append((entry.name, entry.drill, entry.region, when, _time(next_time(entry, now)), at, outcome))
    click.echo(table(("SCHEDULE", "DRILL", "REGION", "CRON", "NEXT", "LAST", "OUTCOME"), rows))


@schedule.command("remove")
@click.argument("name")
@directory_option
@output_option
def remove(name: str, *, state: str, output: str) -> None:
    """Remove a schedule. A drill that runs goes on.

    \b
    Example:
      holdfast drill schedule remove region-loss-eu-central
    """
    from holdfast.platform.drill_schedule import remove_schedule
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    layout.load()
    remove_schedule(layout, name)
    if output == "json":
        print_json({"removed": name})
    else:
        print_note(f"drill schedule {name}: removed")


def _time(at_s: float | None) -> str:
    from holdfast.model.times import seconds_text

    return seconds_text(at_s) if at_s is not None else "never"
