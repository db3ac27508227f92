"""`holdfast kubeconfig`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import directory_option, note


@click.command()
@directory_option
@click.option("--write", "target", type=click.Path(dir_okay=False), help="Write this file instead of printing.")
@click.option("--token", default="", help="Use this API token instead of the operator's certificate.")
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def kubeconfig(state: str, target: str | None, token: str, force: bool) -> None:
    """Write a kubeconfig with one context per cell.

    Printed as JSON, which is YAML too. ~/.kube/config is never touched unless you name it, and an existing file is only
    replaced with --force. The file holds a private key: keep it to yourself.

    \b
    Examples:
      holdfast kubeconfig > ~/holdfast.kubeconfig
      kubectl --kubeconfig .holdfast/kubeconfig --context eu-west get nodes
    """
    import json

    from holdfast.cli.platform.kubeconfig import kubeconfig_of, write_kubeconfig
    from holdfast.cli.platform.layout import Layout

    layout = Layout(state)
    platform = layout.load()
    if target is None:
        click.echo(json.dumps(kubeconfig_of(layout, platform, token=token), indent=2))
        return
    path = Path(target).expanduser().absolute()
    if path.exists() and not force:
        raise Stop(
            f"{path} exists",
            why="it may hold contexts of other clusters, which would be lost",
            next_step="choose another file, or say --force",
            code=Exit.CONFLICT,
        )
    write_kubeconfig(layout, platform, path, token=token)
    note(f"wrote {path}; its contexts are {', '.join(name for name, _ in platform.cells)}")
