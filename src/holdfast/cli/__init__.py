"""The `holdfast` command. Nothing heavy is imported before a command needs it, so that `--help` answers at once."""

from __future__ import annotations


def main() -> None:
    """The entry point of the installed command; ends the process with one of `cli.exits.Exit`."""
    from holdfast.cli.app import run

    raise SystemExit(run())
