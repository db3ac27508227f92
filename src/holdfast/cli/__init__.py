"""The `holdfast` command. Modules are imported only when a command needs them, so that `--help` is fast."""

from __future__ import annotations


def main() -> None:
    """The entry point of the installed command. Exits with one of the codes of `Exit`."""
    from holdfast.cli.app import run

    raise SystemExit(run())
