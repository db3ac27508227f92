"""`holdfast ca`: the platform's certificate authority."""

from __future__ import annotations

import click

from holdfast.cli.commands.init import install_state_option
from holdfast.cli.options import output_option
from holdfast.platform.output import print_json, print_note


@click.group()
def ca() -> None:
    """Show and rotate the platform's certificate authority.

    Run on the machine of the global cell, which holds the CA's key.

    \b
    Examples:
      holdfast ca show
      holdfast ca rotate
    """


@ca.command()
@install_state_option
@output_option
def show(*, state: str | None, output: str) -> None:
    """Show the CA that signs, those that are trusted, and how far a rotation is.

    \b
    Example:
      holdfast ca show
    """
    import msgspec

    from holdfast.install.ca_rotation import ca_state
    from holdfast.install.places import Places

    found = ca_state(Places(state))
    if output == "json":
        print_json(msgspec.to_builtins(found))
        return
    for each in found.trusted:
        click.echo(f"sha256:{each}{'  signs, until ' + found.expires_at if each == found.signer else ''}")
    click.echo(f"rotation: {f'after step {found.step}; next: holdfast ca rotate' if found.step else 'none'}")


@ca.command()
@click.option(
    "--until",
    type=click.Choice(("trust", "sign", "drop")),
    default="drop",
    show_default=True,
    help="Last step to do. Run again to continue.",
)
@click.option("--skip", multiple=True, metavar="REGION", help="Do not wait for this region; it must join again.")
@click.option(
    "--settle",
    type=click.FloatRange(0, 86400),
    default=45.0,
    show_default=True,
    help="Seconds for agents to fetch the new CA from their region.",
)
@install_state_option
@output_option
def rotate(*, until: str, skip: tuple[str, ...], settle: float, state: str | None, output: str) -> None:
    """Replace the CA without downtime. Can be stopped and run again at any time.

    Cells and agents first trust both CAs, then the new one signs and cells renew their certificates, then the old one
    is dropped. Kubeconfigs that were copied before stop working with the last step: copy the new one.

    \b
    Examples:
      holdfast ca rotate
      holdfast ca rotate --until sign
    """
    import msgspec

    from holdfast.install.ca_rotation import rotate as rotate_ca
    from holdfast.install.places import Places

    places = Places(state)
    found = rotate_ca(places, print_note, until=until, skip=frozenset(skip), settle_s=settle)
    if output == "json":
        print_json(msgspec.to_builtins(found))
        return
    if found.step:
        print_note(f"stopped after step {found.step}; next: holdfast ca rotate")
    else:
        print_note(f"The CA is rotated. next: copy {places.kubeconfig} to the operators' machines")
