"""Every runbook can run: its commands and options exist, its parameters are declared, its page exists."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from holdfast.cli.app import holdfast
from holdfast.runbooks.catalog import RUN, RUNBOOKS
from holdfast.runbooks.definition import Act, Look, Runbook, Verify, Words, filled_words, placeholders

DOCS = Path(__file__).resolve().parents[2] / "docs"
VALUES = {"ttl": "60", "quota": "cpu=1", "cell": "global"}
ALL = pytest.mark.parametrize("runbook", RUNBOOKS.values(), ids=lambda runbook: runbook.name)


def commands_of(runbook: Runbook) -> list[Words]:
    found: list[Words] = []
    for step in runbook.steps:
        if isinstance(step, Look | Act | Verify):
            found.append(step.command)
        if isinstance(step, Act) and step.dry_run:
            found.append(step.dry_run)
    return found


@ALL
def test_commands_parse_with_the_command_line_that_exists(runbook: Runbook) -> None:
    values = {name: VALUES.get(name, "x") for name in (*runbook.parameter_names(), RUN)}
    for words in commands_of(runbook):
        command: click.Command = holdfast
        # A command keeps the names of its help option from its first context, so the real ones are passed.
        names = holdfast.context_settings["help_option_names"]
        context = click.Context(holdfast, info_name="holdfast", help_option_names=names)
        rest = list(filled_words(words, values))
        while isinstance(command, click.Group):
            child = command.get_command(context, rest.pop(0))
            assert child is not None, words
            command, context = child, click.Context(child, parent=context)
        command.make_context(words[0], rest, parent=context.parent)


@ALL
def test_every_placeholder_is_a_parameter_and_every_parameter_is_used(runbook: Runbook) -> None:
    used = set().union(*(placeholders(step) for step in runbook.steps))
    assert used - {RUN} == set(runbook.parameter_names())


@ALL
def test_runbook_ends_with_the_cleanup_check_and_words_for_users(runbook: Runbook) -> None:
    *_, last = [step for step in runbook.steps if not isinstance(step, Look)]
    assert isinstance(last, Verify) and last.command[0] == "cleanup-check"
    assert runbook.tell_users.endswith(".")


@ALL
def test_page_of_the_runbook_exists_and_names_it(runbook: Runbook) -> None:
    assert f"holdfast runbook run {runbook.name} " in (DOCS / runbook.page).read_text()


@ALL
def test_runbook_is_executed_on_real_processes(runbook: Runbook) -> None:
    folder = Path(__file__).resolve().parents[1] / "e2e"
    texts = [(folder / name).read_text() for name in ("test_runbooks.py", "test_overdue_finalizer.py")]
    assert any(f'"{runbook.name}"' in text for text in texts)
