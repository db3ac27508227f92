"""`holdfast proxy`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.options import state_option
from holdfast.cli.settings_file import check_config_option, read_toml
from holdfast.foundation.exit_codes import CommandError, ExitCode


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="TOML file: region, listeners, tenants, hostnames, limits.",
)
@check_config_option
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of HAProxy's configuration, sockets and log; beside the file if not set.",
)
@click.option("--haproxy", default="", metavar="PATH", help="HAProxy's program; the one on PATH if not set.")
@state_option
def proxy(*, config: Path, check_config: bool, directory: Path | None, haproxy: str, state: str) -> None:
    """Run an entry proxy for a region: HAProxy, kept in step with the serving replicas.

    Clients reach a workload on an HTTP listener as WORKLOAD.TENANT.holdfast.internal, or by a hostname or TCP port of
    the file. Requests go to the nearest region that serves. A replica gets no more requests before it stops. HAProxy is
    restarted if it exits; it is never given a configuration that it does not accept.

    \b
    Examples:
      holdfast proxy --config /etc/holdfast/proxy.toml --check-config
      holdfast proxy --config /etc/holdfast/proxy.toml --state /etc/holdfast/kubeconfig
    """
    import shutil

    import uvloop

    from holdfast.client.connecting import connect_async
    from holdfast.foundation.log import configure
    from holdfast.foundation.ports import SystemPorts
    from holdfast.model.errors import BadRequest, Invalid
    from holdfast.platform.output import print_note
    from holdfast.proxy.entry_proxy import run_entry_proxy
    from holdfast.proxy.settings import parse_settings

    try:
        settings = parse_settings(read_toml(config), str(config))
    except Invalid as error:
        raise CommandError(
            error.message, next_step="docs/how-to/entry-proxy.md lists the keys", code=ExitCode.USAGE
        ) from None
    program = shutil.which(haproxy or "haproxy")
    if program is None:
        raise CommandError(
            f"{haproxy or 'haproxy'}: program not found",
            next_step="install HAProxy 2.4 or later, or name it with --haproxy",
        )
    if check_config:
        click.echo(f"proxy of {settings.region}: the settings are valid", err=True)
        return
    try:
        client = connect_async(state)
    except BadRequest as error:
        what, _, advice = str(error).partition("; next: ")
        raise CommandError(what, next_step=advice) from error
    configure(cell=settings.region, component="proxy")
    folder = (directory or config.parent / f"proxy-{settings.region}").absolute()
    ports = SystemPorts()
    listeners = ", ".join(f"{settings.bind}:{port}" for port in settings.listener_ports)
    uvloop.run(
        run_entry_proxy(
            client,
            settings,
            program=program,
            folder=folder,
            ports=ports,
            announce=lambda: print_note(f"proxy of {settings.region}: {listeners}"),
        )
    )
