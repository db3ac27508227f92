"""Liveness: after the fault phase, desired state, stored state and running tasks agree.

A replica may be pending only if its tenant's unused quota does not cover it or its region has no room for it. Both are
computed here from stored objects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import Stage, final_phase, stage
from holdfast.model.meta import is_condition_true
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.override import Override, OverrideKind
from holdfast.model.quantity import amounts
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery, is_open
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.workload import RolloutPhase, Workload, WorkloadType, wanted_replicas
from holdfast.sim.checkers.capacity_oracle import CapacityOracle
from holdfast.sim.checkers.quota import used_by
from holdfast.sim.checkers.unused_quota import UnusedQuota
from holdfast.sim.workload_profiles import BEHAVIOUR_ENV, BROKEN_BEHAVIOURS

if TYPE_CHECKING:
    from holdfast.sim.actors import DesiredObjects
    from holdfast.sim.checkers.checker_set import CheckerSet
    from holdfast.sim.hosts import AgentHost


_STARTING_STAGES = (Stage.BOUND, Stage.STARTING, Stage.RUNNING, Stage.READY)
_LOOKED_AT = (Replica, Reservation, Binding, Assignment, GrantCopy)


class ConvergenceTimer:
    """Time to converge: the time since healing, without the time in which only permitted work ran.

    Batches that were rightly pending run one after the other through a full quota. How long that takes depends on how
    long they run, not on how soon the system acts.
    """

    def __init__(self, healed_s: float) -> None:
        self._healed_s = healed_s
        self._observed_s = healed_s
        self._permitted_s = 0.0

    def observe(self, now_s: float, check: ConvergenceCheck) -> None:
        """The check holds for the time since the last one."""
        if check.problems and check.all_permitted:
            self._permitted_s += now_s - self._observed_s
        self._observed_s = now_s

    def elapsed_s(self, now_s: float) -> float:
        return now_s - self._healed_s - self._permitted_s


class ConvergenceCheck:
    """One check of the whole system. `problems` lists the differences, `objects` the involved keys.

    `waited` collects workloads that were rightly pending in an earlier check. When all else has converged, a batch of
    these may still run and a service may still start: a rollout that waits for room is rolled back at its deadline.
    Their nodes need not run them yet. `still_running` counts these differences. `former_releases` are the regions that
    still run the former release.
    """

    def __init__(
        self,
        checkers: CheckerSet,
        desired: DesiredObjects,
        regions: Sequence[str],
        agents: Sequence[AgentHost],
        waited: set[tuple[str, str]] | None = None,
        *,
        former_releases: Collection[str] = (),
    ) -> None:
        self._checkers = checkers
        self._former_releases = former_releases
        self._desired = desired
        self._global = checkers.state("global")
        self.waiting: dict[tuple[str, str], int] = {}
        """Number of rightly pending replicas by workload."""
        self._waiting: set[tuple[str, str, str, str]] = set()
        """The same by tenant, workload, region and revision."""
        self._behind: list[tuple[str, str, Replica]] = []
        """Replicas with a broken template, with region and key. They are checked after all regions are known."""
        self._running: set[tuple[str, str]] = set()
        """Batch workloads with bound replicas, and services with replicas that start."""
        self._waited = waited if waited is not None else set()
        self._rooms: dict[str, CapacityOracle] = {}
        states = {region: checkers.state(region) for region in regions}
        self._unused = UnusedQuota(self._global, states, self._has_no_room)
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

    @property
    def all_permitted(self) -> bool:
        """Whether every problem is work that was rightly pending and still runs or starts."""
        return len(self.problems) <= self.still_running

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
            if self._has_no_region(workload) or self._waits_for_upgrade(workload):
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
                    self.still_running += self._may_still_run((tenant, name))

    def _may_still_run(self, name: tuple[str, str]) -> bool:
        return name in self._running and name in self._waited

    def _has_no_region(self, workload: Workload) -> bool:
        """Whether its placement rules allow no existing region."""
        allowed = workload.spec.placement.regions
        return bool(allowed) and not any(f"/regions/{name}" in self._global for name in allowed)

    def _waits_for_upgrade(self, workload: Workload) -> bool:
        """Whether an ordinal cannot move, because a region of the former release does not report its ordinals."""
        if workload.spec.exclusive is None or not self._former_releases:
            return False
        assignments = [a for a in self._global.values() if isinstance(a, Assignment) and _of(a) == _name(workload)]
        return any(
            a.spec.region in self._former_releases and len(a.status.ordinals) != a.status.replicas for a in assignments
        )

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
            self.still_running += self._may_still_run((tenant, name))

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
                self._check_replica(region, key, item)
            elif isinstance(item, Reservation) and item.status.phase is not ReservationPhase.CONSUMED:
                self._report(f"{region}: {key} is {item.status.phase}", key)
            elif isinstance(item, Binding) and item.spec.quota_released:
                self._report(f"{region}: {key} still keeps capacity of a lost node", key)
            elif isinstance(item, Assignment) and key not in self._global:
                self._report(f"{region}: {key} is a mirror without an original", key)
            elif isinstance(item, GrantCopy) and item.spec.grant_class is GrantClass.NORMAL:
                self._check_usage(region, key, item, state)
                self._check_emergency_usage(region, key, item, state)

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

    def _check_emergency_usage(self, region: str, key: str, copy: GrantCopy, state: dict[str, Any]) -> None:
        """S8 for the effect: after an emergency quota has ended, usage is within the normal limit again."""
        tenant = copy.metadata.namespace
        quotas = [
            o
            for o in self._global.values()
            if isinstance(o, Override) and o.spec.kind is OverrideKind.EMERGENCY_QUOTA and o.spec.scope.tenant == tenant
        ]
        if not quotas or any(o.status.phase in ("", "Pending", "Active") for o in quotas):
            return
        used, limit = used_by(tenant, state), amounts(copy.spec.limit)
        for name in sorted(n for n, amount in used.items() if amount > limit.get(n, 0)):
            self._report(
                f"{region}: tenant {tenant} uses {used[name]} of {name} after its emergency quota ended"
                f" (limit {limit.get(name, 0)})",
                key,
                *(f"/overrides/{o.metadata.name}" for o in quotas),
            )

    def _check_replica(self, region: str, key: str, replica: Replica) -> None:
        at, name = stage(replica), (replica.metadata.namespace, replica.spec.workload)
        if final_phase(replica) is not None:
            return
        if at is Stage.QUEUED and not replica.metadata.terminating and self._may_wait(region, replica):
            self.waiting[name] = self.waiting.get(name, 0) + 1
            self._waiting.add((*name, region, replica.spec.revision))
            return
        if replica.spec.type is WorkloadType.BATCH and at in (*_STARTING_STAGES, Stage.SERVING):
            self._running.add(name)
        if replica.spec.type is WorkloadType.SERVICE and at is not Stage.SERVING:
            if at is Stage.RUNNING and replica.spec.template.env.get(BEHAVIOUR_ENV) in BROKEN_BEHAVIOURS:
                self._behind.append((region, key, replica))
            else:
                self._report_not_serving(region, key, replica)
                if at in _STARTING_STAGES:
                    self._running.add(name)
                    self.still_running += self._may_still_run(name)

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
        """Checks replicas with a broken template, which the rollout of the repaired revision replaces."""
        for region, key, replica in self._behind:
            if not self._may_stay_broken(region, replica):
                self._report_not_serving(region, key, replica)

    def _may_stay_broken(self, region: str, replica: Replica) -> bool:
        """Whether the rollout of the repaired revision rightly waits for room in an earlier region, also after its
        deadline: a failed rollout continues when its regions serve. If it was rolled back, the earlier region lacks
        room for the broken revision too."""
        namespace, name = replica.metadata.namespace, replica.spec.workload
        workload: Workload | None = self._global.get(f"/workloads/{namespace}/{name}")
        block = workload.status.rollout if workload is not None else None
        if block is None or region in block.regions:
            return False
        if block.phase in (RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK):
            awaited = replica.spec.revision
        elif block.phase in (RolloutPhase.PROGRESSING, RolloutPhase.FAILED) and replica.spec.revision != block.revision:
            awaited = block.revision
        else:
            return False
        return any((namespace, name, first, awaited) in self._waiting for first in block.regions)

    def _may_wait(self, region: str, replica: Replica) -> bool:
        """Whether the replica is rightly pending: neither the tenant's unused quota nor the region has room for it."""
        return not self._unused.covers(region, replica, self._together(region, replica)) or self._has_no_room(
            region, replica
        )

    def _has_no_room(self, region: str, replica: Replica) -> bool:
        if region not in self._rooms:
            self._rooms[region] = CapacityOracle(self._checkers.state(region))
        return self._rooms[region].has_no_room(replica, self._together(region, replica))

    def _together(self, region: str, replica: Replica) -> int:
        key = f"/assignments/{replica.metadata.namespace}/{replica.spec.assignment}"
        assignment: Assignment | None = self._checkers.state(region).get(key)
        gang = assignment.spec.gang if assignment is not None else None
        return gang.min_available if gang is not None else 1

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
            self.still_running += not set(running) - set(bound) and all(
                self._may_still_run((b.metadata.namespace, b.spec.workload))
                for b in bindings
                if b.status.phase is None and (b.metadata.namespace, b.metadata.name) not in running
            )
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


def _name(workload: Workload) -> tuple[str, str]:
    return workload.metadata.namespace, workload.metadata.name


def _of(assignment: Assignment) -> tuple[str, str]:
    return assignment.metadata.namespace, assignment.spec.workload
