"""`holdfast load`: tells autoscaling how busy a workload is, from a number of one's own or from what agents measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import note, output_option, print_json, state_option

if TYPE_CHECKING:
    from holdfast.cli.http import Api

METRICS_MAX = 16
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

    if not 0 <= value < float("inf"):
        raise Stop(f"{value} is no load", why="it is a finite number from zero up", code=Exit.USAGE)
    api, tenant, name = connected(state, workload)
    told(output, workload, metric, value, push_value(api, tenant, name, metric, value))


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

    api, tenant, name = connected(state, workload)
    while True:
        percent = measured(state, tenant, name)
        if percent is None:
            note(f"no replica of {workload} could be measured: nothing is pushed")
        else:
            told(output, workload, "cpuPercent", percent, push_value(api, tenant, name, "cpuPercent", percent))
        if every_s is None:
            return
        time.sleep(every_s)


def measured(state: str, tenant: str, name: str) -> float | None:
    """What the workload's replicas use of the CPU they asked for, in percent; None when none could be asked."""
    from holdfast.cli.platform.asking import ask_node, regions

    used = asked = 0
    for _, api in regions(state):
        try:
            nodes = {b["spec"]["node"] for b in api.list("bindings", tenant) if b["spec"].get("workload") == name}
        except Stop:
            continue
        for node in sorted(nodes):
            try:
                told_of = ask_node(api, node, kind="Usage")
            except Stop:
                continue
            rows = [row for row in told_of if (row["namespace"], row["workload"]) == (tenant, name)]
            used += sum(row.get("cpu", 0) for row in rows)
            asked += sum(row.get("cpuRequested", 0) for row in rows)
    return round(100 * used / asked, 1) if asked else None


def push_value(api: Api, tenant: str, name: str, metric: str, value: float) -> dict[str, Any]:
    """Writes the value beside the others; answers what autoscaling last decided."""
    import time

    from holdfast.cli.commands.rollout import get, path_of
    from holdfast.model.times import micro_text

    item = get(api, tenant, name)
    known = (item.get("status", {}).get("load") or {}).get("metrics", [])
    others = [row for row in known if row["name"] != metric][: METRICS_MAX - 1]
    body = {"status": {"load": {"metrics": [*others, {"name": metric, "value": value, "at": micro_text(time.time())}]}}}
    api.request("PATCH", f"{path_of(tenant, name)}/status", body, content_type="application/merge-patch+json")
    scale: dict[str, Any] = item.get("status", {}).get("scale") or {}
    return scale


def told(output: str, workload: str, metric: str, value: float, scale: dict[str, Any]) -> None:
    if output == "json":
        print_json({"workload": workload, "metric": metric, "value": value, "scale": scale})
        return
    tail = f"; {scale['replicas']} replicas so far ({scale.get('reason', '')})" if scale else ""
    click.echo(f"{workload}: {metric} is {value:g}{tail}")
