"""`holdfast agent`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.settings_file import check_config_option, check_keys, read_toml
from holdfast.foundation.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from holdfast.agent.config import AgentConfig


@click.command()
@check_config_option
@click.option("--config", type=click.Path(dir_okay=False), help="TOML file with settings; options override it.")
@click.option("--name", help="Node name.")
@click.option("--region", help="Region of the node.")
@click.option("--zone", help="Zone of the node.")
@click.option("--pool", help="Node pool.")
@click.option("--url", help="URL of the region's API.")
@click.option("--ca", type=click.Path(dir_okay=False), help="CA certificate of the API.")
@click.option("--cert", type=click.Path(dir_okay=False), help="Client certificate, if the agent does not join.")
@click.option("--key", type=click.Path(dir_okay=False), help="Key of the client certificate.")
@click.option(
    "--join-token-file",
    type=click.Path(dir_okay=False),
    help="File with a join token. The agent exchanges it for its own certificate (instead of --cert).",
)
@click.option("--state", type=click.Path(file_okay=False), help="Directory of the agent: tasks and their logs.")
@click.option("--address", help="Address at which tasks are reachable.")
@click.option("--dns", metavar="HOST:PORT", help="Name server (`holdfast dns`) that tasks are told to ask.")
@click.option("--ports", metavar="FROM-TO", help="Port range for tasks.")
@click.option(
    "--capacity",
    multiple=True,
    metavar="RESOURCE=AMOUNT",
    help="Capacity of the node, such as cpu=8. Detected if not set.",
)
@click.option(
    "--volumes",
    metavar="PATH=SIZE",
    help="Directory and total size of persistent volumes, such as /var/lib/volumes=100Gi. Without it, none.",
)
@click.option("--gpu", "gpus", multiple=True, metavar="ID=MODEL", help="GPU of the node; may be repeated.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the node; may be repeated.")
@click.option("--tenant", help="Dedicate the node to one tenant.")
@click.option(
    "--host-path",
    "host_paths",
    multiple=True,
    type=click.Path(file_okay=False),
    help="Directory that tasks see although it is below /tmp or a private directory; may be repeated.",
)
@click.option("--stop-work-on-exit", is_flag=True, help="Stop tasks on SIGTERM instead of leaving them running.")
def agent(*, config: str | None, state: str | None, ports: str | None, check_config: bool, **options: Any) -> None:
    """Run a node agent.

    The agent joins its region with a join token, registers the node, runs the tasks that the region binds to the node,
    and reports their status. On SIGTERM tasks keep running, and the restarted agent takes them over, so an agent can be
    upgraded in place. `holdfast token create NAME --join REGION` creates the join token.

    \b
    Example:
      holdfast agent --name n1 --region eu-west --zone eu-west-a --url https://cell:7403 \\
        --ca ca.crt --join-token-file join-token --state /var/lib/holdfast/agent --ports 20000-20999
    """
    import uvloop

    from holdfast.agent.config import AgentConfig, load
    from holdfast.agent.main import run_agent
    from holdfast.foundation.log import configure
    from holdfast.model.errors import Forbidden, Invalid, StoreFailed, Unauthorized, Unavailable

    if config is not None:
        check_keys(Path(config), read_toml(Path(config)), AgentConfig.__struct_fields__)
    gpus: tuple[str, ...] = options.pop("gpus")
    capacity, labels = parse_pairs("--capacity", options.pop("capacity")), parse_pairs("--label", options.pop("labels"))
    stop_work = options.pop("stop_work_on_exit")
    volumes = parse_pairs("--volumes", (given,)) if (given := options.pop("volumes")) else {}
    host_paths = options.pop("host_paths")
    devices = [{"id": device, "model": model} for device, model in parse_pairs("--gpu", gpus).items()]
    try:
        settings = load(
            config,
            **options,
            state_dir=state,
            port_range=parse_port_range(ports) if ports else None,
            capacity=capacity or None,
            labels=labels or None,
            volumes=next(({"path": path, "size": size} for path, size in volumes.items()), None),
            devices=devices or None,
            host_paths=host_paths or None,
            stop_work_on_exit=True if stop_work else None,
        )
    except Invalid as error:
        raise CommandError(
            f"agent settings: {error.message}", next_step="holdfast agent --help", code=ExitCode.USAGE
        ) from None
    if not settings.url:
        raise CommandError(
            f"node {settings.name}: --url is missing", next_step="add --url https://HOST:PORT", code=ExitCode.USAGE
        )
    if check_config:
        click.echo(f"node {settings.name}: the settings are valid", err=True)
        return
    configure(cell=settings.region, component=f"agent/{settings.name}")
    try:
        uvloop.run(run_agent(settings))
    except (Unauthorized, Forbidden) as refusal:
        raise CommandError(
            f"node {settings.name}: {refusal.message.partition('; next: ')[0]}",
            next_step=_rejoin_step(settings),
            code=ExitCode.DENIED,
        ) from None
    except (StoreFailed, Unavailable) as fault:
        # Of the state directory. A region that does not answer is waited for.
        text, _, step = fault.message.partition("; next: ")
        raise CommandError(f"node {settings.name}: {text}", next_step=step) from None


def _rejoin_step(settings: AgentConfig) -> str:
    """How a refused node joins. `holdfast node join` leaves a record beside the agent's files."""
    node = f"{settings.region} --node {settings.name}"
    if (Path(settings.state_dir) / "install.json").exists():
        return f"on an operator's machine: holdfast node token --region {node}, then here: holdfast node join - with it"
    return f"holdfast token create NAME --join {node}, and put the token into the agent's join token file"


def parse_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Parses `KEY=VALUE` options."""
    found: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise CommandError(f"{option} {text}: invalid (expected KEY=VALUE)", code=ExitCode.USAGE)
        found[key] = value
    return found


def parse_port_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit()):
        raise CommandError(
            f"--ports {text}: invalid (expected FROM-TO)", next_step="--ports 20000-20999", code=ExitCode.USAGE
        )
    return int(low), int(high)
