"""Terminal output: data goes to stdout, progress to stderr, colour only to a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def print_note(text: str) -> None:
    """Prints progress or a remark to stderr. Data goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def wants_colour() -> bool:
    """Whether to use colour and live displays: only on a terminal, and only if NO_COLOR and CI are unset."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and not os.environ.get("CI")


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned with spaces, as kubectl prints them."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(h), *(len(row[i]) for row in texts)) if texts else len(h) for i, h in enumerate(headers)]
    lines = [headers, *texts]
    return "\n".join("   ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines)
