"""`holdfast metrics`: pushes load metrics for autoscaling, either a given value or the measured CPU usage."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note

INTERVAL_MIN_S = 1.0


@click.group()
def metrics() -> None:
    """Push load metrics for autoscaling.

    \b
    Examples:
      holdfast metrics push payments/risk-api queueLength 120
      holdfast metrics measure payments/risk-api --every 15
    """


@metrics.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@click.argument("metric")
@click.argument("value", type=float)
@state_option
@output_option
def push(workload: str, metric: str, value: float, state: str, output: str) -> None:
    """Push the current average load per serving replica.

    \b
    Example:
      holdfast metrics push payments/risk-api queueLength 120
    """
    from holdfast.cli.commands.rollout import connect_to_workload
    from holdfast.platform.cpu_metrics import push_metric

    if not 0 <= value < float("inf"):
        raise CommandError(f"{metric} {value}: invalid (expected a finite number, at least 0)", code=ExitCode.USAGE)
    api, tenant, name = connect_to_workload(state, workload)
    print_pushed(output, workload, metric, value, push_metric(api, tenant, name, metric, value))
    follows = api.get(f"/apis/holdfast.dev/v1/namespaces/{quote(tenant)}/workloads/{quote(name)}")["spec"]
    metric_name = (follows.get("autoscale") or {}).get("metric")
    if metric_name != metric:
        why = f"uses metric {metric_name}" if metric_name else "has no spec.autoscale"
        print_note(f"metric {metric} has no effect: workload {workload} {why}")


@metrics.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(INTERVAL_MIN_S),
    default=None,
    help="Repeat at this interval in seconds; without it, push once.",
)
@state_option
@output_option
def measure(workload: str, every_s: float | None, state: str, output: str) -> None:
    """Measure and push cpuPercent: used CPU divided by requested CPU, over all running replicas.

    \b
    Examples:
      holdfast metrics measure payments/risk-api
      holdfast metrics measure payments/risk-api --every 15
    """
    import time

    from holdfast.cli.commands.rollout import connect_to_workload
    from holdfast.platform.agent_calls import region_apis
    from holdfast.platform.cpu_metrics import measure_cpu_percent, push_metric

    api, tenant, name = connect_to_workload(state, workload)
    while True:
        percent = measure_cpu_percent(dict(region_apis(state)), tenant, name)
        if percent is None:
            print_note(f"workload {workload}: no replica could be measured, no value is pushed")
        else:
            print_pushed(output, workload, "cpuPercent", percent, push_metric(api, tenant, name, "cpuPercent", percent))
        if every_s is None:
            return
        time.sleep(every_s)


def print_pushed(output: str, workload: str, metric: str, value: float, scale: dict[str, Any]) -> None:
    if output == "json":
        print_json({"workload": workload, "metric": metric, "value": value, "scale": scale})
        return
    tail = f"; desired replicas {scale['replicas']} ({scale.get('reason', '')})" if scale else ""
    click.echo(f"{workload}: pushed {metric} {value:g}{tail}")
