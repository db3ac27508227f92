"""Liveness: once nothing goes wrong any more, what people want, what is on disk and what runs come to agree.

A replica may wait, with a reason, when there really is no room for it: this is judged here from the records, not from
what the scheduler says. Everything else must be as it is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.lifecycle import Stage, finished, stage
from holdfast.model.meta import is_true
from holdfast.model.node import Node, why_not_schedulable
from holdfast.model.quantity import GPU, Amounts, add, amounts, scaled
from holdfast.model.quota import Quota
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.template import requests
from holdfast.model.workload import Workload, WorkloadType

if TYPE_CHECKING:
    from holdfast.sim.checkers.court import Court
    from holdfast.sim.hosts import AgentHost
    from holdfast.sim.people import Wanted


class Unsettled:
    """One look at the whole world. `found` says what is not yet as it should be, `objects` what it is about."""

    def __init__(self, court: Court, wanted: Wanted, regions: Sequence[str], agents: Sequence[AgentHost]) -> None:
        self._court = court
        self._wanted = wanted
        self._global = court.state("global")
        self._claimed: dict[str, Amounts] = {}
        self._devices: dict[str, dict[str, int]] = {}
        self._waits: dict[tuple[str, str], int] = {}
        """Replicas that wait for room that is not there, by workload."""
        self.found: list[str] = []
        self.objects: dict[str, None] = {}
        for region in regions:
            self._look_at_region(region)
        self._look_at_services()
        self._look_at_batches()
        for agent in agents:
            self._look_at_machine(agent)

    def _say(self, what: str, *keys: str) -> None:
        self.found.append(what)
        self.objects.update(dict.fromkeys(keys))

    # Globally

    def _look_at_services(self) -> None:
        for (tenant, name), count in sorted(self._wanted.services.items()):
            key = f"/workloads/{tenant}/{name}"
            workload: Workload | None = self._global.get(key)
            if count is None:
                if workload is not None:
                    self._say(f"{tenant}/{name} should be gone", key)
                continue
            if workload is None:
                self._say(f"{tenant}/{name} is missing", key)
                continue
            serving, waits = workload.status.summary.serving, self._waits.get((tenant, name), 0)
            if serving + waits < count or (not waits and not is_true(workload.status.conditions, "Serving")):
                keys = [k for k, a in self._global.items() if isinstance(a, Assignment) and _of(a) == (tenant, name)]
                if not waits or not keys:
                    self._say(f"{tenant}/{name} serves {serving} of {count}", key, *keys)

    def _look_at_batches(self) -> None:
        for tenant, name in sorted(self._wanted.batches):
            key = f"/workloads/{tenant}/{name}"
            workload: Workload | None = self._global.get(key)
            if workload is None or is_true(workload.status.conditions, "Complete"):
                continue
            given_up = any(c.reason == Reason.BACKOFF_LIMIT_EXCEEDED for c in workload.status.conditions)
            if given_up or self._waits.get((tenant, name)):
                continue
            self._say(f"batch {tenant}/{name} is not complete: {workload.status.summary.succeeded} succeeded", key)

    # In a region

    def _look_at_region(self, region: str) -> None:
        state = self._court.state(region)
        self._count_claims(state)
        for key, item in sorted(state.items()):
            if isinstance(item, Replica):
                self._look_at_replica(region, key, item, state)
            elif isinstance(item, Reservation) and item.status.phase is not ReservationPhase.CONSUMED:
                self._say(f"{region}: {key} is {item.status.phase}", key)
            elif isinstance(item, Binding) and item.spec.quota_released:
                self._say(f"{region}: {key} still keeps capacity of a lost node", key)
            elif isinstance(item, Assignment) and key not in self._global:
                self._say(f"{region}: {key} is a copy of nothing", key)

    def _look_at_replica(self, region: str, key: str, replica: Replica, state: dict[str, Any]) -> None:
        at, name = stage(replica), (replica.metadata.namespace, replica.spec.workload)
        if finished(replica) is not None:
            return
        if at is Stage.QUEUED and not replica.metadata.terminating and self._has_no_room(region, replica, state):
            self._waits[name] = self._waits.get(name, 0) + 1
            return
        if replica.spec.type is WorkloadType.SERVICE and at is not Stage.SERVING:
            request = f"/schedulingrequests/{name[0]}/{name[1]}-{region}-{replica.spec.revision}"
            self._say(f"{region}: replica {replica.metadata.name} is {at}", key, request)

    def _count_claims(self, state: dict[str, Any]) -> None:
        for item in state.values():
            if isinstance(item, Binding):
                node = item.spec.node
                add(self._claimed.setdefault(node, {}), amounts(item.spec.resources))
                taken = self._devices.setdefault(node, {})
                for device in item.spec.devices:
                    taken[device.id] = taken.get(device.id, 0) + device.milli

    def _has_no_room(self, region: str, replica: Replica, state: dict[str, Any]) -> bool:
        need = requests(replica.spec.template)
        if self._beyond_quota(replica.metadata.namespace, need):
            return True
        fitting = [n for n in state.values() if isinstance(n, Node) and self._fits(n, replica, need)]
        if replica.spec.placement.spread:
            zones = {n.spec.zone for n in state.values() if isinstance(n, Node)}
            return {n.spec.zone for n in fitting} != zones
        return not fitting

    def _fits(self, node: Node, replica: Replica, need: Amounts) -> bool:
        rules = replica.spec.placement
        if why_not_schedulable(node) or (rules.pools and node.spec.pool not in rules.pools):
            return False
        if rules.zones and node.spec.zone not in rules.zones:
            return False
        free = amounts(node.spec.capacity)
        add(free, self._claimed.get(node.metadata.name, {}), times=-1)
        if any(amount > free.get(name, 0) for name, amount in need.items() if name != GPU):
            return False
        milli = need.get(GPU, 0)
        taken, models = self._devices.get(node.metadata.name, {}), replica.spec.template.gpu_models
        devices = [d for d in node.spec.devices if not models or d.model in models]
        if milli < 1000:
            return not milli or any(d.milli - taken.get(d.id, 0) >= milli for d in devices)
        return sum(not taken.get(d.id) for d in devices) >= milli // 1000

    def _beyond_quota(self, tenant: str, need: Amounts) -> bool:
        """Whether all that is assigned, room for rollouts included, is more than the tenant may have."""
        quota: Quota | None = self._global.get(f"/quotas/{tenant}/quota")
        if quota is None:
            return True
        wanted: Amounts = {}
        for item in self._global.values():
            if isinstance(item, Assignment) and item.metadata.namespace == tenant:
                surge = item.spec.rollout.max_surge if item.spec.type is WorkloadType.SERVICE else 0
                add(wanted, scaled(requests(item.spec.template), max(item.spec.replicas, item.status.bound) + surge))
        hard = amounts(quota.spec.hard)
        return any(wanted.get(name, 0) > hard.get(name, 0) for name in need)

    # On a machine

    def _look_at_machine(self, agent: AgentHost) -> None:
        """What runs is exactly what is bound, and nothing else of the node is in doubt."""
        state = self._court.state(agent.region.name)
        running = sorted((w.task.namespace, w.task.binding) for w in agent.machine.running())
        bound = sorted(
            (b.metadata.namespace, b.metadata.name)
            for b in state.values()
            if isinstance(b, Binding) and b.spec.node == agent.name and b.status.phase is None
        )
        key = f"/nodes/{agent.name}"
        if running != bound:
            keys = [f"/bindings/{n}/{b}" for n, b in sorted(set(running) ^ set(bound))]
            self._say(f"{agent.name} runs {running}, bound are {bound}", key, *keys)
        node: Node | None = state.get(key)
        if node is None or why_not_schedulable(node):
            why = why_not_schedulable(node) if node is not None else "it does not exist"
            self._say(f"node {agent.name} takes no work: {why}", key)


def _of(assignment: Assignment) -> tuple[str, str]:
    return assignment.metadata.namespace, assignment.spec.workload
