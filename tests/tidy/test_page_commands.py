"""Commands in pages. A `sh` or `python` block is run by a test. Every other `holdfast` command, in an indented block or
in a sentence, is parsed: its subcommand and options exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests import page_lines
from tests.page_commands import EXECUTED_PAGES, RUN_OTHERWISE, command_blocks

from holdfast.cli.app import holdfast

ROOT = Path(__file__).resolve().parents[2]
HISTORY = {"CHANGELOG.md", "docs/bugs.md", "docs/cli.md"}
"""Past commands, and the generated help, whose examples are parsed by themselves."""
COMMAND = re.compile(r"(?:^ {4}|^|&& |\| |`)(holdfast [a-z][^`|&>\n]*)", re.MULTILINE)


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.relative_to(ROOT).as_posix() not in HISTORY]


def commands_in(text: str) -> Iterator[list[str]]:
    """The commands of indented and fenced blocks, and of sentences. Continued lines are joined; a comment, or what two
    spaces divide from a command, explains it."""
    joined = re.sub(r"\\\n\s*", "", text)
    code = "\n".join(re.findall(r"^ {4}\S.*$|^```sh\n.*?^```|`[^`\n]+`", joined, re.MULTILINE | re.DOTALL))
    for line in COMMAND.findall(code):
        command = re.split(r"\s+#| {2,}(?!-)|[;)]\s|…", line.strip(), maxsplit=1)[0]
        try:
            yield shlex.split(command)
        except ValueError:
            yield command.split()


def parse_error(words: list[str]) -> str:
    """Why the command line does not accept these words; empty if it does. Placeholders are ordinary words, and a
    command that a sentence names without its arguments is complete."""
    command: click.Command = holdfast
    # A command keeps the names of its help option from its first context, so the real ones are passed.
    names = holdfast.context_settings["help_option_names"]
    context = click.Context(holdfast, info_name="holdfast", help_option_names=names)
    rest = [word for word in words[1:] if word not in ("…", "\\")]
    while isinstance(command, click.Group) and rest:
        if re.search(r"[|A-Z…]", rest[0]):
            return ""  # `rollout pause|resume`, `drill NAME`
        try:
            if rest[0].startswith("-") and "search" in command.commands:
                rest = ["search", *rest]  # `holdfast audit --by ann`
            name, child, rest = command.resolve_command(context, rest)
        except click.UsageError as wrong:
            return f"{' '.join(words)}: {wrong.format_message()}"
        assert child is not None
        command, context = child, click.Context(child, info_name=name, parent=context)
    optional = [re.sub(r"[\[\]]", "", word) for word in rest]
    parser = command.make_parser(context)
    try:
        parser.parse_args(optional)
    except click.NoSuchOption as wrong:
        return f"{' '.join(words)}: {wrong.format_message()}"
    except click.UsageError:
        return ""  # an option without its value, in a sentence
    return ""


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_parse(page: Path) -> None:
    wrong = [error for words in commands_in(page.read_text()) if (error := parse_error(words))]
    assert wrong == []


def test_command_that_does_not_exist_is_found() -> None:
    text = "    holdfast nodes list   # x\n\nSee `holdfast plan --loose R`, and:\n\n```sh\nholdfast get --nope\n```\n"
    assert len([error for words in commands_in(text) if (error := parse_error(words))]) == 3
    assert [words for words in commands_in("    holdfast node cordon NODE    no new work\n")] == [
        ["holdfast", "node", "cordon", "NODE"]
    ]


def test_every_command_block_of_every_page_is_run_by_a_test() -> None:
    with_blocks = {page.relative_to(ROOT).as_posix() for page in pages() if command_blocks(page)}
    assert with_blocks - set(EXECUTED_PAGES) - set(RUN_OTHERWISE) == set(), "next: add it to EXECUTED_PAGES"
    assert set(EXECUTED_PAGES) | set(RUN_OTHERWISE) <= with_blocks


def test_every_page_with_command_lines_is_run_by_a_test() -> None:
    with_lines = page_lines.pages_with_lines()
    assert with_lines - set(page_lines.PAGES) - set(page_lines.RUN_OTHERWISE) == set(), "next: add it to PAGES"
    assert set(page_lines.PAGES) | set(page_lines.RUN_OTHERWISE) <= with_lines


def test_lines_that_are_not_run_exist_and_name_the_test_that_runs_them() -> None:
    reasons = list(page_lines.RUN_OTHERWISE.values())
    for name, page in page_lines.PAGES.items():
        lines = page_lines.command_lines(name)
        for start, reason in page.not_run.items():
            assert any(line.startswith(start) for line in lines), f"{name}: {start}"
            reasons.append(reason)
    for reason in reasons:
        named = re.findall(r"(?:tests|docs)/[\w/-]+(?:\.\w+)?", reason)
        assert named, reason
        assert [path for path in named if not (ROOT / path).exists()] == []
