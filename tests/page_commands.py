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


EXECUTED_PAGES = (
    "docs/how-to/clients.md",
    "docs/tour.md",
    "docs/tutorials/lose-a-region.md",
    "docs/tutorials/deploy.md",
    "docs/tutorials/why-it-waits.md",
    "docs/tutorials/reconstruct-a-decision.md",
    "docs/tutorials/rollout.md",
    "docs/tutorials/python.md",
    "docs/tutorials/gpus.md",
    "docs/tutorials/batch.md",
    "docs/tutorials/shop.md",
    "docs/tutorials/policy.md",
    "docs/how-to/cron.md",
    "docs/how-to/notifications.md",
    "docs/tutorials/join-a-node.md",
)
"""Pages whose blocks are run on one platform, in the order of a reader (tests/e2e/test_tutorials.py)."""
RUN_OTHERWISE = {
    "README.md": "every page of the tour begins with its two commands",
    "CONTRIBUTING.md": "the suites themselves",
    "docs/console.md": "tests/e2e/test_console.py opens the link that `holdfast console` prints",
    "docs/how-to/run-an-image.md": "tests/e2e/test_image_page.py, on a platform that finds runc",
    "docs/operations/install.md": "tests/e2e/test_install.py, on machines of their own",
    "docs/operations/high-availability.md": "tests/e2e/test_install_servers.py, on machines of their own",
}
"""Pages whose blocks another test runs, and which."""


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
