"""A frozen snapshot: nothing in it ever changes, and everything a plan reads is in it.

Slots number the nodes and carry no meaning: no decision may depend on their order. Amounts are `[resource, slot]`
arrays in base units. `memo` remembers pure results that depend on the nodes' static facts alone, and is dropped
with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.flow.snapshot.claim import Claim, ClaimKey, Labels
from holdfast.flow.snapshot.columns import Column
from holdfast.model import limits
from holdfast.model.node import Node
from holdfast.model.override import Override
from holdfast.model.placement_rules import Taint

Counts = NDArray[np.int64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.uint8]

_INT_EXACT_MAX = 2**56
"""Amounts up to this can be multiplied by a hundred inside int64."""
_FLOAT_EXACT_MAX = 2**44
"""Amounts up to this, a few times over and multiplied by a hundred, are whole numbers that floats hold exactly."""


class Guard(NamedTuple):
    """A placed workload's wish that work with these labels stays off its nodes, or its zones."""

    namespace: str
    workload: str
    topology: str
    labels: Labels


class StaticFacts(msgspec.Struct, frozen=True):
    """What follows from Node objects alone, without claims. Shared by all snapshots until a node changes."""

    version: int
    nodes: tuple[Node | None, ...]
    live: Bools
    name_hash: NDArray[np.uint64]
    zone: Column[str]
    pool: Column[str]
    tenant: Column[str]
    drivers: Column[tuple[str, ...]]
    taints: Column[tuple[Taint, ...]]
    refusal: Column[str]
    warm: Column[tuple[str, ...]]
    labels: Mapping[str, Column[str | None]]
    gpu_ids: tuple[tuple[str, ...], ...]
    gpu_model: NDArray[np.int32]
    gpu_models: tuple[str, ...]
    largest: int
    memo: dict[Any, Any]


class Snapshot(msgspec.Struct, frozen=True):
    """One state of a region. `placed` counts claims per slot, by (namespace, workload) and then by template labels;
    `claims` has every claim by node, `guards` the nodes on which placed work keeps others off, `protected` what of each
    tenant's use nobody else may evict."""

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
    held: Counts
    nominated: Counts
    gpu_free: Counts
    ports: tuple[frozenset[int], ...]
    ports_free: Counts
    placed: Mapping[tuple[str, str], Mapping[Labels, Mapping[int, int]]]
    assumed: int
    claims: Mapping[str, Mapping[ClaimKey, Claim]] = {}
    guards: Mapping[Guard, Mapping[str, int]] = {}
    protected: Mapping[str, Mapping[str, int]] = {}

    @property
    def node_count(self) -> int:
        return len(self.slots)

    def name(self, slot: int) -> str:
        node = self.static.nodes[slot]
        return node.metadata.name if node is not None else ""

    def name_rank(self) -> Counts:
        """Each slot's place in the order of node names; what is equal otherwise is told, and chosen, by it."""
        found = self.static.memo.get("name rank")
        if found is None:
            names = [node.metadata.name if node is not None else "" for node in self.static.nodes]
            ranks: Counts = np.empty(len(names), dtype=np.int64)
            ranks[np.argsort(np.array(names, dtype=object), kind="stable")] = np.arange(len(names))
            found = self.remember("name rank", ranks)
        rank: Counts = found
        return rank

    def zone(self, slot: int) -> str:
        return self.static.zone.at(slot)

    def free(self, *, reclaimable: bool) -> Counts:
        """What new claims of a class may still take, by the capacity rule; negative where a node is overcommitted.

        Firm work must fit beside what is held for recovery and, by itself, beside reclaimable work. Reclaimable work
        may use what is held, as it yields at once. Victims of a nomination are not discounted: until they are gone,
        nobody else may count on their room.
        """
        plain = self.capacity - self.firm - self.nominated
        if reclaimable:
            return plain - self.reclaimable
        return plain - np.maximum(self.held, self.reclaimable)

    def remember(self, key: Any, value: Any) -> Any:
        """Keeps a pure result for as long as no node's static facts change; bounded, forgetting everything at once."""
        memo = self.static.memo
        if len(memo) >= limits.PLANNER_MEMO_ENTRIES:
            memo.clear()
        memo[key] = value
        return value


def percent(part: Counts, whole: Counts, largest: int) -> Counts:
    """`part` in hundredths of `whole`, rounded down; 0 where both are. `largest` is the largest whole there is."""
    if largest <= _FLOAT_EXACT_MAX:
        # The quotient of whole numbers below 2^53 never rounds up to the next one, and takes a third of the time.
        quotient = np.true_divide(part * 100, np.maximum(whole, 1))
        return np.floor(quotient, out=quotient).astype(np.int64)
    if largest <= _INT_EXACT_MAX:
        return part * 100 // np.maximum(whole, 1)
    return part // np.maximum(whole // 100, 1)
