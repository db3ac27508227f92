"""Prints a line at once, also when the output is a file or a pipe."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
