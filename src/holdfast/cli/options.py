"""Options and arguments that several commands share, so that they look and fail the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.foundation.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from holdfast.model.meta import Key

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("text", "wide", "json", "yaml")
LISTED_FORMATS = (*FORMATS, "name")
LINE_FORMATS = ("text", "json")
WATCH_EVERY_S = 2.0
_EXAMPLES = {"REPLICA": "payments/risk-api-us-east-0", "DECISION": "payments/risk-api-us-east-1a2b3c-0123456789"}


def output_option(command: F) -> F:
    """`-o`, the same on every command that prints data. A command sees only `text` and `json`: YAML is JSON that is
    printed otherwise, and wide is text whose columns are all shown."""
    return _output(FORMATS)(command)


def list_output_option(command: F) -> F:
    """`-o` of commands that list objects: also `name`."""
    return _output(LISTED_FORMATS)(command)


def line_output_option(command: F) -> F:
    """`-o` of commands that print lines as they come."""
    return _output(LINE_FORMATS)(command)


def _output(formats: tuple[str, ...]) -> Callable[[F], F]:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default="text",
        show_default=True,
        callback=_set_style,
        help="Output format.",
    )


def _set_style(_: click.Context, __: click.Parameter, value: str) -> str:
    from holdfast.platform.output import set_style

    set_style(data="yaml" if value == "yaml" else "json", wide=value == "wide")
    return {"yaml": "json", "wide": "text"}.get(value, value)


def tenant_options(command: F) -> F:
    """`-n` and `-A`, as for kubectl. Without either, all tenants that the caller may see."""
    command = click.option(
        "-A", "--all-tenants", "--all-namespaces", "all_tenants", is_flag=True, help="All tenants; the default."
    )(command)
    return click.option(
        "-n",
        "--tenant",
        "--namespace",
        "tenant",
        default="",
        shell_complete=_complete_tenants,
        help="Only objects of this tenant.",
    )(command)


def _complete_tenants(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    from holdfast.cli.shell_completion import complete_tenants

    return list(complete_tenants(context, parameter, begun))


def watch_option(command: F) -> F:
    """`-w`: print again whenever the output changes."""
    return click.option("-w", "--watch", is_flag=True, help="Keep running, and print what changes.")(command)


def repeat_until_interrupted(read: Callable[[], str]) -> None:
    """Prints the text of `read` whenever it changes, every two seconds, until Ctrl-C."""
    import time

    shown = ""
    while True:
        text = read()
        if text != shown:
            click.echo(("\n" if shown else "") + text)
        shown = text
        time.sleep(WATCH_EVERY_S)


def state_option(command: F) -> F:
    """`--state` of commands that use the API: a local platform's directory, or a kubeconfig of a remote platform."""
    text = "The platform's directory, or a kubeconfig of a remote platform. Without a platform there: KUBECONFIG."
    return _state(click.Path(), text, callback=_or_kubeconfig)(command)


def _or_kubeconfig(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The kubeconfig that KUBECONFIG names, if the caller did not choose a platform and none is in the default place.

    A platform in the default place wins, because its directory has more than the API. The caller is told which platform
    is used whenever KUBECONFIG could mean another.
    """
    import os

    from click.core import ParameterSource

    named = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path and os.path.isfile(path)]
    if context.resilient_parsing or context.get_parameter_source("state") is not ParameterSource.DEFAULT or not named:
        return value
    own = os.path.join(value, "kubeconfig")
    if os.path.exists(os.path.join(value, "platform.json")):
        if not (os.path.exists(own) and os.path.samefile(own, named[0])):
            click.echo(f"note: using the platform in {value}, not KUBECONFIG; next: --state {named[0]}", err=True)
        return value
    click.echo(f"note: using {named[0]} (KUBECONFIG)", err=True)
    return named[0]


def directory_option(command: F) -> F:
    """`--state` of commands that use the files and processes of a local platform."""
    return _state(click.Path(file_okay=False), "The platform's directory.")(command)


def report_directory_option(command: F) -> F:
    """`--state` of commands that only read files of a local platform: like `state_option`, they follow KUBECONFIG."""
    text = "The platform's directory. Without a platform there: the directory of KUBECONFIG."
    return _state(click.Path(file_okay=False), text, callback=_or_directory_of_kubeconfig)(command)


def _or_directory_of_kubeconfig(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The directory of the kubeconfig that KUBECONFIG names, if it is that of a platform on this machine."""
    import os

    from click.core import ParameterSource

    chosen = context.get_parameter_source("state") is not ParameterSource.DEFAULT
    if context.resilient_parsing or chosen or os.path.exists(os.path.join(value, "platform.json")):
        return value
    for path in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        directory = os.path.dirname(path)
        if os.path.basename(path) == "kubeconfig" and os.path.exists(os.path.join(directory, "platform.json")):
            click.echo(f"note: using {directory} (KUBECONFIG)", err=True)
            return directory
    return value


def _state(
    type_: click.Path, text: str, *, callback: Callable[[click.Context, click.Parameter, str], str] | None = None
) -> Callable[[F], F]:
    return click.option(
        "--state",
        "state",
        type=type_,
        default=".holdfast",
        envvar="HOLDFAST_STATE",
        show_default=True,
        show_envvar=True,
        callback=callback,
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
