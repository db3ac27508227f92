"""`holdfast metrics`: pushes load metrics for autoscaling, either a given value or the measured CPU usage."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import note, output_option, print_json, state_option

LEAST_PAUSE_S = 1.0


@click.group()
def load() -> None:
    """Push load metrics for autoscaling.

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
    """Push the current average load per serving replica.

    \b
    Example:
      holdfast load push payments/risk-api queueLength 120
    """
    from holdfast.cli.commands.rollout import connected
    from holdfast.cli.platform.measuring import push_value

    if not 0 <= value < float("inf"):
        raise Stop(f"{metric} {value}: invalid (expected a finite number, at least 0)", code=Exit.USAGE)
    api, tenant, name = connected(state, workload)
    told(output, workload, metric, value, push_value(api, tenant, name, metric, value))
    follows = api.get(f"/apis/holdfast.dev/v1/namespaces/{quote(tenant)}/workloads/{quote(name)}")["spec"]
    wanted = (follows.get("autoscale") or {}).get("metric")
    if wanted != metric:
        why = f"uses metric {wanted}" if wanted else "has no spec.autoscale"
        note(f"metric {metric} has no effect: workload {workload} {why}")


@load.command()
@click.argument("workload", metavar="TENANT/WORKLOAD")
@click.option("--every", "every_s", type=click.FloatRange(LEAST_PAUSE_S), default=None,
              help="Repeat at this interval in seconds; without it, push once.")  # fmt: skip
@state_option
@output_option
def measure(workload: str, every_s: float | None, state: str, output: str) -> None:
    """Measure and push cpuPercent: used CPU divided by requested CPU, over all running replicas.

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
            note(f"workload {workload}: no replica could be measured, no value is pushed")
        else:
            told(output, workload, "cpuPercent", percent, push_value(api, tenant, name, "cpuPercent", percent))
        if every_s is None:
            return
        time.sleep(every_s)


def told(output: str, workload: str, metric: str, value: float, scale: dict[str, Any]) -> None:
    if output == "json":
        print_json({"workload": workload, "metric": metric, "value": value, "scale": scale})
        return
    tail = f"; desired replicas {scale['replicas']} ({scale.get('reason', '')})" if scale else ""
    click.echo(f"{workload}: pushed {metric} {value:g}{tail}")
