"""Independent check whether a tenant's unused quota covers a pending replica, from stored objects of all cells.

Unused is the quota minus the claims in all regions, whatever the grants say. Quota of replicas that wait for room
counts as used if the region's report of free nodes does not show that there is none: then it belongs to their region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import Binding, CapacityClass, Reservation
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.node import Node
from holdfast.model.node_pool import NodePool
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quantity import GPU, Amounts, add, amounts, scaled
from holdfast.model.quota import Quota
from holdfast.model.replica import Replica
from holdfast.model.template import requests
from holdfast.sim.checkers.quota import used_by

HasNoRoom = Callable[[str, Replica], bool]
"""Whether the named region has no room for the replica."""


class UnusedQuota:
    """Unused quota of all tenants at one time. `states` are the stored objects of each region."""

    def __init__(self, quotas: Mapping[str, Any], states: Mapping[str, dict[str, Any]], has_no_room: HasNoRoom) -> None:
        self._quotas = quotas
        self._states = states
        self._has_no_room = has_no_room
        self._used: dict[tuple[str, Purpose], dict[str, Amounts]] = {}

    def covers(self, region: str, replica: Replica, together: int = 1) -> bool:
        """Whether the quota and the cap of the region cover `together` more such replicas."""
        tenant, purpose = replica.metadata.namespace, replica.spec.purpose
        quota: Quota | None = self._quotas.get(f"/quotas/{tenant}/quota")
        if quota is None:
            return False
        if (tenant, purpose) not in self._used:
            self._used[tenant, purpose] = {name: self._used_in(name, tenant, purpose) for name in self._states}
        used = self._used[tenant, purpose]
        normal = purpose is Purpose.NORMAL
        total = amounts(quota.spec.hard if normal else quota.spec.recovery_allowance)
        cap = amounts(quota.spec.region_caps.get(region, {})) if normal else {}
        need = scaled(requests(replica.spec.template), together)
        return all(
            sum(there.get(name, 0) for there in used.values()) + amount <= total.get(name, 0)
            and used.get(region, {}).get(name, 0) + amount <= cap.get(name, total.get(name, 0))
            for name, amount in need.items()
        )

    def _used_in(self, region: str, tenant: str, purpose: Purpose) -> Amounts:
        state = self._states[region]
        used = used_by(tenant, state) if purpose is Purpose.NORMAL else _recovery_claims(tenant, state)
        for replica in _queued(state, tenant, purpose):
            if not _is_room_reported(replica, state) and self._has_no_room(region, replica):
                add(used, requests(replica.spec.template))
        return used


def _queued(state: dict[str, Any], tenant: str, purpose: Purpose) -> Sequence[Replica]:
    return [
        item
        for key, item in state.items()
        if key.startswith(f"/replicas/{tenant}/")
        and item.spec.purpose is purpose
        and stage(item) is Stage.QUEUED
        and not item.metadata.terminating
    ]


def _is_room_reported(replica: Replica, state: dict[str, Any]) -> bool:
    """Whether free nodes, as a region reports them, tell if there is room: for a replica without rules on nodes that
    are all alike and have free ports, if neither preemption nor a node pool can make room."""
    spec = replica.spec
    assignment: Assignment | None = state.get(f"/assignments/{replica.metadata.namespace}/{spec.assignment}")
    rules = spec.placement != PlacementRules() or any(port.port for port in spec.template.ports)
    if rules or GPU in requests(spec.template) or spec.purpose is Purpose.RECOVERY:
        return False
    if assignment is None or assignment.spec.may_preempt or assignment.spec.gang is not None:
        return False
    used = _ports_used(state)
    return not any(
        isinstance(item, NodePool)
        or (
            isinstance(item, Node)
            and (item.spec.tenant or item.spec.taints or _lacks_ports(item, used, len(spec.template.ports)))
        )
        for item in state.values()
    )


def _ports_used(state: dict[str, Any]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for item in state.values():
        if isinstance(item, Binding | Reservation):
            found.setdefault(item.spec.node, set()).update(item.spec.ports.values())
    return found


def _lacks_ports(node: Node, used: Mapping[str, set[int]], needed: int) -> bool:
    """Whether fewer ports than `needed` are free in the node's range. Regions do not report free ports."""
    low, high = node.spec.port_range
    taken = sum(low <= port <= high for port in used.get(node.metadata.name, ()))
    return high - low + 1 - taken < needed


def _recovery_claims(tenant: str, state: dict[str, Any]) -> Amounts:
    used: Amounts = {}
    bindings = (item for key, item in state.items() if key.startswith(f"/bindings/{tenant}/"))
    for binding in bindings:
        if binding.spec.capacity_class is CapacityClass.RECOVERY and not binding.spec.quota_released:
            add(used, amounts(binding.spec.resources))
    return used
