"""Selects preemption victims: the cheapest set of lower-priority claims on one node that makes the replica fit.

- Cost order: fewest victims, lowest highest priority, lowest sum of priorities, least disruption cost
  (`victim_selection`), then the node's tie-break. Large sets are minimal, not optimal (`limits.VICTIM_SETS_TRIED`).
- Never a victim: equal or higher priority, a node that takes no new work, a claim that stops or is a victim already, a
  workload whose disruption budget is used up, another tenant's protected quota, a claim the authority just refused.
- Priority strictly decreases from preemptor to victim, so preemption cannot cycle.
- Recovery work first reclaims reclaimable work, whatever its priority: that capacity is borrowed. No preemption budget
  or policy applies, and reclaimable work evicts nothing, so this cannot cycle either.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from holdfast.model import limits
from holdfast.model.quantity import WHOLE_GPU_MILLI
from holdfast.scheduling.plan.tie_break import tie_numbers
from holdfast.scheduling.plan.victim_selection import (
    UNKNOWN_SIBLINGS,
    SiblingStatusSource,
    Victim,
    VictimSelection,
)
from holdfast.scheduling.queue_order import raised_priorities
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Counts, SnapshotClaim


class Eviction(NamedTuple):
    """`reclaimed`: recovery work takes back capacity that reclaimable work borrowed."""

    slot: int
    victims: tuple[Victim, ...]
    reclaimed: bool = False


class _Cost(NamedTuple):
    victims: int
    highest: int
    total: int
    hurt: int
    names: tuple[str, ...]


class PreemptionPlanner:
    """The preemption candidates of one snapshot, and the victims that this plan has chosen so far."""

    def __init__(self, scratch: Scratch, standing: SiblingStatusSource = UNKNOWN_SIBLINGS) -> None:
        self._scratch = scratch
        self.victim_selection = VictimSelection(scratch.snapshot, standing)
        snapshot = scratch.snapshot
        raised = raised_priorities(snapshot.overrides, scratch.now, snapshot.region)
        self._raised = raised
        rows = snapshot.resources
        shape = scratch.room.shape
        self._leaving: Counts = np.zeros(shape, dtype=np.int64)
        self._leaving_firm: Counts = np.zeros(shape, dtype=np.int64)
        self._chosen: set[str] = set()
        self._prey: list[Victim] = []
        slots: list[int] = []
        everything: dict[str, tuple[int, SnapshotClaim]] = {}
        named: list[str] = []
        # The order does not matter: the code below sums, looks up by name, or sorts.
        for node, claims in snapshot.claims.items():
            slot = snapshot.slots.get(node)
            for key, claim in claims.items():
                if claim.victims:
                    named.extend(claim.victims)
                self.victim_selection.add_claim(claim)
                if slot is None or not claim.bound:
                    continue
                name = f"{key.namespace}/{key.name}"
                everything[name] = (slot, claim)
                if claim.live and not claim.stopping:
                    rank = claim.priority
                    if raised:
                        rank = max(rank, raised.get((claim.namespace, claim.workload), rank))
                    self._prey.append(Victim(name, claim, rank))
                    slots.append(slot)
        order = np.argsort(np.array(slots, dtype=np.int64), kind="stable")
        self._prey = [self._prey[i] for i in order.tolist()]
        self._slot: Counts = np.array(slots, dtype=np.int64)[order]
        self._rank: Counts = np.array([p.priority for p in self._prey], dtype=np.int64)
        self._on_loan: Bools = np.array([p.claim.reclaimable for p in self._prey], dtype=np.bool_)
        self._amounts: Counts = np.zeros((len(rows), len(self._prey)), dtype=np.int64)
        self._index = {prey.name: index for index, prey in enumerate(self._prey)}
        self._free: Bools = np.ones(len(self._prey), dtype=np.bool_)
        """Candidates that are not victims yet."""
        for index, prey in enumerate(self._prey):
            for name, amount in prey.claim.amounts:
                if name in rows:
                    self._amounts[rows[name], index] = amount
        for name in named:
            found = everything.get(name)
            if found is not None and name not in self._chosen:
                self._leave(name, found[1], found[0])

    def priority_of(self, ask: ReplicaRequirements) -> int:
        return max(ask.priority, self._raised.get((ask.namespace, ask.workload), ask.priority))

    def choose_victims(self, ask: ReplicaRequirements, allowed: Bools, *, most: int, seed: int) -> Eviction | None:
        """The cheapest eviction, of at most `most` victims, that lets one replica fit on a node in `allowed`."""
        found = self._cheapest(ask, allowed, self._rank < self.priority_of(ask), most=most, seed=seed)
        return Eviction(*found) if found is not None else None

    def choose_reclaimable(self, ask: ReplicaRequirements, allowed: Bools, *, seed: int) -> Eviction | None:
        """The cheapest eviction of reclaimable claims only, of any priority."""
        found = self._cheapest(ask, allowed, self._on_loan, most=limits.VICTIMS_PER_REPLICA_MAX, seed=seed)
        return Eviction(*found, reclaimed=True) if found is not None else None

    def _cheapest(
        self, ask: ReplicaRequirements, allowed: Bools, weaker: Bools, *, most: int, seed: int
    ) -> tuple[int, tuple[Victim, ...]] | None:
        if not self._prey or most < 1:
            return None
        spared = [self._index[name] for name in ask.excluded_victims if name in self._index]
        if spared:
            weaker = weaker.copy()
            weaker[spared] = False
        slots, bounds, lowest = self._bounds(ask, weaker, allowed)
        if not slots.size:
            return None
        ties = tie_numbers(self._scratch.snapshot, seed)[slots]
        name = self._scratch.snapshot.name
        order = np.lexsort((ties, lowest, bounds)).tolist()
        best: tuple[_Cost, int, str, int] | None = None
        victims: tuple[Victim, ...] = ()
        equals = 0
        for tried, index in enumerate(order):
            slot, bound = int(slots[index]), (int(bounds[index]), int(lowest[index]))
            if bound[0] > most or tried >= limits.PREEMPTION_NODES_MAX:
                break
            if best is not None and (best[0].victims, best[0].highest) < bound:
                break
            if best is not None and (best[0].victims, best[0].highest, best[0].total) == (*bound, bound[0] * bound[1]):
                equals += 1
                if not best[0].hurt or equals > limits.TIED_VICTIM_NODES_MAX:
                    break  # no cheaper set can follow, and equal ones lose the tie-break
            found = self._smallest(ask, slot, weaker, most)
            if found is None:
                continue
            rated = (self._cost(found), int(ties[index]), name(slot), slot)
            if best is None or _rating(rated) < _rating(best):
                best, victims = rated, found
        return (best[3], victims) if best is not None else None

    def nominate(self, ask: ReplicaRequirements, eviction: Eviction) -> None:
        """Books the nomination: the claim counts, and its victims count as leaving and cannot be chosen again."""
        self._scratch.nominate(ask, eviction.slot, 1)
        for prey in eviction.victims:
            self._leave(prey.name, prey.claim, eviction.slot)

    def undo(self, ask: ReplicaRequirements, eviction: Eviction) -> None:
        self._scratch.nominate(ask, eviction.slot, -1)
        for prey in eviction.victims:
            self._leave(prey.name, prey.claim, eviction.slot, sign=-1)

    # Inside

    def _leave(self, name: str, claim: SnapshotClaim, slot: int, sign: int = 1) -> None:
        if sign > 0:
            self._chosen.add(name)
        else:
            self._chosen.discard(name)
        if name in self._index:
            self._free[self._index[name]] = sign < 0
        self.victim_selection.mark_victim(name, claim, sign)
        rows = self._scratch.snapshot.resources
        for resource, amount in claim.amounts:
            self._leaving[rows[resource], slot] += sign * amount
            if not claim.reclaimable:
                self._leaving_firm[rows[resource], slot] += sign * amount

    def _bounds(self, ask: ReplicaRequirements, weaker: Bools, allowed: Bools) -> tuple[Counts, Counts, Counts]:
        """Nodes that fit if all lower-priority claims left, with lower bounds of victim count and priority."""
        usable = weaker & allowed[self._slot] & self._free
        where = np.flatnonzero(usable)
        if not where.size:
            empty: Counts = np.zeros(0, dtype=np.int64)
            return empty, empty, empty
        slots, starts = np.unique(self._slot[where], return_index=True)
        bounds: Counts = np.ones(len(slots), dtype=np.int64)
        fits: Bools = np.ones(len(slots), dtype=np.bool_)
        scratch = self._scratch
        for row, amount in scratch.rows(ask):
            given = self._amounts[row, where]
            most, total = np.maximum.reduceat(given, starts), np.add.reduceat(given, starts)
            room = scratch.room[row, slots] + self._leaving[row, slots]
            if not ask.reclaimable and not ask.uses_recovery_slots:
                # Firm victims free both kinds of capacity, reclaimable victims only the first: a bound, not a proof.
                room = np.minimum(room, scratch.firm_room[row, slots] + self._leaving_firm[row, slots])
            missing = amount - room
            fits &= total >= missing
            bounds = np.maximum(bounds, -(-missing // np.maximum(most, 1)))
        lowest = np.minimum.reduceat(self._rank[where], starts)
        return slots[fits], bounds[fits], lowest[fits]

    def _smallest(self, ask: ReplicaRequirements, slot: int, weaker: Bools, most: int) -> tuple[Victim, ...] | None:
        begin, end = np.searchsorted(self._slot, [slot, slot + 1]).tolist()
        prey = [self._prey[i] for i in range(begin, end) if weaker[i] and self._prey[i].name not in self._chosen]
        prey.sort(key=lambda p: (not p.claim.reclaimable, p.priority, p.name))
        for size in range(1, min(len(prey), most) + 1):
            if comb(len(prey), size) > limits.VICTIM_SETS_MAX:
                return self._greedy(ask, slot, prey, most)
            fitting = [found for found in combinations(prey, size) if self._enough(ask, slot, found)]
            if fitting:
                return min(fitting, key=self._cost)
        return None

    def _greedy(self, ask: ReplicaRequirements, slot: int, prey: Sequence[Victim], most: int) -> tuple[Victim, ...] | None:
        """Starts with all allowed victims and drops as many as possible, highest priority first."""
        going: list[Victim] = []
        for candidate in prey:
            if self.victim_selection.allows(ask, (*going, candidate)):
                going.append(candidate)
        if not self._enough(ask, slot, tuple(going)):
            return None
        for candidate in sorted(going, key=lambda p: (-p.priority, p.name)):
            without = tuple(p for p in going if p is not candidate)
            if self._enough(ask, slot, without):
                going.remove(candidate)
        return tuple(going) if len(going) <= most else None

    def _cost(self, victims: Sequence[Victim]) -> _Cost:
        ranks = [prey.priority for prey in victims]
        names = tuple(sorted(prey.name for prey in victims))
        return _Cost(len(ranks), max(ranks), sum(ranks), self.victim_selection.disruption_cost(victims), names)

    def _enough(self, ask: ReplicaRequirements, slot: int, victims: Sequence[Victim]) -> bool:
        """Whether one replica fits by capacity, devices and ports if exactly these victims leave, and all may."""
        scratch, rows = self._scratch, self._scratch.snapshot.resources
        given: dict[int, int] = {}
        firm: dict[int, int] = {}
        for prey in victims:
            for resource, amount in prey.claim.amounts:
                row = rows[resource]
                given[row] = given.get(row, 0) + amount
                if not prey.claim.reclaimable:
                    firm[row] = firm.get(row, 0) + amount
        for resource, amount in ask.amounts.items():
            known = rows.get(resource)
            if known is None:
                return False
            if int(scratch.room[known, slot]) + int(self._leaving[known, slot]) + given.get(known, 0) < amount:
                return False
            room = int(scratch.firm_room[known, slot]) + int(self._leaving_firm[known, slot]) + firm.get(known, 0)
            if not ask.reclaimable and not ask.uses_recovery_slots and room < amount:
                return False
        fits = self._ports_enough(ask, slot, victims) and self._devices_enough(ask, slot, victims)
        return fits and self.victim_selection.allows(ask, victims)

    def _ports_enough(self, ask: ReplicaRequirements, slot: int, victims: Sequence[Victim]) -> bool:
        scratch = self._scratch
        if ask.fixed_ports:
            freed = {port for prey in victims for port in prey.claim.ports}
            if not (scratch.ports(slot) - freed).isdisjoint(ask.fixed_ports):
                return False
        if not ask.open_ports:
            return True
        node = scratch.snapshot.static.nodes[slot]
        low, high = node.spec.port_range if node is not None else (1, 0)
        freed_open = sum(low <= port <= high for prey in victims for port in prey.claim.ports)
        left: int = int(scratch.ports_free[slot]) + freed_open
        return left >= ask.open_ports

    def _devices_enough(self, ask: ReplicaRequirements, slot: int, victims: Sequence[Victim]) -> bool:
        if not ask.gpu_milli:
            return True
        static = self._scratch.snapshot.static
        free = dict(zip(static.gpu_ids[slot], self._scratch.gpu_free[:, slot].tolist(), strict=False))
        for prey in victims:
            for device, milli in prey.claim.devices:
                if device in free:
                    free[device] += milli
        models = ask.template.gpu_models
        wanted = [
            free[device]
            for position, device in enumerate(static.gpu_ids[slot])
            if not models or static.gpu_models[static.gpu_model[position, slot]] in models
        ]
        if ask.whole_gpus:
            return sum(1 for left in wanted if left >= WHOLE_GPU_MILLI) >= ask.whole_gpus
        return any(left >= ask.gpu_milli for left in wanted)


def _rating(rated: tuple[_Cost, int, str, int]) -> tuple[int, int, int, int, int, str]:
    cost, tie, name, _ = rated
    return (cost.victims, cost.highest, cost.total, cost.hurt, tie, name)
