"""Output of commands: data goes to stdout, progress to stderr, colour only to a terminal."""

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
        help="Output format.",
    )(command)


def state_option(command: F) -> F:
    """`--state` of commands that use the API: a local platform's directory, or a kubeconfig of a remote platform."""
    return _state(click.Path(), "The platform's directory, or a kubeconfig of a remote platform.")(command)


def directory_option(command: F) -> F:
    """`--state` of commands that use the files and processes of a local platform."""
    return _state(click.Path(file_okay=False), "The platform's directory.")(command)


def _state(type_: click.Path, text: str) -> Callable[[F], F]:
    return click.option(
        "--state",
        "state",
        type=type_,
        default=".holdfast",
        envvar="HOLDFAST_STATE",
        show_default=True,
        show_envvar=True,
        help=text,
    )


def quiet_option(command: F) -> F:
    """`--quiet`: print results and errors, but no progress."""
    return click.option("-q", "--quiet", is_flag=True, help="Print results and errors, but no progress.")(command)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_note(text: str) -> None:
    """Prints progress or a remark to stderr. Data goes to stdout."""
    click.echo(text, err=True)


def wants_colour() -> bool:
    """Whether to use colour and live displays: only on a terminal, and only if NO_COLOR and CI are unset."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and not os.environ.get("CI")


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned with spaces, as kubectl prints them."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(h), *(len(row[i]) for row in texts)) if texts else len(h) for i, h in enumerate(headers)]
    lines = [headers, *texts]
    return "\n".join("   ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines)
