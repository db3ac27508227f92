"""Liveness: once nothing goes wrong any more, what people want, what is on disk and what runs come to agree.

A replica may wait, with a reason, when there really is no room for it: this is judged here from the records, not from
what the scheduler says. Everything else must be as it is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import Stage, finished, stage
from holdfast.model.meta import is_true
from holdfast.model.node import Node, why_not_schedulable
from holdfast.model.quantity import Amounts, add, amounts, scaled
from holdfast.model.quota import GrantClass, Quota
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery, is_open
from holdfast.model.replica import Phase, Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import requests
from holdfast.model.workload import RolloutPhase, Workload, WorkloadType, wanted_replicas
from holdfast.sim.checkers.quota import used_by
from holdfast.sim.checkers.room import Room
from holdfast.sim.sorts import BAD, BEHAVES

if TYPE_CHECKING:
    from holdfast.sim.checkers.court import Court
    from holdfast.sim.hosts import AgentHost
    from holdfast.sim.people import Wanted


_LOOKED_AT = (Replica, Reservation, Binding, Assignment, GrantCopy)


class Unsettled:
    """One look at the whole world. `found` says what is not yet as it should be, `objects` what it is about.

    `waited` names whatever waited rightly at an earlier look, and is added to: batch work whose turn came late, as
    there was no room for it before, may still run when all else is long done (`going_on` of what was found).
    """

    def __init__(
        self,
        court: Court,
        wanted: Wanted,
        regions: Sequence[str],
        agents: Sequence[AgentHost],
        waited: set[tuple[str, str]] | None = None,
    ) -> None:
        self._court = court
        self._wanted = wanted
        self._global = court.state("global")
        self.waits: dict[tuple[str, str], int] = {}
        """Replicas that wait for room that is not there, by workload."""
        self._waiting: set[tuple[str, str, str, str]] = set()
        """The same by tenant, workload, region and revision."""
        self._behind: list[tuple[str, str, Replica]] = []
        """What fails by itself, with its region and key: judged when it is known who waits in the other regions."""
        self._running: set[tuple[str, str]] = set()
        """Batch work of which something runs."""
        self._waited = waited if waited is not None else set()
        self._rooms: dict[str, Room] = {}
        self.going_on = 0
        self.found: list[str] = []
        self.objects: dict[str, None] = {}
        for region in regions:
            self._look_at_region(region)
        self._waited.update(self.waits)
        self._look_at_what_is_behind()
        self._look_at_services()
        self._look_at_batches()
        self._look_at_recoveries()
        bound = {region: _by_node(court.state(region)) for region in regions}
        for agent in agents:
            self._look_at_machine(agent, bound[agent.region.name].get(agent.name, ()))

    def _say(self, what: str, *keys: str) -> None:
        self.found.append(what)
        self.objects.update(dict.fromkeys(keys))

    # Globally

    def _look_at_services(self) -> None:
        for (tenant, name), asked in sorted(self._wanted.services.items()):
            key = f"/workloads/{tenant}/{name}"
            workload: Workload | None = self._global.get(key)
            if asked is None:
                if workload is not None:
                    self._say(f"{tenant}/{name} should be gone", key)
                continue
            if workload is None:
                self._say(f"{tenant}/{name} is missing", key)
                continue
            if self._homeless(workload):
                continue
            if workload.status.observed_generation < workload.metadata.generation:
                self._say(f"{tenant}/{name} was changed, and nobody has looked at it since", key)
            if _is_being_scaled(workload):
                self._say(f"{tenant}/{name} has not got to the number that its load asks for", key)
            if workload.status.moves is not None and workload.status.moves.waits:
                self._say(f"{tenant}/{name} waits in a full region, and another one has room for it", key)
            count = asked if workload.spec.autoscale is None else wanted_replicas(workload)
            serving, waits = workload.status.summary.serving, self.waits.get((tenant, name), 0)
            if serving + waits < count or (not waits and not is_true(workload.status.conditions, "Serving")):
                keys = [k for k, a in self._global.items() if isinstance(a, Assignment) and _of(a) == (tenant, name)]
                if not waits or not keys:
                    self._say(f"{tenant}/{name} serves {serving} of {count}", key, *keys)

    def _homeless(self, workload: Workload) -> bool:
        """Whether its rules allow no region that there is."""
        allowed = workload.spec.placement.regions
        return bool(allowed) and not any(f"/regions/{name}" in self._global for name in allowed)

    def _look_at_batches(self) -> None:
        for tenant, name in sorted(self._wanted.batches):
            key = f"/workloads/{tenant}/{name}"
            workload: Workload | None = self._global.get(key)
            if workload is None or is_true(workload.status.conditions, "Complete"):
                continue
            if workload.status.moves is not None and workload.status.moves.waits:
                self._say(f"batch {tenant}/{name} waits in a full region, and another one has room for it", key)
            given_up = any(c.reason == Reason.BACKOFF_LIMIT_EXCEEDED for c in workload.status.conditions)
            if given_up or self.waits.get((tenant, name)):
                continue
            self._say(f"batch {tenant}/{name} is not complete: {workload.status.summary.succeeded} succeeded", key)
            self.going_on += (tenant, name) in self._running and (tenant, name) in self._waited

    def _look_at_recoveries(self) -> None:
        """When the regions have been well for a while, what a recovery borrowed is given back: nothing is at rest
        before. It keeps what serves for work whose ordinary replicas rightly wait."""
        borrowed = {
            _of(a) for a in self._global.values() if isinstance(a, Assignment) and a.spec.purpose is Purpose.RECOVERY
        }
        if any(name in self.waits for name in borrowed):
            return
        for key in sorted(k for k, item in self._global.items() if isinstance(item, Recovery) and is_open(item)):
            self._say(f"{key} is {self._global[key].status.phase}: not everything was given back", key)

    # In a region

    def _look_at_region(self, region: str) -> None:
        state = self._court.state(region)
        for key in sorted(key for key, item in state.items() if isinstance(item, _LOOKED_AT)):
            item = state[key]
            if isinstance(item, Replica):
                self._look_at_replica(region, key, item, state)
            elif isinstance(item, Reservation) and item.status.phase is not ReservationPhase.CONSUMED:
                self._say(f"{region}: {key} is {item.status.phase}", key)
            elif isinstance(item, Binding) and item.spec.quota_released:
                self._say(f"{region}: {key} still keeps capacity of a lost node", key)
            elif isinstance(item, Assignment) and key not in self._global:
                self._say(f"{region}: {key} is a copy of nothing", key)
            elif isinstance(item, GrantCopy) and item.spec.grant_class is GrantClass.NORMAL:
                self._look_at_use(region, key, item, state)

    def _look_at_use(self, region: str, key: str, copy: GrantCopy, state: dict[str, Any]) -> None:
        """What the authority says that a tenant uses is what its claims on record add up to."""
        said, found = amounts(copy.status.used), used_by(copy.metadata.namespace, state)
        wrong = [name for name in sorted(said.keys() | found.keys()) if said.get(name, 0) != found.get(name, 0)]
        if wrong:
            name = wrong[0]
            self._say(f"{region}: {key} says that {said.get(name, 0)} of {name} is used, not {found.get(name, 0)}", key)

    def _look_at_replica(self, region: str, key: str, replica: Replica, state: dict[str, Any]) -> None:
        at, name = stage(replica), (replica.metadata.namespace, replica.spec.workload)
        if finished(replica) is not None:
            return
        if at is Stage.QUEUED and not replica.metadata.terminating and self._has_no_room(region, replica, state):
            self.waits[name] = self.waits.get(name, 0) + 1
            self._waiting.add((*name, region, replica.spec.revision))
            return
        execution = replica.status.execution
        if replica.spec.type is WorkloadType.BATCH and execution is not None and execution.phase is Phase.RUNNING:
            self._running.add(name)
        if replica.spec.type is WorkloadType.SERVICE and at is not Stage.SERVING:
            if at is Stage.RUNNING and replica.spec.template.env.get(BEHAVES) in BAD:
                self._behind.append((region, key, replica))
            else:
                self._say_not_serving(region, key, replica)

    def _say_not_serving(self, region: str, key: str, replica: Replica) -> None:
        spec = replica.spec
        namespace, at = replica.metadata.namespace, stage(replica)
        request = f"/schedulingrequests/{namespace}/{spec.workload}-{region}-{spec.revision}"
        found, keys = self._court.state(region).get(request), [key, request]
        why = ""
        if at is Stage.QUEUED:
            reasons = found.status.reasons if isinstance(found, SchedulingRequest) else ()
            said = "; ".join(f"{reason.reason}: {reason.message}" for reason in reasons[:2]) or "nothing"
            why = f", though there is room; the scheduler's last word on it: {said}"
            keys.append(f"/grantcopies/{namespace}/normal")
        self._say(f"{region}: replica {namespace}/{replica.metadata.name} is {at}{why}", *keys)

    def _look_at_what_is_behind(self) -> None:
        """Work that cannot get ready is there only until its repaired revision comes. A rollout goes region by region,
        and takes nothing away before the new serves (no replica may be unavailable): where the repaired one waits for
        room in a region before this one, and there really is none, what it would replace here rightly stays."""
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
                self._say_not_serving(region, key, replica)

    def _has_no_room(self, region: str, replica: Replica, state: dict[str, Any]) -> bool:
        namespace = replica.metadata.namespace
        assignment: Assignment | None = state.get(f"/assignments/{namespace}/{replica.spec.assignment}")
        gang = assignment.spec.gang if assignment is not None else None
        if self._beyond_quota(namespace, requests(replica.spec.template)):
            return True
        if region not in self._rooms:
            self._rooms[region] = Room(state)
        return self._rooms[region].none_for(replica, gang.min_available if gang is not None else 1)

    def _beyond_quota(self, tenant: str, need: Amounts) -> bool:
        """Whether all that is assigned, room for rollouts included, is more than the tenant may have."""
        quota: Quota | None = self._global.get(f"/quotas/{tenant}/quota")
        if quota is None:
            return True
        wanted: Amounts = {}
        for item in self._global.values():
            if isinstance(item, Assignment) and item.metadata.namespace == tenant:
                surge = item.spec.rollout.max_surge if item.spec.type is WorkloadType.SERVICE else 0
                count = max(_owed(item) + surge, item.status.bound)
                add(wanted, scaled(requests(item.spec.template), count))
        hard = amounts(quota.spec.hard)
        return any(wanted.get(name, 0) > hard.get(name, 0) for name in need)

    # On a machine

    def _look_at_machine(self, agent: AgentHost, bindings: Sequence[Binding]) -> None:
        """What runs is exactly what is bound, and nothing else of the node is in doubt."""
        state = self._court.state(agent.region.name)
        running = sorted((w.task.namespace, w.task.binding) for w in agent.machine.running())
        bound = sorted((b.metadata.namespace, b.metadata.name) for b in bindings if b.status.phase is None)
        key = f"/nodes/{agent.name}"
        if running != bound:
            keys = [f"/bindings/{n}/{b}" for n, b in sorted(set(running) ^ set(bound))]
            self._say(f"{agent.name} runs {running}, bound are {bound}", key, *keys)
        node: Node | None = state.get(key)
        if node is None or why_not_schedulable(node):
            why = why_not_schedulable(node) if node is not None else "it does not exist"
            self._say(f"node {agent.name} takes no work: {why}", key)
        elif not node.status.execution.agent_version and not agent.among_former:
            self._say(f"what the agent of {agent.name} said of itself is lost, and it does not say it again", key)


def _by_node(state: dict[str, Any]) -> dict[str, list[Binding]]:
    found: dict[str, list[Binding]] = {}
    for item in state.values():
        if isinstance(item, Binding):
            found.setdefault(item.spec.node, []).append(item)
    return found


def _is_being_scaled(workload: Workload) -> bool:
    """Whether the autoscaler is on its way to another number: with what is not there yet, nothing is at rest. It may
    hold back for as long as something is not ready; when all serve, it goes on at its next look."""
    block = workload.status.scale
    if workload.spec.autoscale is None or block is None:
        return False
    held_for_nothing = block.reason == Reason.SCALE_HELD and is_true(workload.status.conditions, "Serving")
    return block.reason == Reason.SCALE_LIMITED or held_for_nothing


def _of(assignment: Assignment) -> tuple[str, str]:
    return assignment.metadata.namespace, assignment.spec.workload


def _owed(assignment: Assignment) -> int:
    """How many places an assignment still needs: batch work that is done needs none."""
    spec, batch = assignment.spec, assignment.spec.batch
    if batch is None:
        return spec.replicas
    if assignment.status.failed > batch.backoff_limit:
        return 0
    return min(spec.replicas, max(0, batch.completions - assignment.status.succeeded))
