"""`holdfast readiness`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.output import print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.readiness.fleet_review import FleetFinding


@click.command()
@click.option(
    "--drill-days", type=float, default=30.0, show_default=True, help="Largest age of a promise's last proof."
)
@click.option("--prometheus", default="", metavar="URL", help="Also fail for firing alerts, by this Prometheus.")
@click.option("--alertmanager", default="", metavar="URL", help="Also fail for silenced alerts, by this Alertmanager.")
@click.option("--all", "everything", is_flag=True, help="Also list the checks that passed.")
@state_option
@output_option
def readiness(
    *, drill_days: float, prometheus: str, alertmanager: str, everything: bool, state: str, output: str
) -> int:
    """Review a running fleet: unproven promises, late overrides, old backups, alerts, stuck objects, lost links.

    For each recovery promise it checks that capacity backs it and that a drill or a real loss proved it recently. It
    lists overrides beyond their time, backups that are old or were never restored, finalizers and repairs past their
    deadline, and regions out of contact. What cannot be known from here is listed as unknown. Exits with 1 if it finds
    a problem. `make readiness` in a checkout reviews the claims of the design in the same way.

    \b
    Examples:
      holdfast readiness
      holdfast readiness --all --drill-days 7
      holdfast readiness --state kubeconfig --alertmanager http://alertmanager:9093 -o json
    """
    import time

    import msgspec

    from holdfast.platform.layout import Layout
    from holdfast.readiness.fleet_facts import fleet_facts
    from holdfast.readiness.fleet_review import Level, review_fleet

    facts = fleet_facts(Layout(state), prometheus=prometheus, alertmanager=alertmanager)
    findings = review_fleet(facts, time.time(), drill_days=drill_days)
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    if output == "json":
        print_json({"ready": not problems, "findings": msgspec.to_builtins(findings)})
    else:
        click.echo(as_text([f for f in findings if everything or f.level is not Level.OK]))
        passed = sum(finding.level is Level.OK for finding in findings)
        unknown = sum(finding.level is Level.UNKNOWN for finding in findings)
        click.echo(f"{len(problems)} problems, {unknown} unknown, {passed} checks passed")
    return ExitCode.FAILED if problems else ExitCode.OK


def as_text(findings: Sequence[FleetFinding]) -> str:
    rows = [(f.check, f.level.value, f.text, f.next_step) for f in findings]
    return table(("CHECK", "RESULT", "FOUND", "NEXT"), rows)
