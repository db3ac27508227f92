"""`holdfast drill`."""

from __future__ import annotations

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import directory_option, output_option, quiet_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table


@click.group()
def drill() -> None:
    """Cause real failures and check the recovery.

    A drill kills processes of this platform only. Most drills use their own tenant, `drill`. However a drill ends, it
    undoes its changes and runs the cleanup check; `holdfast drill restore` restarts killed processes by hand.

    \b
    Examples:
      holdfast drill run region-loss --region eu-central
      holdfast drill list
    """


@drill.command("list")
@output_option
def list_drills(output: str) -> None:
    """List all drills.

    \b
    Examples:
      holdfast drill list
    """
    from holdfast.drills.catalog import DRILLS

    if output == "json":
        print_json(
            [
                {
                    "name": d.name,
                    "failure": d.failure,
                    "description": d.description,
                    "simulatedBy": d.simulated_by,
                    "typicalSeconds": d.typical_s,
                }
                for d in DRILLS.values()
            ]
        )
    else:
        rows = [(d.name, f"{d.typical_s} s", d.failure, d.description, d.simulated_by) for d in DRILLS.values()]
        click.echo(table(("DRILL", "TAKES", "FAILURE", "DESCRIPTION", "SIMULATED BY"), rows))


@drill.command("run")
@click.argument("name", shell_complete=shell_completion.complete_drills)
@click.option("--region", default="", help="Region in which the failure happens (required).")
@click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds for each phase.")
@click.option("--seconds", type=float, default=90.0, show_default=True, help="partition: duration of the partition.")
@click.option("--fail-back/--no-fail-back", default=True, help="region-loss: also wait for failback.")
@directory_option
@quiet_option
@output_option
def run_drill(
    name: str, region: str, *, timeout_s: float, seconds: float, fail_back: bool, state: str, quiet: bool, output: str
) -> int:
    """Run one drill and print its report.

    The report has the time of each recovery stage, violated invariants, and an incident summary: what changed, which
    controller acted first, which telemetry proves it. It uses only recorded changes, events, decisions and counters.
    Exits with 0 only if the drill passed.

    \b
    Examples:
      holdfast drill run region-loss --region eu-central
      holdfast drill run region-loss --region eu-central -o json | jq .secondsToMinServing
    """
    from holdfast.drills.catalog import DRILLS, DrillOptions, run_drill
    from holdfast.drills.drill_run import DrillRun
    from holdfast.platform.layout import Layout

    if name not in DRILLS:
        known = ", ".join(DRILLS)
        raise CommandError(
            f"drill {name}: not found (expected one of {known})", next_step="holdfast drill list", code=ExitCode.USAGE
        )
    layout = Layout(state)
    if not region:
        regions = [r.name for r in layout.load().regions]
        text = f"drill {name}: --region is missing (expected one of {', '.join(regions)})"
        raise CommandError(text, next_step=f"holdfast drill run {name} --region {regions[0]}", code=ExitCode.USAGE)
    say = (lambda line: None) if quiet else print_note
    drill_run = DrillRun(layout, region, timeout_s=timeout_s, say=say)
    report = run_drill(DRILLS[name], drill_run, DrillOptions(seconds=seconds, wait_for_failback=fail_back))
    if output == "json":
        print_json(report.as_json())
    else:
        click.echo(report.as_text())
    return ExitCode.OK if report.passed else ExitCode.FAILED


@drill.command("restore")
@directory_option
@quiet_option
@output_option
def restore_all(state: str, quiet: bool, output: str) -> None:
    """Restart all processes that a drill has stopped.

    \b
    Examples:
      holdfast drill restore
    """
    from holdfast.drills.outage import allow_restart
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    layout.load()
    names = allow_restart(layout)
    if output == "json":
        print_json({"restored": names})
    elif not quiet:
        print_note(f"restarting {', '.join(names)}" if names else "no process is held down")
