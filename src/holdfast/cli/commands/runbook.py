"""`holdfast runbook`: lists runbooks, runs one step by step, and shows what runs did."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.runbooks.definition import Runbook
    from holdfast.runbooks.engine import RunbookEngine
    from holdfast.runbooks.records import RunRecord


@click.group()
def runbook() -> None:
    """Run a runbook step by step: dry run first, a question before each action, a record of what was done.

    \b
    Examples:
      holdfast runbook list
      holdfast runbook run zone-avoidance --set region=eu-west --set zone=eu-west-a --set reason="cooling failed"
      holdfast runbook continue last
    """


@runbook.command("list")
@output_option
def list_(output: str) -> None:
    """List the runbooks with their parameters.

    \b
    Example:
      holdfast runbook list
    """
    from holdfast.runbooks.catalog import RUNBOOKS

    if output == "json":
        print_json(
            [{"name": r.name, "title": r.title, "parameters": list(r.parameter_names())} for r in RUNBOOKS.values()]
        )
        return
    rows = [(r.name, r.title, ", ".join(r.parameter_names())) for r in RUNBOOKS.values()]
    click.echo(table(("RUNBOOK", "USE WHEN", "PARAMETERS"), rows))


@runbook.command()
@click.argument("name")
@click.option("--set", "settings", multiple=True, metavar="PARAMETER=VALUE", help="A parameter; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Run what changes nothing, and show what would be done.")
@click.option(
    "--yes", is_flag=True, help="Do not ask before actions. Steps that only a person can do still stop the run."
)
@state_option
@output_option
def run(name: str, *, settings: tuple[str, ...], dry_run: bool, yes: bool, state: str, output: str) -> int:
    """Run a runbook. Each action is shown and asked for first; the run is recorded and can be continued.

    At a step that only a person can do, the run waits: answer the question, or continue the run later.

    \b
    Examples:
      holdfast runbook run region-loss --set region=eu-west --dry-run
      holdfast runbook run quota-emergency --set tenant=payments --set quota=cpu=4 --set reason="sale"
    """
    import time

    from holdfast.model.times import micro_text
    from holdfast.runbooks.catalog import RUN
    from holdfast.runbooks.records import RunRecord

    chosen = find_runbook(name)
    values = parse_settings(chosen, settings)
    started_at = micro_text(time.time())
    moment = "".join(ch for ch in started_at.partition(".")[0].lower() if ch.isalnum())
    run_id = f"{moment}-{chosen.name}"
    engine = make_engine(chosen, state, yes=yes, as_json=output == "json")
    if dry_run:
        engine.dry_run({**values, RUN: run_id})
        return ExitCode.OK
    record = RunRecord(run_id, chosen.name, started_at, {**values, RUN: run_id})
    return finish(engine, record, as_json=output == "json")


@runbook.command("continue")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--yes", is_flag=True, help="Do not ask before actions. Steps that only a person can do still stop the run."
)
@state_option
@output_option
def continue_(run_id: str, *, yes: bool, state: str, output: str) -> int:
    """Continue a run that waits for a person, was declined, failed or was interrupted.

    A step for a person counts as done when its run is continued. A failed step is tried again.

    \b
    Example:
      holdfast runbook continue last
    """
    from holdfast.platform.layout import Layout
    from holdfast.runbooks.records import RunArchive

    record = RunArchive(Layout(state)).find(run_id)
    if record.ended:
        raise CommandError(
            f"run {record.id}: finished", next_step=f"holdfast runbook show {record.id}", code=ExitCode.CONFLICT
        )
    engine = make_engine(find_runbook(record.runbook), state, yes=yes, as_json=output == "json")
    return finish(engine, record, as_json=output == "json")


@runbook.command()
@state_option
@output_option
def history(state: str, output: str) -> None:
    """List the runs, the newest first.

    \b
    Example:
      holdfast runbook history
    """
    from holdfast.platform.layout import Layout
    from holdfast.runbooks.records import RunArchive

    runs = RunArchive(Layout(state)).all()
    if output == "json":
        import msgspec

        print_json(msgspec.to_builtins(runs))
        return
    rows = [(r.id, r.runbook, r.state, r.next_step) for r in runs]
    click.echo(table(("RUN", "RUNBOOK", "STATE", "STEPS DONE"), rows))


@runbook.command()
@click.argument("run_id", metavar="RUN")
@state_option
@output_option
def show(run_id: str, *, state: str, output: str) -> None:
    """Show what a run did: each step with its time, command and outcome.

    \b
    Example:
      holdfast runbook show last
    """
    from holdfast.platform.layout import Layout
    from holdfast.runbooks.records import RunArchive

    record = RunArchive(Layout(state)).find(run_id)
    if output == "json":
        import msgspec

        print_json(msgspec.to_builtins(record))
        return
    click.echo(f"{record.id}: {record.state}")
    rows = [(step.number, step.at, step.outcome, step.title, step.command) for step in record.steps]
    click.echo(table(("STEP", "AT", "OUTCOME", "TITLE", "COMMAND"), rows))


def find_runbook(name: str) -> Runbook:
    from holdfast.runbooks.catalog import RUNBOOKS

    if name not in RUNBOOKS:
        raise CommandError(f"runbook {name}: not found", next_step="holdfast runbook list", code=ExitCode.USAGE)
    return RUNBOOKS[name]


def parse_settings(chosen: Runbook, settings: tuple[str, ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for text in settings:
        key, sign, value = text.partition("=")
        if key not in chosen.parameter_names() or not sign or not value:
            known = ", ".join(chosen.parameter_names())
            raise CommandError(
                f"--set {text}: invalid (expected PARAMETER=VALUE with one of {known})",
                next_step="holdfast runbook list",
                code=ExitCode.USAGE,
            )
        given[key] = value
    missing = [p for p in chosen.parameters if p.name not in given and not p.default]
    if missing:
        raise CommandError(
            f"runbook {chosen.name}: {', '.join(p.name for p in missing)} not given",
            next_step=" ".join(f"--set {p.name}=…  ({p.help})" for p in missing),
            code=ExitCode.USAGE,
        )
    return {p.name: given.get(p.name, p.default) for p in chosen.parameters}


def make_engine(chosen: Runbook, state: str, *, yes: bool, as_json: bool) -> RunbookEngine:
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout
    from holdfast.runbooks.engine import RunbookEngine
    from holdfast.runbooks.records import RunArchive

    layout = Layout(state)
    api = connect_cell(layout, layout.load(), "global")
    return RunbookEngine(chosen, RunArchive(layout), Terminal(yes=yes, as_json=as_json), state, api)


def finish(engine: RunbookEngine, record: RunRecord, *, as_json: bool) -> int:
    code = engine.run(record)
    follow_up = {
        "Waiting": f"waits for you; continue with: holdfast runbook continue {record.id}",
        "Declined": f"stopped before this step; continue with: holdfast runbook continue {record.id}",
        "Failed": f"this step failed; mend the cause, then: holdfast runbook continue {record.id}",
    }
    if record.state in follow_up:
        print_note(f"\n{record.id}: {follow_up[record.state]}")
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(record))
    return code


class Terminal:
    """Asks at the terminal. Without one, actions need `--yes`, and steps for a person stop the run. With `-o json` the
    progress goes to stderr."""

    def __init__(self, *, yes: bool, as_json: bool) -> None:
        self._yes = yes
        self._as_json = as_json
        self._asks = sys.stdin.isatty()

    def say(self, text: str) -> None:
        click.echo(text, err=self._as_json)

    def agrees(self, question: str) -> bool:
        return self._yes or (self._asks and click.confirm(question))

    def has_done(self, question: str) -> bool:
        return self._asks and click.confirm(question)
