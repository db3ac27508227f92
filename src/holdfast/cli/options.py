"""Options and arguments that several commands share, so that they look and fail the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.foundation.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from holdfast.model.meta import Key

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("text", "json")
_EXAMPLES = {"REPLICA": "payments/risk-api-us-east-0", "DECISION": "payments/risk-api-us-east-1a2b3c-0123456789"}


def output_option(command: F) -> F:
    """`-o text|json`, the same on every command that prints data."""
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format."
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


def parse_tenant_name(text: str, what: str = "WORKLOAD|REPLICA") -> Key:
    from holdfast.model.meta import Key

    tenant, _, name = text.partition("/")
    if not tenant or not name:
        example = _EXAMPLES.get(what, "payments/risk-api")
        problem = f"{text}: the tenant is missing (expected TENANT/{what}, such as {example})"
        raise CommandError(problem, code=ExitCode.USAGE)
    return Key(tenant, name)
