"""`holdfast hollow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.commands.agent import parse_pairs
from holdfast.foundation.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from holdfast.agent.hollow import DelayRange

FILE = click.Path(dir_okay=False)


@click.command()
@click.option("--count", type=click.IntRange(1, 50_000), required=True, help="Number of nodes.")
@click.option("--region", required=True, help="Region of the nodes.")
@click.option("--prefix", default="hollow-", show_default=True, help="Prefix of node names.")
@click.option("--zone", "zones", multiple=True, required=True, help="Zone to spread the nodes over; may be repeated.")
@click.option("--pool", default="default", show_default=True, help="Node pool.")
@click.option("--url", required=True, help="URL of the region's API.")
@click.option("--ca", type=FILE, required=True, help="CA certificate of the API.")
@click.option("--cert", type=FILE, required=True, help="Client certificate for holdfast:hollow:REGION:PREFIX.")
@click.option("--key", type=FILE, required=True, help="Key of the client certificate.")
@click.option(
    "--capacity",
    multiple=True,
    metavar="RESOURCE=AMOUNT",
    default=("cpu=4", "memory=32Gi"),
    show_default=True,
    help="Capacity of each node.",
)
@click.option("--gpus", type=click.IntRange(0, 64), default=0, show_default=True, help="GPUs of each node.")
@click.option("--gpu-model", default="", help="Model of the GPUs.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of every node; may be repeated.")
@click.option("--start-delay", default="0.2-1", show_default=True, metavar="S|S-S", help="Seconds to start a task.")
@click.option(
    "--probe-delay", default="0.2-1", show_default=True, metavar="S|S-S", help="Seconds from running to ready."
)
@click.option("--stop-delay", default="0.1-0.5", show_default=True, metavar="S|S-S", help="Seconds to stop a task.")
@click.option("--work-delay", default="5-15", show_default=True, metavar="S|S-S", help="Seconds a batch task runs.")
def hollow(
    *,
    count: int,
    region: str,
    prefix: str,
    zones: tuple[str, ...],
    pool: str,
    url: str,
    ca: str,
    cert: str,
    key: str,
    capacity: tuple[str, ...],
    gpus: int,
    gpu_model: str,
    labels: tuple[str, ...],
    start_delay: str,
    probe_delay: str,
    stop_delay: str,
    work_delay: str,
) -> None:
    """Simulate thousands of nodes (hollow nodes, as in Kubemark).

    Hollow nodes register, renew leases, accept Bindings and report as real nodes do. A task is only a delay. SIGTERM
    stops all nodes at once, like a power failure.

    \b
    Example:
      holdfast hollow --count 5000 --region eu-west --zone eu-west-a --zone eu-west-b \\
        --url https://cell:7403 --ca ca.crt --cert hollow.crt --key hollow.key
    """
    import uvloop

    from holdfast.agent.hollow import HollowConfig, HollowDelays
    from holdfast.agent.hollow_process import run_hollow_nodes
    from holdfast.foundation.log import configure
    from holdfast.model.node import Device

    config = HollowConfig(
        region=region,
        prefix=prefix,
        count=count,
        zones=zones,
        pool=pool,
        capacity=dict(parse_pairs("--capacity", capacity)),
        devices=tuple(Device(id=f"gpu-{number}", model=gpu_model) for number in range(gpus)),
        labels=parse_pairs("--label", labels),
        delays=HollowDelays(
            start=parse_span("--start-delay", start_delay),
            probe=parse_span("--probe-delay", probe_delay),
            stop=parse_span("--stop-delay", stop_delay),
            work=parse_span("--work-delay", work_delay),
        ),
    )
    configure(cell=region, component=f"hollow/{prefix}")
    uvloop.run(run_hollow_nodes(config, url=url, ca=ca, cert=cert, key=key))


def parse_span(option: str, text: str) -> DelayRange:
    from holdfast.agent.hollow import DelayRange

    low, sign, high = text.partition("-")
    try:
        found = DelayRange(float(low), float(high if sign else low))
    except ValueError:
        found = DelayRange(-1.0, -1.0)
    if not 0 <= found.low_s <= found.high_s:
        raise CommandError(
            f"{option} {text}: invalid (expected seconds, such as 0.5, or a range, such as 0.2-1)", code=ExitCode.USAGE
        )
    return found
