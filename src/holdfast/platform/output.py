"""Terminal output: data goes to stdout, progress to stderr. Tables fit the terminal; colour only on a terminal.

One process runs one command, so the style of its output is the module's own state: `set_style` and `set_colour`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, TextIO

COLOUR_MODES = ("auto", "always", "never")
# Narrowest column of a table that is cut to fit the terminal, the ellipsis included.
COLUMN_CHARS_MIN = 8
# Terminals narrower than this get whole lines, which the terminal wraps.
TERMINAL_CHARS_MIN = 40
GAP = "   "

_GREEN, _YELLOW, _RED, _BOLD, _END = "\033[32m", "\033[33m", "\033[31m", "\033[1m", "\033[0m"
_WORDS = {
    **dict.fromkeys(("Ready", "Live", "Serving", "Running", "Healthy", "Complete", "yes", "True", "Active"), _GREEN),
    **dict.fromkeys(("Pending", "Queued", "Suspect", "Draining", "Expired", "Unknown", "Overdue"), _YELLOW),
    **dict.fromkeys(("Lost", "Failed", "Fenced", "NotReady", "Unreachable", "RolledBack", "no", "False"), _RED),
}


class _Style:
    colour = "auto"
    data = "json"
    wide = False


def set_colour(mode: str) -> None:
    _Style.colour = mode


def set_style(*, data: str = "json", wide: bool = False) -> None:
    """`data` is the format of `print_data`; `wide` tables are not cut."""
    _Style.data, _Style.wide = data, wide


def is_wide() -> bool:
    return _Style.wide


def print_json(value: Any) -> None:
    """Prints data as JSON, or as YAML if the user asked for it."""
    if _Style.data == "yaml":
        import yaml

        print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120), end="", flush=True)
        return
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def print_note(text: str) -> None:
    """Prints progress or a remark to stderr. Data goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def _allows_colour(stream: TextIO) -> bool:
    if _Style.colour != "auto":
        return _Style.colour == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR") and not os.environ.get("CI")


def wants_colour() -> bool:
    """Whether to use colour and live displays: only on a terminal, and only if NO_COLOR and CI are unset."""
    return _allows_colour(sys.stderr)


def coloured_error(line: str) -> str:
    """An `error:` or `next:` line with its first word in colour, if stderr has colour."""
    word, colon, rest = line.partition(":")
    if not _allows_colour(sys.stderr) or word not in ("error", "next"):
        return line
    return f"{_RED if word == 'error' else _BOLD}{word}{colon}{_END}{rest}"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned with spaces, as kubectl prints them. On a terminal, long columns are cut to its width."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(h), *(len(row[i]) for row in texts)) if texts else len(h) for i, h in enumerate(headers)]
    if sys.stdout.isatty() and not _Style.wide:
        widths = fitting_widths(widths, shutil.get_terminal_size().columns)
    coloured = _allows_colour(sys.stdout)
    lines = [_line(list(headers), widths)]
    if coloured:
        lines[0] = f"{_BOLD}{lines[0]}{_END}"
    lines += [_line(row, widths, coloured=coloured) for row in texts]
    return "\n".join(lines)


def fitting_widths(widths: Sequence[int], terminal: int) -> list[int]:
    """Widths that fit the terminal: the widest columns are cut first, none below its minimum."""
    found = list(widths)
    over = sum(found) + len(GAP) * (len(found) - 1) - terminal
    if over <= 0 or terminal < TERMINAL_CHARS_MIN:
        return found
    while over > 0:
        widest = max(range(len(found)), key=lambda i: found[i])
        if found[widest] <= COLUMN_CHARS_MIN:
            return list(widths)  # does not fit however much is cut: the terminal wraps whole lines
        found[widest] -= 1
        over -= 1
    return found


def _line(cells: Sequence[str], widths: Sequence[int], *, coloured: bool = False) -> str:
    made = []
    for cell, width in zip(cells, widths, strict=False):
        cut = cell if len(cell) <= width else cell[: width - 1] + "…"
        padded = cut.ljust(width)
        colour = _WORDS.get(cut.partition(",")[0]) if coloured else None
        made.append(f"{colour}{cut}{_END}{padded[len(cut) :]}" if colour else padded)
    return GAP.join(made).rstrip()
