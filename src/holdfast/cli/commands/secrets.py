"""`holdfast secrets`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.options import directory_option, output_option, state_option
from holdfast.platform.output import print_json, print_note, table

FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def secrets() -> None:
    """List and rotate the keys that encrypt Secrets.

    Each cell has a key file of its own, secret-keys.json in its state directory. Backups do not contain it: keep a copy
    elsewhere.

    \b
    Examples:
      holdfast secrets keys
      holdfast secrets rotate-key --cell eu-west
    """


@secrets.command("keys")
@click.option(
    "--cell", default="global", show_default=True, metavar="global|REGION", help="Cell whose keys are listed."
)
@state_option
@output_option
def list_keys(*, cell: str, state: str, output: str) -> None:
    """List the keys of a cell, and how many Secrets each seals.

    `seals: yes` marks the key of new Secrets. A missing key seals Secrets, but is not in the key file.

    \b
    Example:
      holdfast secrets keys --cell eu-west -o json
    """
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout
    from holdfast.platform.secret_keys import KEYS_PATH

    layout = Layout(state)
    api = connect_cell(layout, layout.load(), cell)
    try:
        found = api.get(KEYS_PATH)
    finally:
        api.close()
    if output == "json":
        print_json(found)
        return
    rows = [
        (row["id"], "missing" if row["missing"] else "yes" if row["seals"] else "no", row["secrets"], row["created"])
        for row in found["keys"]
    ]
    click.echo(table(("KEY", "SEALS", "SECRETS", "CREATED"), rows))


@secrets.command("rotate-key")
@click.option(
    "--cell", default="global", show_default=True, metavar="global|REGION", help="Cell whose key is replaced."
)
@click.option("--key-file", type=FILE, help="Key file of the cell.  [default: that of a local platform]")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait until everything is sealed again.")
@directory_option
@output_option
def rotate_key(*, cell: str, key_file: Path | None, timeout: float, state: str, output: str) -> None:
    """Replace the key that encrypts Secrets, while the cell serves.

    Adds a key to the key file, waits until the cell has encrypted every Secret with it, and removes the old keys. An
    interrupted rotation continues when the command is run again. Keep the old key file with the backups that need it.

    \b
    Example:
      holdfast secrets rotate-key --cell global
    """
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout
    from holdfast.platform.secret_keys import key_file_of, rotate

    layout = Layout(state)
    api = connect_cell(layout, layout.load(), cell)
    try:
        done = rotate(api, key_file or key_file_of(layout, cell), timeout_s=timeout, say=print_note)
    finally:
        api.close()
    if output == "json":
        print_json({"cell": cell, **done})
        return
    dropped = ", ".join(done["dropped"])
    click.echo(f"cell {cell}: key {done['key']} encrypts {done['secrets']} Secrets; dropped {dropped}")
