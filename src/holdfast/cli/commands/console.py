"""`holdfast console`."""

from __future__ import annotations

import click

from holdfast.cli.options import directory_option, output_option
from holdfast.platform.output import print_json


@click.command()
@directory_option
@output_option
def console(state: str, output: str) -> None:
    """Print a link that opens the console and signs in.

    The link works once, within ten minutes, and signs in as the caller of this command. To sign in as someone else,
    open the console without a link and enter a token (`holdfast token create`).

    \b
    Examples:
      holdfast console
      xdg-open "$(holdfast console)"
    """
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.console_link import console_link
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    platform = layout.load()
    link = console_link(connect_cell(layout, platform, "global"), platform.global_url)
    if output == "json":
        print_json({"url": link})
    else:
        click.echo(link)
