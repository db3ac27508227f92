"""What workloads use of the CPU they asked for, measured by their agents and pushed for autoscaling to follow.

It pushes numbers and decides nothing. A load that cannot be measured is not pushed: autoscaling knows by its age that
nothing is known, and holds what there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from holdfast.cli.exits import Stop
from holdfast.cli.http import Api
from holdfast.cli.platform.asking import ask_node
from holdfast.model import limits
from holdfast.model.times import micro_text

CPU_PERCENT = "cpuPercent"
METRICS_MAX = 16
PATH = "/apis/holdfast.dev/v1"
GLOBAL = "global"


class Meter:
    """Measures every workload that scales by its CPU, as often as autoscaling looks. `apis` are those of all cells."""

    def __init__(self, apis: Mapping[str, Api], say: Callable[[str], None]) -> None:
        self._global = apis[GLOBAL]
        self._regions = {name: api for name, api in apis.items() if name != GLOBAL}
        self._say = say
        self._next_s = 0.0
        self._failed = ""

    def look(self, now_s: float) -> None:
        """One round, when it is time for one. A cell that does not answer is asked again with the next."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + limits.AUTOSCALE_LOOK_EVERY_S
        failed = ""
        try:
            for tenant, name in scaled_by_cpu(self._global):
                percent = measured(self._regions, tenant, name)
                if percent is not None:
                    push_value(self._global, tenant, name, CPU_PERCENT, percent)
        except Stop as stop:
            failed = stop.what
        if failed and failed != self._failed:
            self._say(f"loads are not measured: {failed}; trying again")
        self._failed = failed


def scaled_by_cpu(api: Api) -> Iterator[tuple[str, str]]:
    """Tenant and name of the workloads whose number of replicas follows their CPU."""
    for item in api.list("workloads"):
        autoscale = item["spec"].get("autoscale")
        if autoscale and autoscale.get("metric", CPU_PERCENT) == CPU_PERCENT:
            yield item["metadata"]["namespace"], item["metadata"]["name"]


def measured(regions: Mapping[str, Api], tenant: str, name: str) -> float | None:
    """What the workload's replicas use of the CPU they asked for, in percent; None when none could be asked."""
    used = asked = 0
    for api in regions.values():
        try:
            nodes = {b["spec"]["node"] for b in api.list("bindings", tenant) if b["spec"].get("workload") == name}
        except Stop:
            continue
        for node in sorted(nodes):
            try:
                told_of = list(ask_node(api, node, kind="Usage"))
            except Stop:
                continue
            rows = [row for row in told_of if (row["namespace"], row["workload"]) == (tenant, name)]
            used += sum(row.get("cpu", 0) for row in rows)
            asked += sum(row.get("cpuRequested", 0) for row in rows)
    return round(100 * used / asked, 1) if asked else None


def push_value(api: Api, tenant: str, name: str, metric: str, value: float) -> dict[str, Any]:
    """Writes the value beside the others; answers what autoscaling last decided."""
    path = f"{PATH}/namespaces/{quote(tenant)}/workloads/{quote(name)}"
    item = api.get(path)
    known = (item.get("status", {}).get("load") or {}).get("metrics", [])
    others = [row for row in known if row["name"] != metric][: METRICS_MAX - 1]
    body = {"status": {"load": {"metrics": [*others, {"name": metric, "value": value, "at": micro_text(time.time())}]}}}
    api.request("PATCH", f"{path}/status", body, content_type="application/merge-patch+json")
    scale: dict[str, Any] = item.get("status", {}).get("scale") or {}
    return scale
