"""Liveness: after the fault phase, desired state, stored state and running tasks agree.

A replica may be pending only if there is no room for it, which is computed here from stored objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import Stage, final_phase, stage
from holdfast.model.meta import is_condition_true
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.quantity import Amounts, add, amounts, scaled
from holdfast.model.quota import GrantClass, Quota
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery, is_open
from holdfast.model.replica import Phase, Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import requests
from holdfast.model.workload import RolloutPhase, Workload, WorkloadType, wanted_replicas
from holdfast.sim.checkers.capacity_oracle import CapacityOracle
from holdfast.sim.checkers.quota import used_by
from holdfast.sim.workload_profiles import BEHAVIOUR_ENV, BROKEN_BEHAVIOURS

if TYPE_CHECKING:
    from holdfast.sim.actors import DesiredObjects
    from holdfast.sim.checkers.checker_set import CheckerSet
    from holdfast.sim.hosts import AgentHost


_LOOKED_AT = (Replica, Reservation, Binding, Assignment, GrantCopy)


class ConvergenceCheck:
    """One check of the whole system. `problems` lists the differences, `objects` the involved keys.

    `waited` collects workloads that were rightly pending in an earlier check. A batch among them may still run when all
    else has converged; `still_running` counts these differences.
    """

    def __init__(
        self,
        checkers: CheckerSet,
        desired: DesiredObjects,
        regions: Sequence[str],
        agents: Sequence[AgentHost],
        waited: set[tuple[str, str]] | None = None,
    ) -> None:
        self._checkers = checkers
        self._desired = desired
        self._global = checkers.state("global")
        self.waiting: dict[tuple[str, str], int] = {}
        """Number of rightly pending replicas by workload."""
        self._waiting: set[tuple[str, str, str, str]] = set()
        """The same by tenant, workload, region and revision."""
        self._behind: list[tuple[str, str, Replica]] = []
        """Replicas with a broken template, with region and key. They are checked after all regions are known."""
        self._running: set[tuple[str, str]] = set()
        """Batch workloads with running tasks."""
        self._waited = waited if waited is not None else set()
        self._rooms: dict[str, CapacityOracle] = {}
        self.still_running = 0
        self.problems: list[str] = []
        self.objects: dict[str, None] = {}
        for region in regions:
            self._check_region(region)
        self._waited.update(self.waiting)
        self._check_observed_generations()
        self._check_services()
        self._check_batches()
        self._check_recoveries()
        bound = {region: _by_node(checkers.state(region)) for region in regions}
        for agent in agents:
            self._check_machine(agent, bound[agent.region.name].get(agent.name, ()))

    def _report(self, what: str, *keys: str) -> None:
        self.problems.append(what)
        self.objects.update(dict.fromkeys(keys))

    # Globally

    def _check_services(self) -> None:
        for (tenant, name), replicas in sorted(self._desired.services.items()):
            key = f"/workloads/{tenant}/{name}"
            workload: Workload | None = self._global.get(key)
            if replicas is None:
                if workload is not None:
                    self._report(f"{tenant}/{name} is not deleted", key)
                continue
            if workload is None:
                self._report(f"{tenant}/{name} is missing", key)
                continue
            if self._has_no_region(workload):
                continue
            if workload.status.observed_generation < workload.metadata.generation:
                self._report(f"{tenant}/{name} has a stale observedGeneration", key)
            if _is_being_scaled(workload):
                self._report(f"{tenant}/{name} is still being scaled", key)
            if workload.status.spillover is not None and workload.status.spillover.pending:
                self._report(f"{tenant}/{name} is pending in a full region while another region has room", key)
            count = replicas if workload.spec.autoscale is None else wanted_replicas(workload)
            serving, waits = workload.status.summary.serving, self.waiting.get((tenant, name), 0)
            if serving + waits < count or (not waits and not is_condition_true(workload.status.conditions, "Serving")):
                keys = [k for k, a in self._global.items() if isinstance(a, Assignment) and _of(a) == (tenant, name)]
                if not waits or not keys:
                    self._report(f"{tenant}/{name} serves {serving} of {count}", key, *keys)

    def _has_no_region(self, workload: Workload) -> bool:
        """Whether its placement rules allow no existing region."""
        allowed = workload.spec.placement.regions
        return bool(allowed) and not any(f"/regions/{name}" in self._global for name in allowed)

    def _check_batches(self) -> None:
        for tenant, name in sorted(self._desired.batches):
            key = f"/workloads/{tenant}/{name}"
            workload: Workload | None = self._global.get(key)
            if workload is None or is_condition_true(workload.status.conditions, "Complete"):
                continue
            if workload.status.spillover is not None and workload.status.spillover.pending:
                self._report(f"batch {tenant}/{name} is pending in a full region while another region has room", key)
            given_up = any(c.reason == Reason.BACKOFF_LIMIT_EXCEEDED for c in workload.status.conditions)
            if given_up or self.waiting.get((tenant, name)):
                continue
            self._report(f"batch {tenant}/{name} is not complete: {workload.status.summary.succeeded} succeeded", key)
            self.still_running += (tenant, name) in self._running and (tenant, name) in self._waited

    def _check_recoveries(self) -> None:
        """Checks that every Recovery is closed, unless ordinary replicas of a recovered workload are rightly
        pending."""
        borrowed = {
            _of(a) for a in self._global.values() if isinstance(a, Assignment) and a.spec.purpose is Purpose.RECOVERY
        }
        if any(name in self.waiting for name in borrowed):
            return
        for key in sorted(k for k, item in self._global.items() if isinstance(item, Recovery) and is_open(item)):
            self._report(f"{key} is {self._global[key].status.phase}, not Closed", key)

    # In a region

    def _check_region(self, region: str) -> None:
        state = self._checkers.state(region)
        for key in sorted(key for key, item in state.items() if isinstance(item, _LOOKED_AT)):
            item = state[key]
            if isinstance(item, Replica):
                self._check_replica(region, key, item, state)
            elif isinstance(item, Reservation) and item.status.phase is not ReservationPhase.CONSUMED:
                self._report(f"{region}: {key} is {item.status.phase}", key)
            elif isinstance(item, Binding) and item.spec.quota_released:
                self._report(f"{region}: {key} still keeps capacity of a lost node", key)
            elif isinstance(item, Assignment) and key not in self._global:
                self._report(f"{region}: {key} is a mirror without an original", key)
            elif isinstance(item, GrantCopy) and item.spec.grant_class is GrantClass.NORMAL:
                self._check_usage(region, key, item, state)

    def _check_usage(self, region: str, key: str, copy: GrantCopy, state: dict[str, Any]) -> None:
        """The usage that the authority reports for a tenant equals the sum of the tenant's stored claims."""
        reported, found = amounts(copy.status.used), used_by(copy.metadata.namespace, state)
        wrong = [name for name in sorted(reported.keys() | found.keys()) if reported.get(name, 0) != found.get(name, 0)]
        if wrong:
            name = wrong[0]
            self._report(
                f"{region}: {key} reports {reported.get(name, 0)} of {name} as used (expected {found.get(name, 0)})",
                key,
            )

    def _check_replica(self, region: str, key: str, replica: Replica, state: dict[str, Any]) -> None:
        at, name = stage(replica), (replica.metadata.namespace, replica.spec.workload)
        if final_phase(replica) is not None:
            return
        if at is Stage.QUEUED and not replica.metadata.terminating and self._has_no_room(region, replica, state):
            self.waiting[name] = self.waiting.get(name, 0) + 1
            self._waiting.add((*name, region, replica.spec.revision))
            return
        execution = replica.status.execution
        if replica.spec.type is WorkloadType.BATCH and execution is not None and execution.phase is Phase.RUNNING:
            self._running.add(name)
        if replica.spec.type is WorkloadType.SERVICE and at is not Stage.SERVING:
            if at is Stage.RUNNING and replica.spec.template.env.get(BEHAVIOUR_ENV) in BROKEN_BEHAVIOURS:
                self._behind.append((region, key, replica))
            else:
                self._report_not_serving(region, key, replica)

    def _report_not_serving(self, region: str, key: str, replica: Replica) -> None:
        spec = replica.spec
        namespace, at = replica.metadata.namespace, stage(replica)
        request = f"/schedulingrequests/{namespace}/{spec.workload}-{region}-{spec.revision}"
        found, keys = self._checkers.state(region).get(request), [key, request]
        why = ""
        if at is Stage.QUEUED:
            reasons = found.status.reasons if isinstance(found, SchedulingRequest) else ()
            reported = "; ".join(f"{reason.reason}: {reason.message}" for reason in reasons[:2]) or "none"
            why = f" although there is room; the scheduler's reasons: {reported}"
            keys.append(f"/grantcopies/{namespace}/normal")
        self._report(f"{region}: replica {namespace}/{replica.metadata.name} is {at}{why}", *keys)

    def _check_observed_generations(self) -> None:
        """Checks replicas with a broken template. The rollout of the repaired revision replaces them region by region.
        If it is rightly pending in an earlier region, the broken replicas here may stay."""
        for region, key, replica in self._behind:
            namespace, name = replica.metadata.namespace, replica.spec.workload
            workload: Workload | None = self._global.get(f"/workloads/{namespace}/{name}")
            block = workload.status.rollout if workload is not None else None
            if (
                block is None
                or block.phase != RolloutPhase.PROGRESSING
                or region in block.regions
                or replica.spec.revision == block.revision
                or not any((namespace, name, first, block.revision) in self._waiting for first in block.regions)
            ):
                self._report_not_serving(region, key, replica)

    def _has_no_room(self, region: str, replica: Replica, state: dict[str, Any]) -> bool:
        namespace = replica.metadata.namespace
        assignment: Assignment | None = state.get(f"/assignments/{namespace}/{replica.spec.assignment}")
        gang = assignment.spec.gang if assignment is not None else None
        if self._beyond_quota(namespace, requests(replica.spec.template)):
            return True
        if region not in self._rooms:
            self._rooms[region] = CapacityOracle(state)
        return self._rooms[region].has_no_room(replica, gang.min_available if gang is not None else 1)

    def _beyond_quota(self, tenant: str, need: Amounts) -> bool:
        """Whether all Assignments, including rollout surge, exceed the tenant's quota."""
        quota: Quota | None = self._global.get(f"/quotas/{tenant}/quota")
        if quota is None:
            return True
        desired: Amounts = {}
        for item in self._global.values():
            if isinstance(item, Assignment) and item.metadata.namespace == tenant:
                surge = item.spec.rollout.max_surge if item.spec.type is WorkloadType.SERVICE else 0
                count = max(_replicas_needed(item) + surge, item.status.bound)
                add(desired, scaled(requests(item.spec.template), count))
        hard = amounts(quota.spec.hard)
        return any(desired.get(name, 0) > hard.get(name, 0) for name in need)

    # On a machine

    def _check_machine(self, agent: AgentHost, bindings: Sequence[Binding]) -> None:
        """Checks that exactly the bound tasks run, and that the node is schedulable."""
        state = self._checkers.state(agent.region.name)
        running = sorted((w.task.namespace, w.task.binding) for w in agent.machine.running())
        bound = sorted((b.metadata.namespace, b.metadata.name) for b in bindings if b.status.phase is None)
        key = f"/nodes/{agent.name}"
        if running != bound:
            keys = [f"/bindings/{n}/{b}" for n, b in sorted(set(running) ^ set(bound))]
            self._report(f"{agent.name} runs {running}, expected {bound}", key, *keys)
        node: Node | None = state.get(key)
        if node is None or unschedulable_reason(node):
            why = unschedulable_reason(node) if node is not None else "it does not exist"
            self._report(f"node {agent.name} is not schedulable: {why}", key)
        elif not node.status.execution.agent_version and not agent.has_previous_release:
            self._report(f"the status that the agent of {agent.name} reported is lost", key)


def _by_node(state: dict[str, Any]) -> dict[str, list[Binding]]:
    found: dict[str, list[Binding]] = {}
    for item in state.values():
        if isinstance(item, Binding):
            found.setdefault(item.spec.node, []).append(item)
    return found


def _is_being_scaled(workload: Workload) -> bool:
    """Whether the autoscaler still changes the replica count. While replicas are not ready it may hold; when all serve
    it continues at its next check."""
    block = workload.status.scale
    if workload.spec.autoscale is None or block is None:
        return False
    held_for_nothing = block.reason == Reason.SCALE_UP_BLOCKED and is_condition_true(
        workload.status.conditions, "Serving"
    )
    return block.reason == Reason.SCALE_LIMITED or held_for_nothing


def _of(assignment: Assignment) -> tuple[str, str]:
    return assignment.metadata.namespace, assignment.spec.workload


def _replicas_needed(assignment: Assignment) -> int:
    """The replicas that an Assignment still needs. A finished batch needs none."""
    spec, batch = assignment.spec, assignment.spec.batch
    if batch is None:
        return spec.replicas
    if assignment.status.failed > batch.backoff_limit:
        return 0
    return min(spec.replicas, max(0, batch.completions - assignment.status.succeeded))
