"""`holdfast drill`."""

from __future__ import annotations

import click

from holdfast.cli.exits import Exit
from holdfast.cli.output import note, output_option, print_json, quiet_option, state_option, table

DRILLS = {
    "region-loss": "Kill a region's cell, agents and work; every critical workload must serve elsewhere in time.",
    "cut-off": "Kill the global cell for a while and a node meanwhile; the region must go on and replace it alone.",
}


@click.group()
def drill() -> None:
    """Do failures for real, and see whether the promises hold.

    A drill kills processes of this platform and nothing else. Whatever happens, it lets the supervisor start them again
    before it ends; `holdfast drill restore` does the same by hand.

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
    if output == "json":
        print_json([{"name": name, "does": does} for name, does in DRILLS.items()])
    else:
        click.echo(table(("DRILL", "DOES"), list(DRILLS.items())))


@drill.command("run")
@click.argument("name", type=click.Choice(list(DRILLS)))
@click.option("--region", required=True, help="The region it happens to.")
@click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds for each phase.")
@click.option("--seconds", type=float, default=90.0, show_default=True, help="cut-off: how long the cut lasts.")
@click.option("--fail-back/--no-fail-back", default=True, help="Also wait until everything was given back.")
@state_option
@quiet_option
@output_option
def run_drill(
    name: str, region: str, *, timeout_s: float, seconds: float, fail_back: bool, state: str, quiet: bool, output: str
) -> int:
    """Run one drill and report: the clock by stage, the promises, and the six questions.

    Exits with 0 only when the drill passed.

    \b
    Examples:
      holdfast drill run region-loss --region eu-central
      holdfast drill run region-loss --region eu-central -o json | jq .seconds_to_four_serving
    """
    from holdfast.cli.drills.cut_off import CutOff
    from holdfast.cli.drills.region_loss import RegionLoss
    from holdfast.cli.platform.layout import Layout

    say = (lambda line: None) if quiet else note
    if name == "cut-off":
        report = CutOff(Layout(state), region, seconds=seconds, timeout_s=timeout_s, say=say).run()
    else:
        report = RegionLoss(Layout(state), region, timeout_s=timeout_s, say=say).run(fail_back=fail_back)
    if output == "json":
        print_json(report.as_json())
    else:
        click.echo(report.as_text())
    return Exit.OK if report.passed else Exit.FAILED


@drill.command("restore")
@state_option
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
