"""`holdfast doctor`."""

from __future__ import annotations

import click

from holdfast.cli.commands.init import install_state_option
from holdfast.cli.options import output_option
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.output import print_json


@click.command()
@click.option("--join", "token", default="", metavar="TOKEN", help="Check the way to the cell that this token names.")
@click.option(
    "--role", type=click.Choice(("global", "region", "agent")), help="Check for this role before it is there."
)
@install_state_option
@output_option
def doctor(*, token: str, role: str | None, state: str | None, output: str) -> int:
    """Check this machine and its cells; each finding has a next step.

    Checks the roles that are installed here. On a new machine: --role or --join. `init` and `join` run the same checks
    first. Exits with 1 if a check fails.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --role agent -o json
    """
    import msgspec

    from holdfast.install.cell_checks import remote_checks
    from holdfast.install.doctor import Needs, failures, installed_report, machine_report
    from holdfast.install.join_string import parse_join_string
    from holdfast.install.places import GLOBAL_PORT, REGION_PORT, TASK_PORTS, Places, Role

    places = Places(state)
    needs: dict[Role, Needs] = {
        "global": Needs(ports=(GLOBAL_PORT,)),
        "region": Needs(ports=(REGION_PORT,)),
        "agent": Needs(task_ports=TASK_PORTS),
    }
    found = installed_report(places)
    chosen: Role | None = next((each for each in needs if each == role), None)
    if chosen is None and not found and not token:
        chosen = "agent"
    if chosen is not None and chosen not in found:
        found[chosen] = machine_report(places, chosen, needs[chosen])
    if token:
        joins = "region" if _is_region_token(token) else "node"
        joining = parse_join_string(token, joins)
        target: Role = "region" if joins == "region" else "agent"
        found["join"] = list(remote_checks(joining.url, places, target, fingerprint=joining.ca))
    wrong = [finding for each in found.values() for finding in failures(each)]
    if output == "json":
        print_json({"roles": {name: [msgspec.to_builtins(f) for f in each] for name, each in found.items()}})
    else:
        for name, each in found.items():
            for finding in each:
                click.echo(f"{finding.status:<5}{name}  {finding.name}: {finding.message}")
                if finding.next_step and finding.status != "ok":
                    click.echo(f"     next: {finding.next_step}")
    return ExitCode.FAILED if wrong else ExitCode.OK


def _is_region_token(token: str) -> bool:
    from holdfast.foundation.exit_codes import CommandError
    from holdfast.install.join_string import parse_join_string

    try:
        parse_join_string(token, "region")
    except CommandError:
        return False
    return True
