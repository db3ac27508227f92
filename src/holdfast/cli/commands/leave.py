"""`holdfast leave`."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.cli.commands.init import install_state_option
from holdfast.cli.options import output_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note


@click.command()
@click.argument("role", type=click.Choice(("global", "region", "agent")))
@install_state_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-state", is_flag=True, help="Remove only the service; keep configuration and state.")
@output_option
def leave(*, role: str, state: str | None, yes: bool, keep_state: bool, output: str) -> None:
    """Remove a cell or an agent from this machine. Asks before it destroys anything.

    \b
    Examples:
      holdfast leave agent
      holdfast leave region --keep-state
    """
    leave_role(role, state=state, yes=yes, keep_state=keep_state, output=output)


def leave_role(role: Any, *, state: str | None, yes: bool, keep_state: bool, output: str) -> None:
    from holdfast.install.places import Places
    from holdfast.install.removal import removal_warning, remove_role

    places = Places(state)
    warning = removal_warning(places, role)
    if not keep_state and not yes:
        if not sys.stdin.isatty():
            raise CommandError(
                f"{role}: it would destroy {warning}", next_step="add --yes, or --keep-state", code=ExitCode.USAGE
            )
        click.confirm(f"Destroy {warning}\nContinue?", abort=True, err=True)
    removed = remove_role(places, role, keep_state=keep_state)
    if output == "json":
        print_json({"role": role, "removed": removed, "stateKept": keep_state})
        return
    for path in removed:
        print_note(f"removed {path}")
