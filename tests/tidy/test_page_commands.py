"""Every `holdfast` command line of every page names a command and options that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.app import holdfast

_FENCES = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4,}(?=\S)(.*)$", re.MULTILINE)
_INLINE = re.compile(r"`(holdfast [^`\n]+)`")
_COMMAND = re.compile(r"(?:^|[|;&$(]\s*|\bsudo )holdfast ([^|;&<>#\n`()]*)")
FEWEST_LINES = 300
"""Fewer found lines mean that the patterns no longer fit the pages."""


def command_lines(text: str) -> Iterator[str]:
    """The words after `holdfast` in each command of the page."""
    joined = text.replace("\\\n", " ")
    code = [*_FENCES.findall(joined), *_INDENTED.findall(joined), *_INLINE.findall(joined)]
    for block in code:
        for line in block.splitlines():
            yield from (found.strip() for found in _COMMAND.findall(line.strip()))


def problem(line: str) -> str:
    """What is wrong with a command line; empty if nothing is."""
    words = line.split()
    if words[:1] == ["audit"] and (len(words) < 2 or not re.fullmatch(r"[a-z]+", words[1])):
        words.insert(1, "search")  # as the command does
    command: click.Command = holdfast
    path = ["holdfast"]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"{' '.join(path)} {words[0]} does not exist"
        path.append(words.pop(0))
        command = found
        known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    if isinstance(command, click.Group) and "…" in words:
        return ""  # stands for several commands
    if "--" in words:
        words = words[: words.index("--")]
    for word in words:
        name = word.partition("=")[0].rstrip(".,:")
        if re.fullmatch(r"--[a-z][a-z-]*", name) and name not in known | {"--help"}:
            return f"{' '.join(path)} has no option {name}"
    return ""


def test_command_lines_of_pages_name_existing_commands_and_options(root: Path) -> None:
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    seen, wrong = 0, []
    for page in pages:
        for line in command_lines(page.read_text()):
            seen += 1
            if found := problem(line):
                wrong.append(f"{page.relative_to(root)}: holdfast {line}: {found}")
    assert wrong == []
    assert seen >= FEWEST_LINES, f"only {seen} command lines were found"


def test_wrong_command_lines_are_found() -> None:
    assert "does not exist" in problem("server tokens global")
    assert "no option --replica" in problem("server token global --replica 3")
    assert problem("exec payments/risk-api-0 -- sh --login") == ""
