"""The frozen snapshot: immutable, and the only state that a plan reads.

- A slot is the index of a node. No decision may depend on the order of slots.
- Amounts are `[resource, slot]` arrays in base units.
- `memo` caches pure results that depend on static node facts only. It is dropped when a node changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.model.host_paths import NodeHostPath
from holdfast.model.node import Node
from holdfast.model.override import Override
from holdfast.model.placement_eligibility import NeighbourSelector
from holdfast.model.placement_rules import Taint
from holdfast.model.volume import HeldVolume
from holdfast.scheduling.snapshot.claim import ClaimKey, Labels, SnapshotClaim
from holdfast.scheduling.snapshot.columns import InternedColumn

# Results that the planner caches until a node's static properties change. At the bound the cache is emptied.
PLANNER_CACHE_ENTRIES_MAX = 1024

Counts = NDArray[np.int64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.uint8]

_INT_EXACT_MAX = 2**56
"""Amounts up to this can be multiplied by 100 in int64."""
_FLOAT_EXACT_MAX = 2**44
"""Small multiples of amounts up to this, times 100, are exact in a float."""


class AntiAffinityGuard(NamedTuple):
    """Anti-affinity of a placed workload: selected work must not use its nodes, or its zones."""

    namespace: str
    workload: str
    topology: str
    selector: NeighbourSelector


class StaticFacts(msgspec.Struct, frozen=True):
    """Facts from Node objects alone, without claims. Shared by all snapshots until a node changes."""

    version: int
    nodes: tuple[Node | None, ...]
    has_node: Bools
    name_hash: NDArray[np.uint64]
    zone: InternedColumn[str]
    pool: InternedColumn[str]
    tenant: InternedColumn[str]
    drivers: InternedColumn[tuple[str, ...]]
    host_paths: InternedColumn[tuple[NodeHostPath, ...]]
    taints: InternedColumn[tuple[Taint, ...]]
    unschedulable_reason: InternedColumn[str]
    cached_artifacts: InternedColumn[tuple[str, ...]]
    labels: Mapping[str, InternedColumn[str | None]]
    gpu_ids: tuple[tuple[str, ...], ...]
    gpu_model: NDArray[np.int32]
    gpu_models: tuple[str, ...]
    largest_capacity: int
    memo: dict[Any, Any]


class Snapshot(msgspec.Struct, frozen=True):
    """One state of a region.

    `placed` counts claims that stay per slot, by (namespace, workload) and template labels; `stopping` counts those
    that stop. `claims` has all claims by node, `nominations` those that wait for victims, `guards` the nodes of placed
    work with anti-affinity, `protected` the protected quota per tenant.
    `recovery_reserved` is capacity of recovery slots, `open_ports` the dynamic ports of assumed claims per slot.
    """

    revision: int
    hash: str
    region: str
    residency: tuple[str, ...] | None
    overrides: tuple[Override, ...]
    static: StaticFacts
    slots: Mapping[str, int]
    resources: Mapping[str, int]
    capacity: Counts
    firm: Counts
    reclaimable: Counts
    recovery_reserved: Counts
    nominated: Counts
    gpu_free: Counts
    ports: tuple[frozenset[int], ...]
    ports_free: Counts
    placed: Mapping[tuple[str, str], Mapping[Labels, Mapping[int, int]]]
    assumed: int
    claims: Mapping[str, Mapping[ClaimKey, SnapshotClaim]] = {}
    open_ports: Mapping[int, int] = {}
    guards: Mapping[AntiAffinityGuard, Mapping[str, int]] = {}
    protected: Mapping[str, Mapping[str, int]] = {}
    stopping: Mapping[tuple[str, str], Mapping[Labels, Mapping[int, int]]] = {}
    nominations: Mapping[str, tuple[SnapshotClaim, ...]] = {}
    volumes: Mapping[tuple[str, str], HeldVolume] = {}
    """By tenant and name."""

    @property
    def node_count(self) -> int:
        return len(self.slots)

    def name(self, slot: int) -> str:
        node = self.static.nodes[slot]
        return node.metadata.name if node is not None else ""

    def name_order(self) -> Counts:
        """Position of each slot in the order of node names; the last tie-break of choices and reports."""
        found = self.static.memo.get("name rank")
        if found is None:
            names = [node.metadata.name if node is not None else "" for node in self.static.nodes]
            order_by_slot: Counts = np.empty(len(names), dtype=np.int64)
            order_by_slot[np.argsort(np.array(names, dtype=object), kind="stable")] = np.arange(len(names))
            found = self.memoize("name rank", order_by_slot)
        order: Counts = found
        return order

    def zone(self, slot: int) -> str:
        return self.static.zone.at(slot)

    def domain_ids(self, topology: str) -> NDArray[np.int32]:
        """[slot]: number of the node's domain of a spread or affinity rule; negative if it has none."""
        if topology == "zone":
            return self.static.zone.ids
        key = ("domain ids", topology)
        found = self.static.memo.get(key)
        if found is None:
            size = len(self.static.has_node)
            column = self.static.labels.get(topology)
            ids: NDArray[np.int32] = np.arange(size, dtype=np.int32)
            if topology != "node":
                ids = np.full(size, -1, dtype=np.int32)
                if column is not None:
                    ids[:] = np.where(column.where(lambda value: value is not None), column.ids, -1)
            found = self.memoize(key, ids)
        answer: NDArray[np.int32] = found
        return answer

    def free(self, *, reclaimable: bool) -> Counts:
        """Free amounts for new claims, by the capacity rule; negative on an overcommitted node.

        Firm work must fit beside recovery slots, and beside reclaimable work. Reclaimable work may use the capacity of
        recovery slots, because it is evicted on demand. Victims of a nomination still count: their capacity is not
        free before they are released.
        """
        free = self.capacity - self.firm - self.nominated
        if reclaimable:
            return free - self.reclaimable
        return free - np.maximum(self.recovery_reserved, self.reclaimable)

    def memoize(self, key: Any, value: Any) -> Any:
        """Caches a pure result until a node's static facts change. At the bound the whole cache is cleared."""
        memo = self.static.memo
        if len(memo) >= PLANNER_CACHE_ENTRIES_MAX:
            memo.clear()
        memo[key] = value
        return value


def percent(part: Counts, whole: Counts, largest: int) -> Counts:
    """`part` as a percentage of `whole`, rounded down; 0 if both are 0. `largest` is the largest value of `whole`."""
    if largest <= _FLOAT_EXACT_MAX:
        # A float quotient of integers below 2^53 never rounds up to the next integer, and takes a third of the time.
        quotient = np.true_divide(part * 100, np.maximum(whole, 1))
        return np.floor(quotient, out=quotient).astype(np.int64)
    if largest <= _INT_EXACT_MAX:
        return part * 100 // np.maximum(whole, 1)
    return part // np.maximum(whole // 100, 1)
