"""What tasks use now, asked of all agents at the same time. A tenant gets its own tasks and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.agent_calls import ReplicaLocation, call_node_agent, call_replica_agent, region_apis
from holdfast.platform.caller_tenants import tenants_of

# Agents asked at the same time. Each measures for half a second; the region limits its calls as well.
AGENTS_AT_ONCE = 32

Rows = list[dict[str, Any]]


def measure_usage(state: str) -> tuple[Rows, list[str]]:
    """One row per task, and what could not be measured."""
    rows: Rows = []
    problems: list[str] = []
    with ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
        asked = [job for found in pool.map(_jobs, region_apis(state)) for job in found]
        for measured, problem in pool.map(_measure, asked):
            rows += measured
            if problem:
                problems.append(problem)
    return rows, problems


class _Job:
    """One agent to ask: by its node, or as a tenant by a replica on it."""

    def __init__(
        self, api: CellApi, region: str, node: str, replica: tuple[str, str] = ("", ""), problem: str = ""
    ) -> None:
        self.api, self.region, self.node, self.replica, self.problem = api, region, node, replica, problem

    def rows(self) -> Iterator[dict[str, Any]]:
        tenant, name = self.replica
        if not tenant:
            return call_node_agent(self.api, self.node, kind="Usage")
        placed = ReplicaLocation(self.api, self.region, tenant, name, self.node)
        return (row for row in call_replica_agent(placed, kind="Usage") if row.get("namespace") == tenant)


def _jobs(region: tuple[str, CellApi]) -> list[_Job]:
    name, api = region
    try:
        return [_Job(api, name, item["metadata"]["name"]) for item in api.list("nodes")]
    except ApiRefusal as refusal:
        if refusal.code is not ExitCode.DENIED:
            return [_Job(api, name, "", problem=refusal.message)]
    except CommandError as stop:
        return [_Job(api, name, "", problem=stop.message)]
    tenants = tenants_of(api)
    if not tenants:
        return [_Job(api, name, "", problem=f"region {name}: not authorized to list nodes")]
    found: dict[tuple[str, str], _Job] = {}
    for tenant in tenants:
        for item in api.list("replicas", tenant):
            node = item.get("status", {}).get("placement", {}).get("node", "")
            if node:
                found.setdefault((tenant, node), _Job(api, name, node, (tenant, item["metadata"]["name"])))
    return list(found.values())


def _measure(job: _Job) -> tuple[Rows, str]:
    if job.problem:
        return [], job.problem
    try:
        return [{"region": job.region, "node": job.node, **row} for row in job.rows()], ""
    except CommandError as stop:
        return [], f"{job.node}: {stop.message}"
