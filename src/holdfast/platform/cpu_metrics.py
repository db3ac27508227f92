"""Measures the CPU usage of workloads through their agents and pushes it as the autoscaling metric `cpuPercent`.

A workload that cannot be measured gets no value. The autoscaler then sees the age of the last value and holds the
replica count. This module takes no scaling decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError
from holdfast.model import limits
from holdfast.model.times import micro_text
from holdfast.platform.agent_calls import call_node_agent

CPU_PERCENT = "cpuPercent"
# Metrics stored per workload, the limit of the API. The oldest other metrics are dropped.
METRICS_MAX = 16
PATH = "/apis/holdfast.dev/v1"
GLOBAL = "global"


class CpuMetricsPusher:
    """Pushes cpuPercent of all workloads that scale by CPU, once per autoscaling interval. `apis` has all cells."""

    def __init__(self, apis: Mapping[str, CellApi], say: Callable[[str], None]) -> None:
        self._global = apis[GLOBAL]
        self._regions = {name: api for name, api in apis.items() if name != GLOBAL}
        self._say = say
        self._next_s = 0.0
        self._failed = ""

    def push_if_due(self, now_s: float) -> None:
        """Pushes all values if the interval has passed. An unreachable cell is retried in the next interval."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + limits.AUTOSCALE_CHECK_EVERY_S
        failed = ""
        try:
            for tenant, name in workloads_scaled_by_cpu(self._global):
                percent = measure_cpu_percent(self._regions, tenant, name)
                if percent is not None:
                    push_metric(self._global, tenant, name, CPU_PERCENT, percent)
        except CommandError as stop:
            failed = stop.message
        if failed and failed != self._failed:
            self._say(f"CPU metrics are not pushed: {failed}; retrying")
        self._failed = failed


def workloads_scaled_by_cpu(api: CellApi) -> Iterator[tuple[str, str]]:
    """Tenant and name of the workloads that scale by CPU."""
    for item in api.list("workloads"):
        autoscale = item["spec"].get("autoscale")
        if autoscale and autoscale.get("metric", CPU_PERCENT) == CPU_PERCENT:
            yield item["metadata"]["namespace"], item["metadata"]["name"]


def measure_cpu_percent(regions: Mapping[str, CellApi], tenant: str, name: str) -> float | None:
    """Used CPU of the workload in percent of its requests; None if no agent could be called."""
    used = requested = 0
    for api in regions.values():
        try:
            nodes = {b["spec"]["node"] for b in api.list("bindings", tenant) if b["spec"].get("workload") == name}
        except CommandError:
            continue
        for node in sorted(nodes):
            try:
                usage_rows = list(call_node_agent(api, node, kind="Usage"))
            except CommandError:
                continue
            rows = [row for row in usage_rows if (row["namespace"], row["workload"]) == (tenant, name)]
            used += sum(row.get("cpu", 0) for row in rows)
            requested += sum(row.get("cpuRequested", 0) for row in rows)
    return round(100 * used / requested, 1) if requested else None


def push_metric(api: CellApi, tenant: str, name: str, metric: str, value: float) -> dict[str, Any]:
    """Stores the value of one metric and returns the workload's current scale status."""
    path = f"{PATH}/namespaces/{quote(tenant)}/workloads/{quote(name)}"
    item = api.get(path)
    known = (item.get("status", {}).get("load") or {}).get("metrics", [])
    others = [row for row in known if row["name"] != metric][: METRICS_MAX - 1]
    body = {"status": {"load": {"metrics": [*others, {"name": metric, "value": value, "at": micro_text(time.time())}]}}}
    api.request("PATCH", f"{path}/status", body, content_type="application/merge-patch+json")
    scale: dict[str, Any] = item.get("status", {}).get("scale") or {}
    return scale
