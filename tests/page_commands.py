"""The command blocks of documentation pages, and what they printed.

A `sh` or `python` block is run as it stands. A `text` block right after it shows output that was seen. Numbers, times,
names of regions and generated names may differ between runs; everything else must be the same.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARYING = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z?", "TIME"),
    (r"\b\d{8}T\d{6}\b", "TIME"),  # In the names of drill reports.
    (r"(us-east|eu-central|eu-west)(-[ab12])?(-r?\d+)?(?![\w])", "REGION"),
    (r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "HASH"),
    (r"\d+(\.\d+)?(ms|s|m|h)?\d*s?\b", "N"),
    (r"[\s─]+", " "),
)


class CommandBlock(msgspec.Struct):
    """A block of commands with the output that the page shows; None if it shows none."""

    page: str
    language: str
    commands: str
    shown: str | None
    span: tuple[int, int]
    """Where the shown output is in the page."""


def command_blocks(path: Path) -> list[CommandBlock]:
    text = path.read_text()
    found: list[CommandBlock] = []
    end_of_last = -1
    for match in _FENCE.finditer(text):
        if match[1] in ("sh", "python"):
            found.append(CommandBlock(path.name, match[1], match[2], None, (0, 0)))
            end_of_last = match.end()
        elif match[1] == "text" and found and not text[end_of_last : match.start()].strip():
            found[-1].shown, found[-1].span = match[2], match.span(2)
    return found


def lines_not_seen(shown: str, seen: str) -> list[str]:
    """Lines of the page that were not printed. A line `…` stands for lines left out."""
    printed = {normalized(line) for line in seen.splitlines()}
    return [line for line in shown.splitlines() if line.strip() not in ("", "…") and normalized(line) not in printed]


def normalized(line: str) -> str:
    for pattern, replacement in _VARYING:
        line = re.sub(pattern, replacement, line)
    return line.strip()


def rewrite(path: Path, outputs: dict[int, str]) -> None:
    """Puts outputs into the page, by the number of the block."""
    text = path.read_text()
    for number, block in reversed(list(enumerate(command_blocks(path)))):
        if block.shown is not None and number in outputs:
            start, end = block.span
            text = text[:start] + "\n".join(line.rstrip() for line in outputs[number].splitlines()) + "\n" + text[end:]
    path.write_text(text)
