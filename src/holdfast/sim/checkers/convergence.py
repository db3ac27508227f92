"""Liveness: once nothing goes wrong any more, what people want, what is on disk and what runs come to agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.endpoint import Endpoint
from holdfast.model.meta import is_true
from holdfast.model.replica import Replica
from holdfast.model.workload import Workload
from holdfast.sim.checkers.court import Court

if TYPE_CHECKING:
    from holdfast.sim.hosts import AgentHost, CellHost
    from holdfast.sim.people import Wanted


def unsettled(court: Court, wanted: Wanted, regions: Sequence[CellHost], agents: Sequence[AgentHost]) -> list[str]:
    """What is not yet as it should be; empty when the world has come to rest."""
    found: list[str] = []
    stored = {k: v for k, v in court.state("global").items() if isinstance(v, Workload)}
    for (tenant, name), count in sorted(wanted.services.items()):
        workload = stored.get(f"/workloads/{tenant}/{name}")
        if count is None:
            if workload is not None:
                found.append(f"{tenant}/{name} should be gone")
        elif workload is None:
            found.append(f"{tenant}/{name} is missing")
        elif workload.status.summary.serving != count or not is_true(workload.status.conditions, "Serving"):
            found.append(f"{tenant}/{name} serves {workload.status.summary.serving} of {count}")
    for tenant, name in sorted(wanted.batches):
        workload = stored.get(f"/workloads/{tenant}/{name}")
        if workload is not None and not is_true(workload.status.conditions, "Complete"):
            found.append(f"batch {tenant}/{name} is not complete: {workload.status.summary.succeeded} succeeded")
    for region in regions:
        found += _region(court, region.name, wanted)
    found += _machines(court, agents)
    return found


def _region(court: Court, region: str, wanted: Wanted) -> list[str]:
    found = []
    state = court.state(region)
    endpoints = sum(len(e.spec.addresses) for e in state.values() if isinstance(e, Endpoint))
    replicas = [r for r in state.values() if isinstance(r, Replica)]
    services = [r for r in replicas if (r.metadata.namespace, r.spec.workload) not in wanted.batches]
    if len(services) != endpoints:
        found.append(f"{region} has {len(services)} service replicas and {endpoints} addresses")
    for key, item in state.items():
        if isinstance(item, Reservation) and item.status.phase is not ReservationPhase.CONSUMED:
            found.append(f"{region}: {key} is {item.status.phase}")
        if isinstance(item, Binding) and item.spec.quota_released:
            found.append(f"{region}: {key} still keeps capacity of a lost node")
    return found


def _machines(court: Court, agents: Sequence[AgentHost]) -> list[str]:
    """What runs is exactly what is bound."""
    found = []
    for agent in agents:
        running = sorted((w.task.namespace, w.task.binding) for w in agent.machine.running())
        bound = sorted(
            (b.metadata.namespace, b.metadata.name)
            for b in court.state(agent.region.name).values()
            if isinstance(b, Binding) and b.spec.node == agent.name and b.status.phase is None
        )
        if running != bound:
            found.append(f"{agent.name} runs {running}, bound are {bound}")
    return found
