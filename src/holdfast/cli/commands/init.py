"""`holdfast init`: a cell on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.commands.server import print_server_tokens
from holdfast.cli.commands.tokens import parse_duration_s
from holdfast.cli.options import output_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note

if TYPE_CHECKING:
    from holdfast.install.cells import CellPlan
    from holdfast.install.doctor import Needs
    from holdfast.install.places import Places

F = TypeVar("F", bound=Callable[..., Any])
# Lifetime of the tokens that `holdfast init global --replicas` prints.
SERVER_TOKENS_EXPIRE = "1h"


@click.group()
def init() -> None:
    """Install a cell on this machine: the global cell, or the cell of a region.

    Both commands can be run again after an interruption, and change nothing that is finished.

    \b
    Examples:
      holdfast init global --advertise 10.0.0.1
      holdfast init region --join TOKEN --advertise 10.0.1.1
    """


def install_options(command: F) -> F:
    """Options of every installation on a machine."""
    for option in (
        click.option("--skip-checks", is_flag=True, help="Install even if a check of `holdfast doctor` fails."),
        click.option("--no-start", is_flag=True, help="Install everything, but start nothing."),
        install_state_option,
    ):
        command = option(command)
    return command


def install_state_option(command: F) -> F:
    return click.option(
        "--state",
        default=None,
        type=click.Path(file_okay=False),
        help="Keep state, configuration and unit in this directory. Default: /etc/holdfast, /var/lib/holdfast.",
    )(command)


def _cell_options(command: F) -> F:
    for option in (
        click.option("--etcd-password-file", default="", help="File with the password of the etcd user."),
        click.option("--etcd-user", default="", help="etcd user, if authentication is enabled."),
        click.option("--etcd-key", default="", help="Key of the etcd client certificate."),
        click.option("--etcd-cert", default="", help="Client certificate for etcd."),
        click.option("--etcd-ca", default="", help="CA certificate of etcd."),
        click.option("--etcd", default="", metavar="URL,…", help="Store in this etcd cluster instead of SQLite."),
        click.option(
            "--start-etcd", is_flag=True, help="Start an etcd with TLS here and store in it, so that servers can join."
        ),
        click.option(
            "--replicas",
            type=click.IntRange(1, 7),
            default=1,
            show_default=True,
            help="Planned number of servers of the cell. More than one implies --start-etcd, unless --etcd is given.",
        ),
        click.option("--host", "hosts", multiple=True, help="Further name of the server certificate; may be repeated."),
        click.option("--listen", default="", help="Listen address. Default: all, or loopback for a loopback address."),
        click.option(
            "--advertise", required=True, metavar="HOST[:PORT]", help="Address at which other machines reach the cell."
        ),
    ):
        command = option(command)
    return command


def _plan(name: str, default_port: int, options: dict[str, Any]) -> CellPlan:
    from holdfast.install.cells import CellPlan, etcd_settings
    from holdfast.install.places import parse_advertise

    host, port, url = parse_advertise(options["advertise"], default_port)
    replicas: int = options["replicas"]
    start_etcd = options["start_etcd"] or (replicas > 1 and not options["etcd"])
    if (start_etcd and (options["etcd"] or options["no_start"])) or (replicas > 1 and options["no_start"]):
        conflict = "--start-etcd: not together with --etcd or --no-start"
        wrong = conflict if options["start_etcd"] else "--replicas: not together with --no-start"
        raise CommandError(wrong, next_step="leave out one of these options", code=ExitCode.USAGE)
    if replicas % 2 == 0:
        text = f"warning: --replicas {replicas} tolerates no more failed servers than {replicas - 1}"
        print_note(f"{text}; next: use an odd number")
    keys = ("etcd_ca", "etcd_cert", "etcd_key", "etcd_password_file")
    files = [(key, str(Path(options[key]).absolute()) if options[key] else "") for key in keys]
    store = etcd_settings(options["etcd"], [*files, ("etcd_user", options["etcd_user"])])
    return CellPlan(
        name=name,
        host=host,
        port=port,
        url=url,
        listen=options["listen"],
        hosts=options["hosts"],
        store=store,
        start=not options["no_start"],
        start_etcd=start_etcd,
        replicas=replicas if replicas > 1 else 0,
    )


@init.command("global")
@_cell_options
@click.option(
    "--join",
    "token",
    default="",
    metavar="TOKEN",
    help="Become a further server of the global cell, with a token of `holdfast server token`; - reads it.",
)
@click.option(
    "--kubeconfig", type=click.Path(dir_okay=False), help="Write the operator's credentials to this file as well."
)
@install_options
@output_option
def global_(*, token: str, **options: Any) -> None:
    """Install and start the global cell of a new platform, or a further server of it.

    Makes the platform's CA, the cell's certificate, operator credentials, the configuration and a service, starts it,
    and creates default priority classes, a policy, a tenant and a quota. With --replicas, it prints a token for each
    further server. With --join, this machine becomes a further server of a global cell on etcd, and gets the keys that
    its servers share.

    \b
    Examples:
      holdfast init global --advertise 10.0.0.1
      holdfast init global --advertise 10.0.0.1 --replicas 3 > global.servers
      holdfast init global --advertise 10.0.0.2 --join hf1.…
      holdfast init global --advertise control.example.com:7400 --etcd https://e1:2379,https://e2:2379 --etcd-ca ca.crt
    """
    from holdfast.install.cells import init_global
    from holdfast.install.doctor import Needs
    from holdfast.install.further_servers import join_cell
    from holdfast.install.join_string import parse_join_string
    from holdfast.install.places import GLOBAL_PORT, Places
    from holdfast.platform.layout import write_atomically

    places = Places(options["state"])
    plan = _plan("global", GLOBAL_PORT, options)
    joining = parse_join_string(read_token(token), "server") if token else None
    if joining is not None:
        _check_cell(joining.name, "global")
        _check_joins_without_replicas(plan)
    if not options["skip_checks"]:
        preflight(places, "global", Needs(ports=plan.ports, other=joining.url if joining is not None else ""))
    if joining is not None:
        join_cell(places, plan, joining, print_note)
    else:
        init_global(places, plan, print_note)
    copy = options["kubeconfig"]
    if copy:
        write_atomically(Path(copy), places.kubeconfig.read_bytes())
    tokens = further_server_tokens(places, plan) if joining is None else []
    export = f"export HOLDFAST_STATE={copy or places.kubeconfig}"
    if options["output"] == "json":
        made = {"cell": "global", "url": plan.url, "kubeconfig": str(places.kubeconfig), "started": plan.start}
        print_json({**made, **({"serverTokens": tokens} if plan.replicas else {})})
        return
    print_note(f"\nThe global cell {'serves' if plan.start else 'is installed'} at {plan.url}.")
    if plan.replicas:
        print_server_tokens("global", tokens, SERVER_TOKENS_EXPIRE)
        return
    more = "holdfast server token global, for each further server" if plan.start_etcd else "holdfast region add us-east"
    print_note(f"next: {export}; {'holdfast server list' if joining is not None else more}")


def further_server_tokens(places: Places, plan: CellPlan) -> list[str]:
    """Tokens for the servers that the global cell lacks, made with this machine's operator credentials."""
    from holdfast.install.regions import global_api, missing_server_join_strings

    if not plan.replicas:
        return []
    ttl_s = parse_duration_s(SERVER_TOKENS_EXPIRE)
    return missing_server_join_strings(global_api(str(places.kubeconfig)), "global", plan.replicas, ttl_s=ttl_s)


@init.command("region")
@click.option(
    "--join",
    "token",
    required=True,
    metavar="TOKEN",
    help="Token of `holdfast region add`, or of `holdfast server token` for a further server; - reads it.",
)
@_cell_options
@install_options
@output_option
def region(*, token: str, **options: Any) -> None:
    """Install and start the cell of a region, with the token that `holdfast region add` or `server token` printed.

    The token names the global cell and the hash of its CA, so nothing else is copied. Keys are made here; the global
    cell signs them. The region makes its own CA for its nodes.

    \b
    Example:
      holdfast init region --join hf1.… --advertise 10.0.1.1
    """
    from holdfast.install.cells import join_region
    from holdfast.install.doctor import Needs
    from holdfast.install.further_servers import join_cell
    from holdfast.install.join_string import parse_join_string
    from holdfast.install.places import REGION_PORT, Places

    places = Places(options["state"])
    joining = parse_join_string(read_token(token), "region", "server")
    if joining.joins == "server" and joining.name == "global":
        _check_cell(joining.name, "region")
    plan = _plan(joining.name, REGION_PORT, options)
    if joining.joins == "server":
        _check_joins_without_replicas(plan)
    if not options["skip_checks"]:
        preflight(places, "region", Needs(ports=plan.ports, other=joining.url))
    (join_cell if joining.joins == "server" else join_region)(places, plan, joining, print_note)
    if options["output"] == "json":
        print_json({"cell": plan.name, "url": plan.url, "global": joining.url, "started": plan.start})
        return
    print_note(f"\nRegion {plan.name} {'serves' if plan.start else 'is installed'} at {plan.url}.")
    print_note("next: on a machine with operator credentials:")
    if plan.replicas:
        print_note(f"  holdfast server token {plan.name} --replicas {plan.replicas}")
    print_note(f"  holdfast node token --region {plan.name}")


def _check_joins_without_replicas(plan: CellPlan) -> None:
    if plan.replicas:
        raise CommandError(
            "--replicas: only for the first server of a cell; this token is for a further server",
            next_step="leave out --replicas",
            code=ExitCode.USAGE,
        )


def _check_cell(found: str, role: str) -> None:
    if (found == "global") != (role == "global"):
        right = f"holdfast init {'global' if found == 'global' else 'region'} --join TOKEN"
        raise CommandError(f"join token: it is for a server of cell {found}", next_step=right, code=ExitCode.USAGE)


def read_token(text: str) -> str:
    """The token, from standard input if it is `-`, so that it need not be in the shell's history."""
    if text != "-":
        return text
    return sys.stdin.readline().strip()


def preflight(places: Any, role: Any, needs: Needs) -> None:
    """Raises if a check of `holdfast doctor` fails for this role. A role that is already installed is not checked."""
    from holdfast.install.doctor import failures, machine_report

    if places.record(role) is not None:
        return
    wrong = failures(machine_report(places, role, needs))
    if wrong:
        for check in wrong[1:]:
            print_note(f"error: {check.name}: {check.message}")
        raise CommandError(
            f"{wrong[0].name}: {wrong[0].message}",
            next_step=wrong[0].next_step or "--skip-checks installs anyway",
            code=ExitCode.CONFLICT,
        )
