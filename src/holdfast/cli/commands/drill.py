"""`holdfast drill`."""

from __future__ import annotations

import click

from holdfast.cli import completing
from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import directory_option, note, output_option, print_json, quiet_option, table


@click.group()
def drill() -> None:
    """Do failures for real, and see whether the promises hold.

    A drill kills processes of this platform and nothing else, and works with a tenant of its own. Whatever happens, it
    undoes what it did and looks for leftovers before it ends; `holdfast drill restore` starts killed processes by hand.

    \b
    Examples:
      holdfast drill run region-loss --region eu-central
      holdfast drill list
    """


@drill.command("list")
@output_option
def list_drills(output: str) -> None:
    """List the drills there are.

    \b
    Examples:
      holdfast drill list
    """
    from holdfast.cli.drills.catalog import DRILLS

    if output == "json":
        print_json([
            {"name": d.name, "failure": d.failure, "does": d.does, "simulated": d.simulated, "aboutSeconds": d.about_s}
            for d in DRILLS.values()
        ])  # fmt: skip
    else:
        rows = [(d.name, f"{d.about_s} s", d.failure, d.does, d.simulated) for d in DRILLS.values()]
        click.echo(table(("DRILL", "ABOUT", "FAILURE", "DOES", "SIMULATED BY"), rows))


@drill.command("run")
@click.argument("name", shell_complete=completing.drills)
@click.option("--region", default="", help="The region it happens to; must be named.")
@click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds for each phase.")
@click.option("--seconds", type=float, default=90.0, show_default=True, help="cut-off: how long the cut lasts.")
@click.option("--fail-back/--no-fail-back", default=True, help="region-loss: also wait for failback.")
@directory_option
@quiet_option
@output_option
def run_drill(
    name: str, region: str, *, timeout_s: float, seconds: float, fail_back: bool, state: str, quiet: bool, output: str
) -> int:
    """Run one drill and report: the clock by stage, the promises, and the six questions.

    The answers are read from what was recorded while it ran: every change in every cell, events, decisions, counters.
    Exits with 0 only when the drill passed.

    \b
    Examples:
      holdfast drill run region-loss --region eu-central
      holdfast drill run region-loss --region eu-central -o json | jq .seconds_to_four_serving
    """
    from holdfast.cli.drills.catalog import DRILLS, Options, run_drill
    from holdfast.cli.drills.incident import Incident
    from holdfast.cli.platform.layout import Layout

    if name not in DRILLS:
        raise Stop(f"there is no drill {name!r}", next_step=f"choose one of {', '.join(DRILLS)}", code=Exit.USAGE)
    layout = Layout(state)
    if not region:
        known = [r.name for r in layout.load().regions]
        step = f"holdfast drill run {name} --region {known[0]} (or {', '.join(known[1:]) or 'no other'})"
        raise Stop(f"which region shall {name} happen to?", next_step=step, code=Exit.USAGE)
    say = (lambda line: None) if quiet else note
    incident = Incident(layout, region, timeout_s=timeout_s, say=say)
    report = run_drill(DRILLS[name], incident, Options(seconds=seconds, fail_back=fail_back))
    if output == "json":
        print_json(report.as_json())
    else:
        click.echo(report.as_text())
    return Exit.OK if report.passed else Exit.FAILED


@drill.command("restore")
@directory_option
@quiet_option
@output_option
def restore_all(state: str, quiet: bool, output: str) -> None:
    """Let the supervisor start everything again that a drill holds down.

    \b
    Examples:
      holdfast drill restore
    """
    from holdfast.cli.drills.outage import restore
    from holdfast.cli.platform.layout import Layout

    layout = Layout(state)
    layout.load()
    names = restore(layout)
    if output == "json":
        print_json({"restored": names})
    elif not quiet:
        note(f"restored {', '.join(names)}" if names else "nothing was held down")
