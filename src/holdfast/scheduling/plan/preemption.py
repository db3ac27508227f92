"""Selects preemption victims: the cheapest set of lower-priority claims on one node that makes the replica fit.

- Cost order: fewest victims, lowest highest priority, lowest sum of priorities, least disruption cost
  (`victim_selection`), then the node's tie-break. Large sets are minimal, not optimal (`VICTIM_SETS_MAX`).
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

from holdfast.model.quantity import WHOLE_GPU_MILLI
from holdfast.scheduling.plan.tie_break import tie_numbers
from holdfast.scheduling.plan.victim_selection import UNKNOWN_SIBLINGS, SiblingStatusSource, Victim, VictimSelection
from holdfast.scheduling.queue_order import raised_priorities
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Counts, SnapshotClaim

# Nodes on which a preemption searches for victims, most promising first. At the bound the best set so far is taken.
PREEMPTION_NODES_MAX = 64
# Further nodes examined for a less disruptive victim set, once a set with the minimal count and priority is known.
# At the bound the planner takes the best set so far.
TIED_VICTIM_NODES_MAX = 8
# Victim sets compared per size and node. Beyond that a minimal set is built greedily instead of the cheapest one.
VICTIM_SETS_MAX = 512
# Victims of one replica. If more were needed, the node is not considered.
VICTIMS_PER_REPLICA_MAX = 16


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

    def __init__(self, scratch: Scratch, sibling_status: SiblingStatusSource = UNKNOWN_SIBLINGS) -> None:
        self._scratch = scratch
        self.victim_selection = VictimSelection(scratch.snapshot, sibling_status)
        snapshot = scratch.snapshot
        raised = raised_priorities(snapshot.overrides, scratch.now, snapshot.region)
        self._raised = raised
        rows = snapshot.resources
        shape = scratch.free_for_reclaimable.shape
        self._leaving: Counts = np.zeros(shape, dtype=np.int64)
        self._leaving_firm: Counts = np.zeros(shape, dtype=np.int64)
        self._chosen: set[str] = set()
        self._candidates: list[Victim] = []
        slots: list[int] = []
        by_name: dict[str, tuple[int, SnapshotClaim]] = {}
        victim_names: list[str] = []
        # The order does not matter: the code below sums, looks up by name, or sorts.
        for node, claims in snapshot.claims.items():
            slot = snapshot.slots.get(node)
            for key, claim in claims.items():
                if claim.victims:
                    victim_names.extend(claim.victims)
                self.victim_selection.add_claim(claim)
                if slot is None or not claim.bound:
                    continue
                name = f"{key.namespace}/{key.name}"
                by_name[name] = (slot, claim)
                if claim.live and not claim.stopping:
                    priority = claim.priority
                    if raised:
                        priority = max(priority, raised.get((claim.namespace, claim.workload), priority))
                    self._candidates.append(Victim(name, claim, priority))
                    slots.append(slot)
        order = np.argsort(np.array(slots, dtype=np.int64), kind="stable")
        self._candidates = [self._candidates[i] for i in order.tolist()]
        self._slot: Counts = np.array(slots, dtype=np.int64)[order]
        self._priority: Counts = np.array([p.priority for p in self._candidates], dtype=np.int64)
        self._reclaimable: Bools = np.array([p.claim.reclaimable for p in self._candidates], dtype=np.bool_)
        self._amounts: Counts = np.zeros((len(rows), len(self._candidates)), dtype=np.int64)
        self._index = {victim.name: index for index, victim in enumerate(self._candidates)}
        self._available: Bools = np.ones(len(self._candidates), dtype=np.bool_)
        """Candidates that are not victims yet."""
        for index, victim in enumerate(self._candidates):
            for name, amount in victim.claim.amounts:
                if name in rows:
                    self._amounts[rows[name], index] = amount
        for name in victim_names:
            found = by_name.get(name)
            if found is not None and name not in self._chosen:
                self._mark_leaving(name, found[1], found[0])

    def priority_of(self, requirements: ReplicaRequirements) -> int:
        return max(
            requirements.priority,
            self._raised.get((requirements.namespace, requirements.workload), requirements.priority),
        )

    def choose_victims(
        self, requirements: ReplicaRequirements, allowed: Bools, *, most: int, seed: int
    ) -> Eviction | None:
        """The cheapest eviction, of at most `most` victims, that lets one replica fit on a node in `allowed`."""
        found = self._cheapest_eviction(
            requirements, allowed, self._priority < self.priority_of(requirements), most=most, seed=seed
        )
        return Eviction(*found) if found is not None else None

    def choose_reclaimable(self, requirements: ReplicaRequirements, allowed: Bools, *, seed: int) -> Eviction | None:
        """The cheapest eviction of reclaimable claims only, of any priority."""
        found = self._cheapest_eviction(
            requirements, allowed, self._reclaimable, most=VICTIMS_PER_REPLICA_MAX, seed=seed
        )
        return Eviction(*found, reclaimed=True) if found is not None else None

    def _cheapest_eviction(
        self, requirements: ReplicaRequirements, allowed: Bools, eligible: Bools, *, most: int, seed: int
    ) -> tuple[int, tuple[Victim, ...]] | None:
        if not self._candidates or most < 1:
            return None
        excluded = [self._index[name] for name in requirements.excluded_victims if name in self._index]
        if excluded:
            eligible = eligible.copy()
            eligible[excluded] = False
        slots, bounds, lowest = self._bounds(requirements, eligible, allowed)
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
            if bound[0] > most or tried >= PREEMPTION_NODES_MAX:
                break
            if best is not None and (best[0].victims, best[0].highest) < bound:
                break
            if best is not None and (best[0].victims, best[0].highest, best[0].total) == (*bound, bound[0] * bound[1]):
                equals += 1
                if not best[0].hurt or equals > TIED_VICTIM_NODES_MAX:
                    break  # no cheaper set can follow, and equal ones lose the tie-break
            found = self._smallest_set(requirements, slot, eligible, most)
            if found is None:
                continue
            ranked = (self._cost(found), int(ties[index]), name(slot), slot)
            if best is None or _rating(ranked) < _rating(best):
                best, victims = ranked, found
        return (best[3], victims) if best is not None else None

    def nominate(self, requirements: ReplicaRequirements, eviction: Eviction) -> None:
        """Books the nomination: the claim counts, and its victims count as leaving and cannot be chosen again."""
        self._scratch.nominate(requirements, eviction.slot, 1)
        for victim in eviction.victims:
            self._mark_leaving(victim.name, victim.claim, eviction.slot)

    def undo(self, requirements: ReplicaRequirements, eviction: Eviction) -> None:
        self._scratch.nominate(requirements, eviction.slot, -1)
        for victim in eviction.victims:
            self._mark_leaving(victim.name, victim.claim, eviction.slot, sign=-1)

    # Inside

    def _mark_leaving(self, name: str, claim: SnapshotClaim, slot: int, sign: int = 1) -> None:
        if sign > 0:
            self._chosen.add(name)
        else:
            self._chosen.discard(name)
        if name in self._index:
            self._available[self._index[name]] = sign < 0
        self.victim_selection.mark_victim(name, claim, sign)
        rows = self._scratch.snapshot.resources
        for resource, amount in claim.amounts:
            self._leaving[rows[resource], slot] += sign * amount
            if not claim.reclaimable:
                self._leaving_firm[rows[resource], slot] += sign * amount

    def _bounds(
        self, requirements: ReplicaRequirements, eligible: Bools, allowed: Bools
    ) -> tuple[Counts, Counts, Counts]:
        """Nodes that fit if all lower-priority claims left, with lower bounds of victim count and priority."""
        usable = eligible & allowed[self._slot] & self._available
        where = np.flatnonzero(usable)
        if not where.size:
            empty: Counts = np.zeros(0, dtype=np.int64)
            return empty, empty, empty
        slots, starts = np.unique(self._slot[where], return_index=True)
        bounds: Counts = np.ones(len(slots), dtype=np.int64)
        fits: Bools = np.ones(len(slots), dtype=np.bool_)
        scratch = self._scratch
        for row, amount in scratch.rows(requirements):
            given = self._amounts[row, where]
            most, total = np.maximum.reduceat(given, starts), np.add.reduceat(given, starts)
            available = scratch.free_for_reclaimable[row, slots] + self._leaving[row, slots]
            if not requirements.reclaimable and not requirements.uses_recovery_slots:
                # Firm victims free both kinds of capacity, reclaimable victims only the first: a bound, not a proof.
                available = np.minimum(available, scratch.unreserved[row, slots] + self._leaving_firm[row, slots])
            missing = amount - available
            fits &= total >= missing
            bounds = np.maximum(bounds, -(-missing // np.maximum(most, 1)))
        lowest = np.minimum.reduceat(self._priority[where], starts)
        return slots[fits], bounds[fits], lowest[fits]

    def _smallest_set(
        self, requirements: ReplicaRequirements, slot: int, eligible: Bools, most: int
    ) -> tuple[Victim, ...] | None:
        begin, end = np.searchsorted(self._slot, [slot, slot + 1]).tolist()
        victim = [
            self._candidates[i]
            for i in range(begin, end)
            if eligible[i] and self._candidates[i].name not in self._chosen
        ]
        victim.sort(key=lambda p: (not p.claim.reclaimable, p.priority, p.name))
        for size in range(1, min(len(victim), most) + 1):
            if comb(len(victim), size) > VICTIM_SETS_MAX:
                return self._greedy(requirements, slot, victim, most)
            fitting = [found for found in combinations(victim, size) if self._suffices(requirements, slot, found)]
            if fitting:
                return min(fitting, key=self._cost)
        return None

    def _greedy(
        self, requirements: ReplicaRequirements, slot: int, victim: Sequence[Victim], most: int
    ) -> tuple[Victim, ...] | None:
        """Starts with all allowed victims and drops as many as possible, highest priority first."""
        going: list[Victim] = []
        for candidate in victim:
            if self.victim_selection.allows(requirements, (*going, candidate)):
                going.append(candidate)
        if not self._suffices(requirements, slot, tuple(going)):
            return None
        for candidate in sorted(going, key=lambda p: (-p.priority, p.name)):
            without = tuple(p for p in going if p is not candidate)
            if self._suffices(requirements, slot, without):
                going.remove(candidate)
        return tuple(going) if len(going) <= most else None

    def _cost(self, victims: Sequence[Victim]) -> _Cost:
        priorities = [victim.priority for victim in victims]
        names = tuple(sorted(victim.name for victim in victims))
        return _Cost(
            len(priorities), max(priorities), sum(priorities), self.victim_selection.disruption_cost(victims), names
        )

    def _suffices(self, requirements: ReplicaRequirements, slot: int, victims: Sequence[Victim]) -> bool:
        """Whether one replica fits by capacity, devices and ports if exactly these victims leave, and all may."""
        scratch, rows = self._scratch, self._scratch.snapshot.resources
        given: dict[int, int] = {}
        firm: dict[int, int] = {}
        for victim in victims:
            for resource, amount in victim.claim.amounts:
                row = rows[resource]
                given[row] = given.get(row, 0) + amount
                if not victim.claim.reclaimable:
                    firm[row] = firm.get(row, 0) + amount
        for resource, amount in requirements.amounts.items():
            known = rows.get(resource)
            if known is None:
                return False
            if (
                int(scratch.free_for_reclaimable[known, slot]) + int(self._leaving[known, slot]) + given.get(known, 0)
                < amount
            ):
                return False
            available = int(scratch.unreserved[known, slot]) + int(self._leaving_firm[known, slot]) + firm.get(known, 0)
            if not requirements.reclaimable and not requirements.uses_recovery_slots and available < amount:
                return False
        fits = self._ports_suffice(requirements, slot, victims) and self._devices_suffice(requirements, slot, victims)
        return fits and self.victim_selection.allows(requirements, victims)

    def _ports_suffice(self, requirements: ReplicaRequirements, slot: int, victims: Sequence[Victim]) -> bool:
        scratch = self._scratch
        if requirements.fixed_ports:
            freed = {port for victim in victims for port in victim.claim.ports}
            if not (scratch.ports(slot) - freed).isdisjoint(requirements.fixed_ports):
                return False
        if not requirements.open_ports:
            return True
        node = scratch.snapshot.static.nodes[slot]
        low, high = node.spec.port_range if node is not None else (1, 0)
        freed_open = sum(low <= port <= high for victim in victims for port in victim.claim.ports)
        left: int = int(scratch.ports_free[slot]) + freed_open
        return left >= requirements.open_ports

    def _devices_suffice(self, requirements: ReplicaRequirements, slot: int, victims: Sequence[Victim]) -> bool:
        if not requirements.gpu_milli:
            return True
        static = self._scratch.snapshot.static
        free = dict(zip(static.gpu_ids[slot], self._scratch.gpu_free[:, slot].tolist(), strict=False))
        for victim in victims:
            for device, milli in victim.claim.devices:
                if device in free:
                    free[device] += milli
        models = requirements.template.gpu_models
        free_after = [
            free[device]
            for position, device in enumerate(static.gpu_ids[slot])
            if not models or static.gpu_models[static.gpu_model[position, slot]] in models
        ]
        if requirements.whole_gpus:
            return sum(1 for left in free_after if left >= WHOLE_GPU_MILLI) >= requirements.whole_gpus
        return any(left >= requirements.gpu_milli for left in free_after)


def _rating(ranked: tuple[_Cost, int, str, int]) -> tuple[int, int, int, int, int, str]:
    cost, tie, name, _ = ranked
    return (cost.victims, cost.highest, cost.total, cost.hurt, tie, name)
