"""`holdfast load`: tells autoscaling how busy a workload is, from a number of one's own or from what agents measure."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import note, output_option, print_json, state_option

LEAST_PAUSE_S = 1.0


@click.group()
def load() -> None:
    """Push the load that autoscaling follows.

    \b
    Examples:
      holdfast load push payments/risk-api queueLength 120
      holdfast load measure payments/risk-api --every 15
    """


@load.command()
@click.argument("workload", metavar="TENANT/WORKLOAD")
@click.argument("metric")
@click.argument("value", type=float)
@state_option
@output_option
def push(workload: str, metric: str, value: float, state: str, output: str) -> None:
    """Say what the average load of one serving replica is now.

    \b
    Example:
      holdfast load push payments/risk-api queueLength 120
    """
    from holdfast.cli.commands.rollout import connected
    from holdfast.cli.platform.measuring import push_value

    if not 0 <= value < float("inf"):
        raise Stop(f"{value} is no load", why="it is a finite number from zero up", code=Exit.USAGE)
    api, tenant, name = connected(state, workload)
    told(output, workload, metric, value, push_value(api, tenant, name, metric, value))
    follows = api.get(f"/apis/holdfast.dev/v1/namespaces/{quote(tenant)}/workloads/{quote(name)}")["spec"]
    wanted = (follows.get("autoscale") or {}).get("metric")
    if wanted != metric:
        why = f"follows {wanted}" if wanted else "has no spec.autoscale"
        note(f"nothing will follow it: {workload} {why}")


@load.command()
@click.argument("workload", metavar="TENANT/WORKLOAD")
@click.option("--every", "every_s", type=click.FloatRange(LEAST_PAUSE_S), default=None,
              help="Go on, with a pause of so many seconds; without it once.")  # fmt: skip
@state_option
@output_option
def measure(workload: str, every_s: float | None, state: str, output: str) -> None:
    """Push cpuPercent as the agents measure it: CPU in use beside CPU asked for, over all replicas that run.

    \b
    Examples:
      holdfast load measure payments/risk-api
      holdfast load measure payments/risk-api --every 15
    """
    import time

    from holdfast.cli.commands.rollout import connected
    from holdfast.cli.platform.asking import regions
    from holdfast.cli.platform.measuring import measured, push_value

    api, tenant, name = connected(state, workload)
    while True:
        percent = measured(dict(regions(state)), tenant, name)
        if percent is None:
            note(f"no replica of {workload} could be measured: nothing is pushed")
        else:
            told(output, workload, "cpuPercent", percent, push_value(api, tenant, name, "cpuPercent", percent))
        if every_s is None:
            return
        time.sleep(every_s)


def told(output: str, workload: str, metric: str, value: float, scale: dict[str, Any]) -> None:
    if output == "json":
        print_json({"workload": workload, "metric": metric, "value": value, "scale": scale})
        return
    tail = f"; {scale['replicas']} replicas so far ({scale.get('reason', '')})" if scale else ""
    click.echo(f"{workload}: {metric} is {value:g}{tail}")
