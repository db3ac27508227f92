"""`holdfast kubeconfig`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.options import directory_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_note


@click.command()
@directory_option
@click.option("--write", "target", type=click.Path(dir_okay=False), help="Write to this file instead of stdout.")
@click.option("--token", default="", help="Use this API token instead of the operator's certificate.")
@click.option("--user", "person", default="", help="Use the certificate of this user; see `holdfast user add`.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def kubeconfig(state: str, target: str | None, token: str, person: str, force: bool) -> None:
    """Write a kubeconfig with one context per cell.

    The output is JSON, which is valid YAML. ~/.kube/config is not changed unless --write names it. An existing file is
    replaced only with --force. The file contains a private key.

    \b
    Examples:
      holdfast kubeconfig > ~/holdfast.kubeconfig
      kubectl --kubeconfig .holdfast/kubeconfig --context eu-west get nodes
    """
    import json

    from holdfast.platform.kubeconfig import kubeconfig_of, write_kubeconfig
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    platform = layout.load()
    if target is None:
        click.echo(json.dumps(kubeconfig_of(layout, platform, token=token, person=person), indent=2))
        return
    path = Path(target).expanduser().absolute()
    if path.exists() and not force:
        raise CommandError(
            f"{path}: the file exists and may contain other clusters",
            next_step=f"add --force, or choose another file: holdfast kubeconfig --write {path}.holdfast",
            code=ExitCode.CONFLICT,
        )
    write_kubeconfig(layout, platform, path, token=token, person=person)
    print_note(f"wrote {path} with the contexts {', '.join(name for name, _ in platform.cells)}")
