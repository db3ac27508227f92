"""`holdfast version`."""

from __future__ import annotations

import platform
import sys

import click

import holdfast
from holdfast.cli.options import output_option
from holdfast.platform.output import print_json


@click.command()
@output_option
def version(output: str) -> None:
    """Print the version.

    \b
    Example:
      holdfast version -o json
    """
    if output == "json":
        print_json({"holdfast": holdfast.__version__, "python": platform.python_version(), "platform": sys.platform})
    else:
        click.echo(f"holdfast {holdfast.__version__} (Python {platform.python_version()})")
