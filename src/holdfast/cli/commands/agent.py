"""`holdfast agent`."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.exits import Exit, Stop


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="A TOML file of settings; options override it.")
@click.option("--name", help="The node's name.")
@click.option("--region", help="The region it belongs to.")
@click.option("--zone", help="The zone it stands in.")
@click.option("--pool", help="The node pool.")
@click.option("--url", help="The address of the region's API.")
@click.option("--ca", type=click.Path(dir_okay=False), help="The authority that signed the API's certificate.")
@click.option("--cert", type=click.Path(dir_okay=False), help="The agent's certificate, if it was given one.")
@click.option("--key", type=click.Path(dir_okay=False), help="Its key.")
@click.option(
    "--join-token-file",
    type=click.Path(dir_okay=False),
    help="Instead of --cert: a file with a join token, which becomes the agent's own certificate.",
)
@click.option("--state", type=click.Path(file_okay=False), help="The agent's directory: tasks and their logs.")
@click.option("--address", help="The address its work is reached at.")
@click.option("--ports", metavar="FROM-TO", help="The ports it may give to its work.")
@click.option(
    "--capacity",
    multiple=True,
    metavar="RESOURCE=AMOUNT",
    help="Capacity to declare, such as cpu=8; detected where not given.",
)
@click.option("--gpu", "gpus", multiple=True, metavar="ID=MODEL", help="A GPU to declare; repeat for each.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the node; may be repeated.")
@click.option("--tenant", help="Reserve the node for one tenant.")
@click.option("--stop-work-on-exit", is_flag=True, help="End the work on SIGTERM instead of leaving it running.")
def agent(*, config: str | None, state: str | None, ports: str | None, **options: Any) -> None:
    """Run a node agent.

    It joins its region with a token that becomes a certificate of its own, registers the node, runs what the region
    binds to it, and reports. On SIGTERM it leaves the work running, so that it can be upgraded, and takes it over again
    when it returns. `holdfast token create NAME --join REGION` makes the token.

    \b
    Example:
      holdfast agent --name n1 --region eu-west --zone eu-west-a --url https://cell:7403 \\
        --ca ca.crt --join-token-file join-token --state /var/lib/holdfast/agent --ports 20000-20999
    """
    import uvloop

    from holdfast.agent.config import load
    from holdfast.agent.main import run_agent
    from holdfast.model.errors import Forbidden, Invalid, Unauthorized
    from holdfast.runtime.log import configure

    gpus: tuple[str, ...] = options.pop("gpus")
    capacity, labels = pairs("--capacity", options.pop("capacity")), pairs("--label", options.pop("labels"))
    stop_work = options.pop("stop_work_on_exit")
    devices = [{"id": device, "model": model} for device, model in pairs("--gpu", gpus).items()]
    try:
        settings = load(
            config,
            **options,
            state_dir=state,
            port_range=port_range(ports) if ports else None,
            capacity=capacity or None,
            labels=labels or None,
            devices=devices or None,
            stop_work_on_exit=True if stop_work else None,
        )
    except Invalid as error:
        raise Stop(
            "the agent's settings cannot be used",
            why=error.message,
            next_step="holdfast agent --help lists the options",
            code=Exit.USAGE,
        ) from None
    if not settings.url:
        raise Stop("the agent does not know its region's API", why="--url is missing", code=Exit.USAGE)
    configure(cell=settings.region, component=f"agent/{settings.name}")
    try:
        uvloop.run(run_agent(settings))
    except (Unauthorized, Forbidden) as refusal:
        raise Stop(
            f"region {settings.region} does not let node {settings.name} join",
            why=refusal.message,
            next_step=f"holdfast token create NAME --join {settings.region} --node {settings.name}",
            code=Exit.DENIED,
        ) from None


def pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` options as a table."""
    found: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise Stop(f"{option} {text!r} cannot be used", why="it is written KEY=VALUE", code=Exit.USAGE)
        found[key] = value
    return found


def port_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit()):
        raise Stop(f"--ports {text!r} cannot be used", why="it is written FROM-TO, as 20000-20999", code=Exit.USAGE)
    return int(low), int(high)
