"""`holdfast drill`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from holdfast.cli import shell_completion
from holdfast.cli.commands.drill_schedule import schedule
from holdfast.cli.options import directory_option, output_option, quiet_option, report_directory_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.drills.report import HistoryJudgement
    from holdfast.platform.layout import Layout


@click.group()
def drill() -> None:
    """Cause real failures and check the recovery.

    A drill kills or pauses processes of this platform, with the tasks of all tenants in the region or zone that it
    takes. Its own workloads are in the tenant `drill`, except those of `partition`.
    However a drill ends, it undoes its changes, runs the cleanup check and keeps its report; `holdfast drill restore`
    restarts killed processes and continues paused ones by hand.

    \b
    Examples:
      holdfast drill run region-loss --region eu-central
      holdfast drill list
      holdfast drill history
    """


drill.add_command(schedule)


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
@click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    default="",
    help="Region in which the failure happens (required).",
)
@click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds for each phase.")
@click.option("--seconds", type=float, default=90.0, show_default=True, help="partition: duration of the partition.")
@click.option(
    "--fail-back/--no-fail-back",
    default=True,
    help="region-loss: also wait for failback (default); the region is started again in any case.",
)
@click.option("--if-healthy", is_flag=True, help="Start only if the fleet is whole and not in planned maintenance.")
@directory_option
@quiet_option
@output_option
def run_drill(
    name: str,
    region: str,
    *,
    timeout_s: float,
    seconds: float,
    fail_back: bool,
    if_healthy: bool,
    state: str,
    quiet: bool,
    output: str,
) -> int:
    """Run one drill and print its report.

    The report has the time of each recovery stage, violated invariants, and the answers to six incident questions: what
    changed, which controller acted first, what progress was made, which invariants held, which telemetry proves it, and
    what repaired it. It uses only recorded changes, audit logs, events, decisions and counters. Every invariant that
    the recorded history shows is judged. Exits with 0 only if the drill passed.

    \b
    Examples:
      holdfast drill run region-loss --region eu-central
      holdfast drill run region-loss --region eu-central -o json | jq .secondsToMinServing
    """
    from holdfast.drills.catalog import DRILLS, DrillOptions, run_drill
    from holdfast.drills.drill_run import DrillRun
    from holdfast.drills.report_archive import keep_report
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
    if if_healthy:
        _refuse_unless_healthy(layout, name, region)
    drill_run = DrillRun(layout, region, timeout_s=timeout_s, say=say, judge=_judge_of(layout))
    report = run_drill(DRILLS[name], drill_run, DrillOptions(seconds=seconds, wait_for_failback=fail_back))
    kept = keep_report(layout, report)
    say(f"kept as {kept}; holdfast drill history lists all reports")
    if output == "json":
        print_json(report.as_json())
    else:
        click.echo(report.as_text())
    return ExitCode.OK if report.passed else ExitCode.FAILED


def _refuse_unless_healthy(layout: Layout, name: str, region: str) -> None:
    """Keeps a report of a drill that does not start, so that the history shows it."""
    import time

    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.drills.report_archive import keep_refusal
    from holdfast.drills.start_checks import start_refusal

    observer = PlatformObserver(layout, layout.load())
    try:
        refusal = start_refusal(observer, region, time.time())
    finally:
        observer.close()
    if refusal is not None:
        keep_refusal(layout, name, region, refusal.reason, planned=refusal.planned)
        raise CommandError(
            f"drill {name} in {region}: not started ({refusal.reason})",
            next_step="holdfast status; holdfast drill history",
            code=ExitCode.CONFLICT,
        )


def _judge_of(layout: Layout) -> Callable[[float, float], HistoryJudgement]:
    """Checks the recorded histories of the platform's cells with the checkers of the simulation."""
    from holdfast.drills.report import HistoryJudgement
    from holdfast.sim.recorded_history import check_platform

    def judge(since_s: float, at_rest_s: float) -> HistoryJudgement:
        verdict = check_platform(layout.root, since_s=since_s, at_rest_s=at_rest_s)
        absent = [f"{cell}: its history is in etcd, not in a local file" for cell in layout.load().etcd_cells]
        violated = [str(violation) for violation in verdict.violations]
        return HistoryJudgement(verdict.commits, violated, list(verdict.checked), [*absent, *verdict.not_checked])

    return judge


@drill.command("history")
@click.argument("name", default="", shell_complete=shell_completion.complete_drills)
@click.option(
    "--region", shell_complete=shell_completion.complete_regions, default="", help="Only drills in this region."
)
@report_directory_option
@output_option
def list_reports(name: str, *, region: str, state: str, output: str) -> None:
    """List the kept reports of drills, newest first.

    CHANGE compares a report with the one before it of the same drill and region: stages that became slower, and a
    changed result.

    \b
    Examples:
      holdfast drill history
      holdfast drill history region-loss --region eu-central
    """
    from holdfast.drills.report_archive import compare_stages, kept_reports, previous_report
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    layout.load()
    every = kept_reports(layout, drill=name, region=region)
    if output == "json":
        print_json([kept.as_json() for kept in every])
        return
    rows = []
    for kept in every:
        report, before = kept.report, previous_report(every, kept)
        if kept.not_started:
            rows.append((kept.id, report.drill, kept.region, "not started", "-", "-", kept.not_started))
            continue
        change = "first" if before is None else ""
        if before is not None:
            slower = [row.stage for row in compare_stages(before.report, report) if row.slower]
            result = "" if before.report.passed == report.passed else ("passes again" if report.passed else "fails now")
            change = result or (f"slower: {', '.join(slower)}" if slower else "as before")
        result = "passed" if report.passed else "FAILED"
        seconds, deadline_s = (report.facts.get(fact) for fact in ("secondsToMinServing", "deadlineSeconds"))
        deadline = f"{deadline_s:g} s" if deadline_s else "-"
        rows.append((kept.id, report.drill, kept.region, result, _seconds(seconds or None), deadline, change))
    click.echo(table(("REPORT", "DRILL", "REGION", "RESULT", "TO MIN SERVING", "DEADLINE", "CHANGE"), rows))


@drill.command("promises")
@state_option
@output_option
def list_promises(state: str, output: str) -> None:
    """List every recovery promise, with the recovery that last proved it.

    A promise is the recovery objective of a workload, or a RecoveryBudget. A recovery proves it in a drill or after a
    real loss: the objective was met in time, or the budget's slots were used for it.

    \b
    Examples:
      holdfast drill promises
    """
    from holdfast.drills.promises import recovery_promises
    from holdfast.platform.layout import Layout

    promises = recovery_promises(Layout(state))
    if output == "json":
        print_json(promises)
        return
    rows = []
    for promise in promises:
        proof = promise["lastProven"]
        last = f"{proof['at'].partition('.')[0]}Z" if proof else "never"
        by = f"{proof['recovery']}, region {proof['region']} lost, {proof['seconds']:.1f} s" if proof else "-"
        rows.append((promise["promise"], promise["text"], "yes" if promise["backed"] else "NO", last, by))
    click.echo(table(("PROMISE", "TEXT", "BACKED", "LAST PROVEN", "BY"), rows))


@drill.command("show")
@click.argument("report", default="last")
@report_directory_option
@output_option
def show_report(report: str, *, state: str, output: str) -> None:
    """Print a kept report, by its identifier or the start of it; `last` is the newest.

    \b
    Examples:
      holdfast drill show
      holdfast drill show 20261116T185300-zone-loss-eu-west -o json
    """
    from holdfast.drills.report_archive import kept_report
    from holdfast.platform.layout import Layout

    kept = kept_report(Layout(state), report)
    if output == "json":
        print_json(kept.as_json())
    else:
        click.echo(kept.report.as_text())


@drill.command("compare")
@click.argument("report", default="last")
@click.argument("before", default="")
@report_directory_option
@output_option
def compare_reports(report: str, before: str, *, state: str, output: str) -> int:
    """Compare a kept report with an earlier one: the time of each stage, and the results.

    Without BEFORE, the earlier report is the one before of the same drill and region. Exits with 1 if a stage became
    much slower or the drill fails now.

    \b
    Examples:
      holdfast drill compare
      holdfast drill compare 20261116T185300-zone-loss-eu-west 20261109T190000-zone-loss-eu-west
    """
    from holdfast.drills.report_archive import (
        compare_results,
        compare_stages,
        kept_report,
        kept_reports,
        previous_report,
    )
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    new = kept_report(layout, report)
    old = kept_report(layout, before) if before else previous_report(kept_reports(layout), new)
    if old is None:
        text = f"drill report {new.id}: nothing to compare with (no earlier report of this drill and region)"
        raise CommandError(text, next_step="holdfast drill history", code=ExitCode.USAGE)
    stages = compare_stages(old.report, new.report)
    results = list(compare_results(old.report, new.report))
    if output == "json":
        rows = [
            {"stage": s.stage, "beforeSeconds": s.before_s, "seconds": s.after_s, "slower": s.slower} for s in stages
        ]
        print_json({"report": new.id, "before": old.id, "stages": rows, "results": results})
    else:
        shown = [(s.stage, _seconds(s.before_s), _seconds(s.after_s), s.text) for s in stages]
        click.echo(table(("STAGE", old.id, new.id, "CHANGE"), shown))
        for line in results:
            click.echo(line)
    worse = any(stage.slower for stage in stages) or (old.report.passed and not new.report.passed)
    return ExitCode.FAILED if worse else ExitCode.OK


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


@drill.command("restore")
@directory_option
@quiet_option
@output_option
def restore_all(state: str, quiet: bool, output: str) -> None:
    """Restart all processes that a drill has killed, and continue those that it has paused.

    \b
    Examples:
      holdfast drill restore
    """
    from holdfast.drills.outage import allow_restart, resume_all
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    layout.load()
    resume_all(layout)
    names = allow_restart(layout)
    if output == "json":
        print_json({"restored": names})
    elif not quiet:
        print_note(f"restarting {', '.join(names)}" if names else "no process is held down")
