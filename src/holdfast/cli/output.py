"""How commands print: data to stdout, everything else to stderr; colour only where a person looks at it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("text", "json")


def output_option(command: F) -> F:
    """`-o text|json`, the same on every command that prints data."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="text",
        show_default=True,
        help="How to print: text for people, json for programs.",
    )(command)


def state_option(command: F) -> F:
    """`--state`, the same on every command that asks a platform: one of this machine, or one elsewhere."""
    return _state(click.Path(), "The platform's directory, or a kubeconfig of one elsewhere.")(command)


def directory_option(command: F) -> F:
    """`--state` of commands that work on the platform's own files and processes."""
    return _state(click.Path(file_okay=False), "The platform's directory.")(command)


def _state(type_: click.Path, says: str) -> Callable[[F], F]:
    return click.option(
        "--state",
        "state",
        type=type_,
        default=".holdfast",
        envvar="HOLDFAST_STATE",
        show_default=True,
        show_envvar=True,
        help=says,
    )


def quiet_option(command: F) -> F:
    """`--quiet`: no progress, only results and errors."""
    return click.option("-q", "--quiet", is_flag=True, help="Print no progress, only results and errors.")(command)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Progress and remarks; never data."""
    click.echo(text, err=True)


def wants_colour() -> bool:
    """Colour and live displays: only on a terminal, and not when NO_COLOR or CI say otherwise."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and not os.environ.get("CI")


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned by spaces, as kubectl prints them; easy to read and to cut."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(h), *(len(row[i]) for row in texts)) if texts else len(h) for i, h in enumerate(headers)]
    lines = [headers, *texts]
    return "\n".join("   ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines)
