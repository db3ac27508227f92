"""`holdfast completion`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print a shell completion script.

    It completes commands, options, kinds, drills and workloads.

    \b
    Examples:
      source <(holdfast completion bash)
      holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    from click.shell_completion import get_completion_class

    from holdfast.cli.app import holdfast

    found = get_completion_class(shell)
    assert found is not None  # click supports these three shells
    click.echo(found(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
