"""`holdfast region`: adds regions, makes the tokens with which their cells join, and revokes regions."""

from __future__ import annotations

import click

from holdfast.cli.commands.server import REASON, YES, revoke_asking
from holdfast.cli.commands.tokens import parse_duration_s
from holdfast.cli.options import output_option, state_option
from holdfast.platform.output import print_json, print_note

TTL = click.option("--expires", default="1h", show_default=True, metavar="DURATION", help="Lifetime of the token.")
HOSTS = click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Allow only these names in the region's certificate; also names that another cell has.",
)


@click.group()
def region() -> None:
    """Add regions, create the tokens with which their cells join, and revoke them.

    \b
    Examples:
      holdfast region add us-east --zones us-east-a,us-east-b
      holdfast region token us-east
      holdfast region revoke us-east
    """


@region.command()
@click.argument("name")
@click.option("--zones", default="", metavar="ZONE,…", help="Zones of the region. Default: NAME-a.")
@click.option("--residency", default="", metavar="TAG,…", help="Residency tags that workloads can require.")
@click.option("--cost", type=click.IntRange(0, 1_000_000), default=100, show_default=True, help="Relative cost.")
@HOSTS
@TTL
@state_option
@output_option
def add(
    name: str, *, zones: str, residency: str, cost: int, hosts: tuple[str, ...], expires: str, state: str, output: str
) -> None:
    """Add a region and print a token for its cell. An existing region stays as it is.

    The token is printed on standard output, once: the global cell stores only its hash. It is good for one machine.

    \b
    Example:
      holdfast region add us-east --zones us-east-a,us-east-b > us-east.token
    """
    from holdfast.install.regions import add_region, global_api

    api = global_api(state)
    created = add_region(api, name, zones=_split(zones), residency=_split(residency), cost=cost)
    if output == "text":
        print_note(f"region {name}: {'added' if created else 'exists; unchanged'}")
    _print_token(name, hosts, expires, state=state, output=output)


@region.command()
@click.argument("name")
@HOSTS
@TTL
@state_option
@output_option
def token(name: str, *, hosts: tuple[str, ...], expires: str, state: str, output: str) -> None:
    """Print a new token for the cell of an existing region.

    \b
    Example:
      holdfast region token us-east --expires 2h
    """
    _print_token(name, hosts, expires, state=state, output=output)


@region.command("revoke")
@click.argument("name")
@REASON
@YES
@state_option
@output_option
def revoke_region(name: str, *, reason: str, yes: bool, state: str, output: str) -> None:
    """Revoke all certificates of a region's cell, for example when its machines are stolen.

    The global cell refuses the region at once, and its join tokens are deleted. What the region runs is recovered as
    from a region that is lost. Shows the effects and asks before it revokes. The region can join again later, with new
    keys.

    \b
    Example:
      holdfast region revoke us-east --reason "rack stolen"
    """
    revoke_asking("regions", name, reason=reason, yes=yes, state=state, output=output)


def _print_token(name: str, hosts: tuple[str, ...], expires: str, *, state: str, output: str) -> None:
    from holdfast.install.regions import global_api, region_join_string

    text = region_join_string(global_api(state), name, ttl_s=parse_duration_s(expires), hosts=hosts)
    if output == "json":
        print_json({"region": name, "token": text, "expires": expires})
        return
    click.echo(text)
    print_note(f"next: on the region's machine: holdfast init region --join TOKEN --advertise HOST (within {expires})")


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
