"""Resources used by claims and recovery slots, per node slot. Grows with the node table's slots and resources.

Claims and recovery slots are also indexed by node name: a node that appears late, changes or returns is recounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from holdfast.model.placement_eligibility import selector_of
from holdfast.scheduling.snapshot.claim import ClaimKey, Labels, SnapshotClaim, ports_in_range
from holdfast.scheduling.snapshot.frozen import AntiAffinityGuard, Counts
from holdfast.scheduling.snapshot.node_table import NodeTable

Amounts = tuple[tuple[str, int], ...]
Placed = dict[Labels, dict[int, int]]

_NO_PORTS: frozenset[int] = frozenset()


class UsageTable:
    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        shape = (len(nodes.resources), nodes.size)
        self.firm: Counts = np.zeros(shape, dtype=np.int64)
        self.reclaimable: Counts = np.zeros(shape, dtype=np.int64)
        self.nominated: Counts = np.zeros(shape, dtype=np.int64)
        self.recovery_reserved: Counts = np.zeros(shape, dtype=np.int64)
        self.gpu_free: Counts = np.zeros((0, nodes.size), dtype=np.int64)
        self.ports: list[frozenset[int]] = [_NO_PORTS] * nodes.size
        self.ports_free: Counts = np.zeros(nodes.size, dtype=np.int64)
        self.open_ports: Counter[int] = Counter()
        """Dynamic ports of assumed claims by slot. The authority has not told their numbers yet."""
        self._by_node: dict[str, dict[ClaimKey, SnapshotClaim]] = {}
        self._copied_nodes: set[str] = set()
        self._guards: dict[AntiAffinityGuard, dict[str, int]] = {}
        self._slots: dict[str, dict[str, Amounts]] = {}
        self._placed: dict[tuple[str, str], Placed] = {}
        """Claims of a workload per slot, without those that are stopping."""
        self._stopping: dict[tuple[str, str], Placed] = {}
        self._copied: set[tuple[bool, tuple[str, str]]] = set()
        self._nominations: dict[str, dict[ClaimKey, SnapshotClaim]] = {}
        """Nominated claims by node."""
        self._retained: Counter[tuple[str, str, str]] = Counter()
        """Live claims that are not stopping, by workload and template."""

    def put(self, key: ClaimKey, claim: SnapshotClaim) -> None:
        self._claims_of(claim.node)[key] = claim
        self._count_retained(claim, 1)
        self._count_guard(claim, 1)
        if claim.nominated:
            self._nominations.setdefault(claim.node, {})[key] = claim
        slot = self._nodes.slots.get(claim.node)
        if slot is not None:
            self._count(slot, claim, 1)

    def restate(self, key: ClaimKey, claim: SnapshotClaim) -> None:
        """Replaces a claim by one with the same usage of the same node."""
        self._claims_of(claim.node)[key] = claim
        if claim.nominated:
            self._nominations[claim.node][key] = claim

    def drop(self, key: ClaimKey, claim: SnapshotClaim) -> None:
        on_node = self._claims_of(claim.node)
        del on_node[key]
        if not on_node:
            del self._by_node[claim.node]
        self._count_retained(claim, -1)
        self._count_guard(claim, -1)
        if claim.nominated:
            del self._nominations[claim.node][key]
            if not self._nominations[claim.node]:
                del self._nominations[claim.node]
        slot = self._nodes.slots.get(claim.node)
        if slot is not None:
            self._count(slot, claim, -1)
            if claim.ports:
                self._recount_ports(slot, claim.node)

    def put_slot(self, node: str, name: str, recovery_reserved: Amounts | None) -> None:
        on_node = self._slots.setdefault(node, {})
        old = on_node.pop(name, None)
        if recovery_reserved is not None:
            on_node[name] = recovery_reserved
        if not on_node:
            del self._slots[node]
        slot = self._nodes.slots.get(node)
        if slot is not None:
            self._add("recovery_reserved", slot, old or (), -1)
            self._add("recovery_reserved", slot, recovery_reserved or (), 1)

    def clear(self, name: str) -> None:
        """Removes a node's claims from the columns before its slot is reused."""
        slot = self._nodes.slots[name]
        self._resize()
        for claim in self._by_node.get(name, {}).values():
            if claim.workload:
                self._count_workload(slot, claim, -1)
        self._zero(slot)

    def refill(self, name: str) -> None:
        """Recounts a node's claims and recovery slots: it is new, or its capacity, devices or ports changed."""
        slot = self._nodes.slots[name]
        self._resize()
        for claim in self._by_node.get(name, {}).values():
            counts = self._table(claim).get((claim.namespace, claim.workload), {}).get(claim.labels, {})
            if slot in counts:
                self._count_workload(slot, claim, -1)
        self._zero(slot)
        for position, device in enumerate(self._nodes.gpus[slot]):
            self.gpu_free[position, slot] = device.milli
        node = self._nodes.node(name)
        if node is not None:
            self.ports_free[slot] = node.spec.port_range[1] - node.spec.port_range[0] + 1
        for recovery_reserved in self._slots.get(name, {}).values():
            self._add("recovery_reserved", slot, recovery_reserved, 1)
        for claim in self._by_node.get(name, {}).values():
            self._count(slot, claim, 1)

    def freeze_workloads(self) -> tuple[Mapping[tuple[str, str], Placed], Mapping[tuple[str, str], Placed]]:
        """Claims that stay and claims that stop. Shares the inner counts with the snapshot (copy on write)."""
        self._copied.clear()
        return dict(self._placed), dict(self._stopping)

    def freeze_nominations(self) -> Mapping[str, tuple[SnapshotClaim, ...]]:
        return {node: tuple(claims.values()) for node, claims in self._nominations.items()}

    def retained_claims(self, namespace: str, workload: str, template: str) -> int:
        """Claims of a workload, committed or assumed, that are not stopping. A gang counts only these."""
        return self._retained.get((namespace, workload, template), 0)

    def _count_retained(self, claim: SnapshotClaim, sign: int) -> None:
        if claim.live and not claim.stopping:
            key = (claim.namespace, claim.workload, claim.template_hash)
            self._retained[key] += sign
            if not self._retained[key]:
                del self._retained[key]

    def freeze_claims(self) -> Mapping[str, Mapping[ClaimKey, SnapshotClaim]]:
        """All claims by node name, shared with the snapshot (copy on write)."""
        self._copied_nodes.clear()
        return dict(self._by_node)

    def freeze_guards(self) -> Mapping[AntiAffinityGuard, Mapping[str, int]]:
        return {guard: dict(nodes) for guard, nodes in self._guards.items()}

    def _claims_of(self, node: str) -> dict[ClaimKey, SnapshotClaim]:
        if node not in self._copied_nodes:
            self._copied_nodes.add(node)
            self._by_node[node] = dict(self._by_node.get(node, {}))
        return self._by_node.setdefault(node, {})

    def _count_guard(self, claim: SnapshotClaim, sign: int) -> None:
        for rule in claim.anti_affinity:
            guard = AntiAffinityGuard(claim.namespace, claim.workload, rule.topology, selector_of(rule))
            nodes = self._guards.setdefault(guard, {})
            nodes[claim.node] = nodes.get(claim.node, 0) + sign
            if not nodes[claim.node]:
                del nodes[claim.node]
            if not nodes:
                del self._guards[guard]

    def _table(self, claim: SnapshotClaim) -> dict[tuple[str, str], Placed]:
        return self._stopping if claim.stopping else self._placed

    def _zero(self, slot: int) -> None:
        for column in (self.firm, self.reclaimable, self.nominated, self.recovery_reserved):
            column[:, slot] = 0
        self.gpu_free[:, slot] = 0
        self.ports[slot] = _NO_PORTS
        self.ports_free[slot] = 0
        self.open_ports.pop(slot, None)

    def _count(self, slot: int, claim: SnapshotClaim, sign: int) -> None:
        kind = "nominated" if claim.nominated else "reclaimable" if claim.reclaimable else "firm"
        self._add(kind, slot, claim.amounts, sign)
        if claim.devices:
            self._count_devices(slot, claim, sign)
        if claim.ports or claim.open_ports:
            self._count_ports(slot, claim, sign)
        if claim.workload:
            self._count_workload(slot, claim, sign)

    def _add(self, kind: str, slot: int, amounts: Amounts, sign: int) -> None:
        for resource, amount in amounts:
            row = self._nodes.row(resource)
            self._resize()
            getattr(self, kind)[row, slot] += sign * amount

    def _count_devices(self, slot: int, claim: SnapshotClaim, sign: int) -> None:
        positions = {device.id: i for i, device in enumerate(self._nodes.gpus[slot])}
        for device_id, milli in claim.devices:
            position = positions.get(device_id)
            if position is not None:  # the device may have been removed from the node while claimed
                self.gpu_free[position, slot] -= sign * milli

    def _count_ports(self, slot: int, claim: SnapshotClaim, sign: int) -> None:
        in_range = ports_in_range(self._nodes.node(claim.node), claim.ports)
        self.ports_free[slot] -= sign * (in_range + claim.open_ports)
        self.open_ports[slot] += sign * claim.open_ports
        if not self.open_ports[slot]:
            del self.open_ports[slot]
        if sign > 0 and claim.ports:
            self.ports[slot] |= frozenset(claim.ports)

    def _recount_ports(self, slot: int, name: str) -> None:
        claims = self._by_node.get(name, {}).values()
        self.ports[slot] = frozenset(port for claim in claims for port in claim.ports)

    def _count_workload(self, slot: int, claim: SnapshotClaim, sign: int) -> None:
        key, table = (claim.namespace, claim.workload), self._table(claim)
        if (claim.stopping, key) not in self._copied:
            self._copied.add((claim.stopping, key))
            table[key] = {labels: dict(counts) for labels, counts in table.get(key, {}).items()}
        groups = table[key]
        counts = groups.setdefault(claim.labels, {})
        remaining = counts.get(slot, 0) + sign
        if remaining > 0:
            counts[slot] = remaining
            return
        counts.pop(slot, None)
        if not counts:
            del groups[claim.labels]
        if not groups:
            del table[key]
            self._copied.discard((claim.stopping, key))

    def _resize(self) -> None:
        """Grows the columns to the size of the node table."""
        rows, slots = len(self._nodes.resources), self._nodes.size
        if self.firm.shape != (rows, slots):
            for kind in ("firm", "reclaimable", "nominated", "recovery_reserved"):
                setattr(self, kind, _grown(getattr(self, kind), rows, slots))
        if self.gpu_free.shape != (self._nodes.gpu_width, slots):
            self.gpu_free = _grown(self.gpu_free, self._nodes.gpu_width, slots)
        if len(self.ports) < slots:
            self.ports.extend([_NO_PORTS] * (slots - len(self.ports)))
            self.ports_free = np.concatenate([self.ports_free, np.zeros(slots - len(self.ports_free), dtype=np.int64)])


def _grown(column: Counts, rows: int, slots: int) -> Counts:
    grown: Counts = np.zeros((rows, slots), dtype=np.int64)
    grown[: column.shape[0], : column.shape[1]] = column
    return grown
