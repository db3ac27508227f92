"""`--config FILE` and `--check-config`: a TOML file whose keys are the options of the command, with `_` for `-`.

The file is read strictly: an unknown key is an error that suggests the nearest known one. Options on the command line
override the file.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.foundation.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from holdfast.foundation.tracing import TraceSettings

F = TypeVar("F", bound=Callable[..., Any])

CHECK_CONFIG = "check_config"
_NOT_KEYS = frozenset({"config", CHECK_CONFIG, "help"})


def config_option(command: F) -> F:
    """Adds `--config` and `--check-config`. The command gets `check_config` and returns early if it is set."""
    command = check_config_option(command)
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_load,
        help="TOML file with settings; options override it.",
    )(command)


def check_config_option(command: F) -> F:
    return click.option("--check-config", is_flag=True, help="Check the settings, start nothing, and exit.")(command)


def setting_keys(command: click.Command) -> dict[str, click.Option]:
    """The keys that the file of this command may have."""
    return {
        str(option.name): option
        for option in command.params
        if isinstance(option, click.Option) and option.name not in _NOT_KEYS
    }


def _load(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    found = read_toml(path)
    known = setting_keys(ctx.command)
    check_keys(path, found, known)
    for key, value in found.items():
        if not isinstance(value, (str, int, float, bool)) or isinstance(value, bool) != known[key].is_flag:
            expected = "true or false" if known[key].is_flag else "a text or a number"
            raise CommandError(
                f"{path}: {key}: invalid (expected {expected}, found {type(value).__name__})",
                next_step=f"holdfast {ctx.info_name} --help explains --{key.replace('_', '-')}",
                code=ExitCode.USAGE,
            )
    ctx.default_map = {**(ctx.default_map or {}), **found}


def read_trace_settings(endpoint: str, ratio: float | None) -> TraceSettings:
    """Where traces are exported to, from options and OpenTelemetry's variables."""
    from holdfast.foundation.tracing import trace_settings
    from holdfast.model.errors import Invalid

    try:
        return trace_settings(endpoint, ratio, os.environ)
    except Invalid as error:
        next_step = "correct it; docs/operations/traces.md describes it"
        raise CommandError(error.message, next_step=next_step, code=ExitCode.USAGE) from None


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as wrong:
        why = getattr(wrong, "strerror", None) or wrong
        raise CommandError(
            f"{path}: cannot read it ({why})",
            next_step="correct the file, or name another with --config",
            code=ExitCode.USAGE,
        ) from None


def check_keys(path: Path, found: Iterable[str], known: Iterable[str]) -> None:
    """Raises for the first key that does not exist."""
    names = sorted(known)
    for key in found:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            raise CommandError(
                f"{path}: unknown key {key}" + (f"; did you mean {near[0]}?" if near else ""),
                next_step="docs/reference/configuration.md lists the keys",
                code=ExitCode.USAGE,
            )
