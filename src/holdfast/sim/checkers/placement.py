"""S1 and S2: one live binding per replica, one owner per device, no node above its capacity.

Keeps its own sums, from the records alone, and never the authority's arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.node import Node, node_capacity
from holdfast.model.quantity import GPU, add, amounts


class PlacementChecker:
    """The records of one region, as they are on disk."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.bindings: dict[str, Binding] = {}
        self.reservations: dict[str, Reservation] = {}
        self._touched: set[str] = set()

    def apply(self, key: str, old: Any, new: Any) -> None:
        item = new if new is not None else old
        if isinstance(item, Node):
            _keep(self.nodes, key, new)
        elif isinstance(item, Binding):
            _keep(self.bindings, key, new)
            self._touched.add(item.spec.node)
        elif isinstance(item, Reservation):
            _keep(self.reservations, key, new)
            self._touched.add(item.spec.node)

    def check(self) -> Iterator[tuple[str, str]]:
        """What the last commit broke."""
        touched, self._touched = sorted(self._touched), set()
        if not touched:
            return
        yield from self._unique()
        for node in touched:
            yield from self._node(node)

    def _unique(self) -> Iterator[tuple[str, str]]:
        live: dict[str, str] = {}
        for key, binding in self.bindings.items():
            if binding.spec.quota_released:
                continue  # released: it only keeps the node's capacity until the work is proven gone
            uid = binding.spec.intent.replica_uid
            if uid in live:
                yield "S1", f"replica {binding.spec.replica} ({uid}) is bound by {live[uid]} and {key}"
            live[uid] = key

    def _claims(self, node: str) -> Iterator[tuple[str, Any]]:
        bound = set()
        for key, binding in self.bindings.items():
            if binding.spec.node == node:
                bound.add(key.rpartition("/")[2])
                yield key, binding.spec
        for key, held in self.reservations.items():
            open_ = held.status.phase in (ReservationPhase.FIRM, ReservationPhase.NOMINATED)
            if held.spec.node == node and open_ and key.rpartition("/")[2] not in bound:
                yield key, held.spec

    def _node(self, name: str) -> Iterator[tuple[str, str]]:
        machine = self.nodes.get(f"/nodes/{name}")
        if machine is None:
            return
        used: dict[str, int] = {}
        owners: dict[str, list[tuple[str, int]]] = defaultdict(list)
        ports: dict[int, str] = {}
        for key, spec in self._claims(name):
            add(used, amounts(spec.resources))
            for device in spec.devices:
                owners[device.id].append((key, device.milli))
            for port in spec.ports.values():
                if port in ports:
                    yield "S2", f"port {port} of node {name} belongs to {ports[port]} and {key}"
                ports[port] = key
        whole = {d.id: d.milli for d in machine.spec.devices}
        for device, claims in sorted(owners.items()):
            if sum(milli for _, milli in claims) > whole.get(device, 0):
                yield "S2", f"device {device} of node {name} is claimed by {claims}, beyond its {whole.get(device, 0)}m"
        capacity = node_capacity(machine)
        for resource, amount in sorted(used.items()):
            if resource != GPU and amount > capacity.get(resource, 0):
                yield "S2", f"node {name} has {amount} of {resource} claimed, and {capacity.get(resource, 0)} in all"


def _keep(table: dict[str, Any], key: str, new: Any) -> None:
    if new is None:
        table.pop(key, None)
    else:
        table[key] = new
