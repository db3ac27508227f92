"""Independent check whether a region has room for a replica, from stored objects only.

Replicas with required affinity or spread rules are assumed to have no room, because the rules depend on other replicas.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.placement_rules import Operator, TaintEffect
from holdfast.model.quantity import GPU, Amounts, add, amounts
from holdfast.model.recovery_slot import RecoverySlot, is_admitted
from holdfast.model.replica import Replica
from holdfast.model.template import requests
from holdfast.model.volume import Volume


class CapacityOracle:
    """Free capacity of one region at one time."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._nodes: list[Node] = []
        self._free: dict[str, Amounts] = {}
        self._allocated: dict[str, Amounts] = {}
        """Capacity of unused recovery slots by node. Only reclaimable work may use it."""
        self._devices: dict[str, dict[str, int]] = {}
        self._ports: dict[str, set[int]] = {}
        self._volumes: dict[tuple[str, str], dict[str, str]] = {}
        """By tenant and replica: the node of each of its persistent volumes."""
        for item in state.values():
            if isinstance(item, Node):
                self._nodes.append(item)
                add(self._free.setdefault(item.metadata.name, {}), amounts(item.spec.capacity))
            elif isinstance(item, Binding) or (
                isinstance(item, Reservation) and item.status.phase is not ReservationPhase.CONSUMED
            ):
                # A nomination keeps its capacity while it waits for its victims, and they keep theirs.
                self._claim(item)
            elif isinstance(item, Volume):
                meta, spec = item.metadata, item.spec
                add(self._free.setdefault(spec.node, {}), amounts({"storage": spec.size}), times=-1)
                self._volumes.setdefault((meta.namespace, spec.replica), {})[meta.name] = spec.node
            elif (
                isinstance(item, RecoverySlot)
                and is_admitted(item)
                and (item.status.consumer is None or not item.status.consumer.claim)
            ):
                add(self._allocated.setdefault(item.spec.node, {}), amounts(item.spec.resources))

    def _claim(self, claim: Binding | Reservation) -> None:
        node = claim.spec.node
        add(self._free.setdefault(node, {}), amounts(claim.spec.resources), times=-1)
        self._ports.setdefault(node, set()).update(claim.spec.ports.values())
        used = self._devices.setdefault(node, {})
        for device in claim.spec.devices:
            used[device.id] = used.get(device.id, 0) + device.milli

    def has_no_room(self, replica: Replica, together: int = 1) -> bool:
        """Whether the replica may be pending. `together` is the number of replicas that must fit at once."""
        rules = replica.spec.placement
        if any(not rule.preferred for rule in rules.affinity):
            return True
        places = {node.metadata.name: self._places(node, replica) for node in self._nodes}
        if any(not rule.preferred for rule in rules.spread):
            zones = {node.spec.zone for node in self._nodes}
            return {node.spec.zone for node in self._nodes if places[node.metadata.name]} != zones
        return sum(places.values()) < together

    def _places(self, node: Node, replica: Replica) -> int:
        """The number of such replicas that fit on the node."""
        if unschedulable_reason(node) or not _allowed(node, replica):
            return 0
        name, template = node.metadata.name, replica.spec.template
        held = self._volumes.get((replica.metadata.namespace, replica.metadata.name), {})
        if any(where != name for where in held.values()):
            return 0  # its data is on another node
        used = self._ports.get(name, set())
        fixed = {port.port for port in template.ports if port.port}
        if fixed & used:
            return 0
        free, need = dict(self._free.get(name, {})), requests(template)
        if held:
            need.pop("storage", None)
        if not replica.spec.reclaimable:
            add(free, self._allocated.get(name, {}), times=-1)
        counts = [free.get(resource, 0) // amount for resource, amount in need.items() if resource != GPU and amount]
        milli = need.get(GPU, 0)
        if milli:
            counts.append(self._device_places(node, template.gpu_models, milli))
        drawn = len(template.ports) - len(fixed)
        if drawn:
            low, high = node.spec.port_range
            counts.append(sum(port not in used for port in range(low, high + 1)) // drawn)
        return max(0, min((*counts, 1) if fixed else counts, default=0))

    def _device_places(self, node: Node, models: tuple[str, ...], milli: int) -> int:
        used = self._devices.get(node.metadata.name, {})
        devices = [d for d in node.spec.devices if not models or d.model in models]
        if milli < 1000:
            return sum((d.milli - used.get(d.id, 0)) // milli for d in devices)
        return sum(not used.get(d.id) for d in devices) // (milli // 1000)


def _allowed(node: Node, replica: Replica) -> bool:
    rules, labels = replica.spec.placement, node.metadata.labels
    if node.spec.tenant != (replica.metadata.namespace if replica.spec.dedicated else ""):
        return False
    if replica.spec.template.driver not in node.spec.drivers:
        return False
    if rules.pools and node.spec.pool not in rules.pools:
        return False
    if rules.zones and node.spec.zone not in rules.zones:
        return False
    if any(labels.get(key) != value for key, value in rules.node_selector.items()):
        return False
    if any(e.operator is Operator.IN and labels.get(e.key) not in e.values for e in rules.expressions):
        return False
    hard = [taint for taint in node.spec.taints if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE]
    return all(any(not t.key or t.key == taint.key for t in rules.tolerations) for taint in hard)
