"""Selects preemption victims: the cheapest set of lower-priority claims on one node that makes the replica fit.

- Cost order: fewest victims, lowest highest priority, lowest sum of priorities, least disruption cost
  (`victim_selection`), then the node's tie-break. `victim_search` bounds the search on one node.
- Victims may also leave because anti-affinity or spread keeps the replica off the node (`obstacles`).
- A gang that would fall below its minimum leaves as a whole, and all its members count (`gang_victims`).
- Never a victim: equal or higher priority, a node that takes no new work, a claim that stops or is a victim already, a
  workload whose disruption budget is used up, another tenant's protected quota, a claim the authority just refused,
  the last neighbour that a required affinity of the preemptor needs.
- Priority strictly decreases from preemptor to victim, so preemption cannot cycle.
- Recovery work first reclaims reclaimable work, whatever its priority: that capacity is borrowed. No preemption budget
  or policy applies, and reclaimable work evicts nothing, so this cannot cycle either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from holdfast.model.placement_eligibility import is_neighbour, may_be_first
from holdfast.model.placement_rules import AffinityRule, required_affinity
from holdfast.model.quantity import WHOLE_GPU_MILLI
from holdfast.scheduling.filters.affinity import matching_replicas, staying_neighbours
from holdfast.scheduling.plan.gang_victims import GangVictims
from holdfast.scheduling.plan.node_ranking import KnownSet, NodeRanking, VictimCost
from holdfast.scheduling.plan.obstacles import CandidateIndex, Obstacle
from holdfast.scheduling.plan.tie_break import tie_numbers
from holdfast.scheduling.plan.victim_search import Candidates as SearchCandidates
from holdfast.scheduling.plan.victim_search import SearchSteps, exceeds, smallest_set
from holdfast.scheduling.plan.victim_selection import UNKNOWN_SIBLINGS, SiblingStatusSource, Victim, VictimSelection
from holdfast.scheduling.queue_order import raised_priorities
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Counts, SnapshotClaim
from holdfast.scheduling.snapshot.claim import ports_in_range

# Nodes with a sufficient victim set that a preemption compares, most promising first. At the bound the best set so far
# is taken. Nodes without a sufficient set do not count.
PREEMPTION_NODES_MAX = 64
# Steps of the search for the victims of one replica, over all nodes. At the bound the best set so far is taken.
PREEMPTION_STEPS_MAX = 400_000
# Further nodes examined for a less disruptive victim set, once a set with the minimal count and priority is known.
# At the bound the planner takes the best set so far.
TIED_VICTIM_NODES_MAX = 8
# Victims of one replica. If every node needs more, the replica stays pending with `TooManyVictims`.
VICTIMS_PER_REPLICA_MAX = 16
# Nodes that are examined, after a preemption found no victims, to tell whether more victims would have sufficed.
OVER_LIMIT_NODES_MAX = 8


class Eviction(NamedTuple):
    """`reclaimed`: recovery work takes back capacity that reclaimable work borrowed. `victims` are named by the
    nomination; `rest` are the members of their gangs that leave with them."""

    slot: int
    victims: tuple[Victim, ...]
    rest: tuple[Victim, ...] = ()
    reclaimed: bool = False


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
        self._evictions_left = 0
        """Claims that may leave for the next replica, members of gangs included."""
        self.over_limit = False
        """Whether the last search found no set, but a set with more victims than allowed would have sufficed."""
        self._rankings: dict[bool, NodeRanking] = {}
        """The request's nodes in the order in which they are examined; True: to reclaim only."""
        self._neighbours: list[tuple[AffinityRule, dict[int, int], list[int] | None]] = []
        """For each required affinity rule of the request: neighbours per slot that it may rely on, and the slots with
        matching replicas, if the request may be the first of them."""
        self._obstacles: list[Obstacle] = []
        """Anti-affinity and spread that keep the request's next replica off some nodes."""
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
        self._first: Counts = np.searchsorted(self._slot, np.arange(shape[1] + 1))
        """[slot]: index of the node's first candidate; the next entry is behind its last one."""
        self._priority: Counts = np.array([p.priority for p in self._candidates], dtype=np.int64)
        self._reclaimable: Bools = np.array([p.claim.reclaimable for p in self._candidates], dtype=np.bool_)
        self._amounts: Counts = np.zeros((len(rows), len(self._candidates)), dtype=np.int64)
        self._gangs = GangVictims(self._candidates, self._chosen)
        self.candidate_index = CandidateIndex(self._candidates)
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

    def begin_request(self, requirements: ReplicaRequirements) -> None:
        """Starts the next request: drops what was found for the last one."""
        self.victim_selection.begin_request()
        self._rankings.clear()
        self._note_neighbours(requirements)

    def set_obstacles(self, found: list[Obstacle]) -> None:
        """Sets the obstacles of the next replica. Nodes that were hopeless may be so no more."""
        if found or self._obstacles:
            self._rankings.clear()
        self._obstacles = found

    def priority_of(self, requirements: ReplicaRequirements) -> int:
        return max(
            requirements.priority,
            self._raised.get((requirements.namespace, requirements.workload), requirements.priority),
        )

    def choose_victims(
        self, requirements: ReplicaRequirements, allowed: Bools, *, evictions_left: int, seed: int
    ) -> Eviction | None:
        """The cheapest eviction, of at most `evictions_left` claims, that lets one replica fit on a node in
        `allowed`."""
        self._evictions_left = evictions_left
        found = self._cheapest_eviction(
            requirements,
            allowed,
            self._priority < self.priority_of(requirements),
            most=min(evictions_left, VICTIMS_PER_REPLICA_MAX),
            seed=seed,
            reclaim=False,
        )
        return Eviction(*found, rest=tuple(self._gangs.rest(found[1]))) if found is not None else None

    def choose_reclaimable(self, requirements: ReplicaRequirements, allowed: Bools, *, seed: int) -> Eviction | None:
        """The cheapest eviction of reclaimable claims only, of any priority."""
        self._evictions_left = len(self._candidates)
        found = self._cheapest_eviction(
            requirements, allowed, self._reclaimable, most=VICTIMS_PER_REPLICA_MAX, seed=seed, reclaim=True
        )
        if found is None:
            return None
        return Eviction(*found, rest=tuple(self._gangs.rest(found[1])), reclaimed=True)

    def _cheapest_eviction(
        self, requirements: ReplicaRequirements, allowed: Bools, eligible: Bools, *, most: int, seed: int, reclaim: bool
    ) -> tuple[int, tuple[Victim, ...]] | None:
        self.over_limit = False
        if not self._candidates or most < 1:
            return None
        ranking = self._ranking(requirements, allowed, eligible, seed=seed, reclaim=reclaim)
        name = self._scratch.snapshot.name
        best: tuple[VictimCost, int, str, int] | None = None
        victims: tuple[Victim, ...] = ()
        equals = compared = 0
        steps = SearchSteps(PREEMPTION_STEPS_MAX)
        for node in ranking.nodes:
            slot, bound = node.slot, (node.victims, node.priority)
            if bound[0] > most or compared >= PREEMPTION_NODES_MAX or steps.total <= 0:
                break
            if best is not None and (best[0].victims, best[0].highest) < bound:
                break
            if best is not None and (best[0].victims, best[0].highest, best[0].total) == (*bound, bound[0] * bound[1]):
                equals += 1
                if not best[0].hurt or equals > TIED_VICTIM_NODES_MAX:
                    break  # no cheaper set can follow, and equal ones lose the tie-break
            if slot in ranking.hopeless:
                continue
            found = self._cheapest_set(requirements, slot, ranking, most, steps)
            if found is None:
                ranking.hopeless[slot] = None
                continue
            compared += 1
            ranked = (found.cost, node.tie, name(slot), slot)
            if best is None or _rating(ranked) < _rating(best):
                best, victims = ranked, found.victims
        if best is None:
            eligible = ranking.eligible
            self.over_limit = any(
                exceeds(self._search_candidates(requirements, slot, self._victims_on(slot, eligible), eligible), most)
                for slot in [node.slot for node in ranking.nodes[:OVER_LIMIT_NODES_MAX]]
            )
        return (best[3], victims) if best is not None else None

    def _ranking(
        self, requirements: ReplicaRequirements, allowed: Bools, eligible: Bools, *, seed: int, reclaim: bool
    ) -> NodeRanking:
        """The ranking of the request, computed for its first replica and whenever the allowed nodes change."""
        before = ranking = self._rankings.get(reclaim)
        if ranking is None or ranking.allowed is not allowed:
            excluded = [self._index[name] for name in requirements.excluded_victims if name in self._index]
            if excluded:
                eligible = eligible.copy()
                eligible[excluded] = False
            ranking = self._rankings[reclaim] = NodeRanking(
                eligible, allowed, tie_numbers(self._scratch.snapshot, seed), before
            )
            usable = eligible & allowed[self._slot] & self._available
            ranking.fill(*self._bounds(requirements, np.flatnonzero(usable)))
        return ranking

    def _rank_again(self, requirements: ReplicaRequirements, slot: int) -> None:
        """A nomination changed the node."""
        begin, end = int(self._first[slot]), int(self._first[slot + 1])
        for ranking in self._rankings.values():
            usable = ranking.eligible[begin:end] & self._available[begin:end] & ranking.allowed[slot]
            _, victims, priorities = self._bounds(requirements, begin + np.flatnonzero(usable))
            ranking.change(slot, list(zip(victims.tolist(), priorities.tolist(), strict=True)))

    def _cheapest_set(
        self, requirements: ReplicaRequirements, slot: int, ranking: NodeRanking, most: int, steps: SearchSteps
    ) -> KnownSet | None:
        """The cheapest set of victims on the node, and its cost; None if none suffices."""
        known = ranking.known_sets.get(slot)
        if (
            known is not None
            and known.cost.victims <= most
            and known.steps < steps.total
            and self.victim_selection.allows(requirements, known.victims)
        ):
            steps.total -= known.steps
            return known
        before = steps.total
        victims = self._smallest_set(requirements, slot, ranking.eligible, most, steps)
        if not victims:
            return None
        found = KnownSet(victims, self._cost(victims), before - steps.total)
        if steps.complete and not self._gangs and not self._obstacles and not self._neighbours:
            # Otherwise what counts may change with a nomination on another node.
            ranking.known_sets[slot] = found
        return found

    def nominate(self, requirements: ReplicaRequirements, eviction: Eviction) -> None:
        """Books the nomination: the claim counts, and its victims count as leaving and cannot be chosen again."""
        self._scratch.nominate(requirements, eviction.slot, 1)
        for victim in eviction.victims:
            self._mark_leaving(victim.name, victim.claim, eviction.slot)
            self._scratch.count_victim(victim.claim, eviction.slot, 1)
        self._note_neighbours(requirements)
        self._rank_again(requirements, eviction.slot)

    def undo(self, requirements: ReplicaRequirements, eviction: Eviction) -> None:
        self._scratch.nominate(requirements, eviction.slot, -1)
        for victim in eviction.victims:
            self._mark_leaving(victim.name, victim.claim, eviction.slot, sign=-1)
            self._scratch.count_victim(victim.claim, eviction.slot, -1)

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

    def _bounds(self, requirements: ReplicaRequirements, where: Counts) -> tuple[Counts, Counts, Counts]:
        """Nodes that fit if the candidates `where` left, with lower bounds of victim count and priority."""
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
        for needs, gives in self._obstacles:
            total = np.add.reduceat(gives[where].astype(np.int64), starts)
            fits &= total >= needs[slots]
            bounds = np.maximum(bounds, needs[slots])
        lowest = np.minimum.reduceat(self._priority[where], starts)
        return slots[fits], bounds[fits], lowest[fits]

    def _victims_on(self, slot: int, eligible: Bools) -> list[Victim]:
        """The node's eligible candidates, in the order in which they are tried."""
        found = [
            self._candidates[i]
            for i in range(int(self._first[slot]), int(self._first[slot + 1]))
            if eligible[i] and self._candidates[i].name not in self._chosen
        ]
        found.sort(key=lambda p: (not p.claim.reclaimable, p.priority, p.name))
        return found

    def _smallest_set(
        self, requirements: ReplicaRequirements, slot: int, eligible: Bools, most: int, steps: SearchSteps
    ) -> tuple[Victim, ...]:
        """The cheapest set of victims on the node. If it breaks a gang, the cheapest one that breaks none is compared
        too: it may be larger and cost less."""
        victims = self._victims_on(slot, eligible)
        found = smallest_set(self._search_candidates(requirements, slot, victims, eligible), most, steps)
        chosen = tuple(victims[i] for i in found)
        if not self._gangs.rest(chosen):
            return chosen
        spared = self._search_candidates(requirements, slot, victims, None)
        other = tuple(victims[i] for i in smallest_set(spared, most, steps))
        return min((chosen, other), key=self._cost) if other else chosen

    def _search_candidates(
        self, requirements: ReplicaRequirements, slot: int, victims: Sequence[Victim], eligible: Bools | None
    ) -> SearchCandidates:
        """`eligible`: claims that may leave with their gang; None if no gang may be broken."""
        needs, gives = self._missing_and_freed(requirements, slot, victims)

        def chosen(indexes: Sequence[int]) -> tuple[Victim, ...]:
            return tuple(victims[i] for i in indexes)

        return SearchCandidates(
            gives=gives,
            priorities=[victim.priority for victim in victims],
            needs=needs,
            fits=lambda indexes: self._fits(requirements, slot, chosen(indexes), eligible),
            allows=lambda indexes: self._may_leave(requirements, chosen(indexes), eligible),
            cost=lambda indexes: self._cost(chosen(indexes)),
        )

    def _missing_and_freed(
        self, requirements: ReplicaRequirements, slot: int, victims: Sequence[Victim]
    ) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """What is missing on the node, and what each victim frees of it: resources, firm resources, dynamic ports,
        obstacles."""
        scratch = self._scratch
        needs: list[int] = []
        columns: list[list[int]] = []

        def add(missing: int, freed: list[int]) -> None:
            if missing > 0:
                needs.append(missing)
                columns.append(freed)

        amounts = [dict(victim.claim.amounts) for victim in victims]
        names = scratch.snapshot.resources
        for resource, amount in requirements.amounts.items():
            row = names.get(resource)
            freed = [given.get(resource, 0) for given in amounts]
            if row is None:
                add(amount, freed)
                continue
            add(amount - int(scratch.free_for_reclaimable[row, slot]) - int(self._leaving[row, slot]), freed)
            if not requirements.reclaimable and not requirements.uses_recovery_slots:
                firm = [0 if victim.claim.reclaimable else give for victim, give in zip(victims, freed, strict=True)]
                add(amount - int(scratch.unreserved[row, slot]) - int(self._leaving_firm[row, slot]), firm)
        if requirements.open_ports:
            node = scratch.snapshot.static.nodes[slot]
            needed = requirements.open_ports + ports_in_range(node, requirements.fixed_ports)
            add(needed - int(scratch.ports_free[slot]), [ports_in_range(node, v.claim.ports) for v in victims])
        for obstacle in self._obstacles:
            add(int(obstacle.needs[slot]), [int(obstacle.gives[self._index[v.name]]) for v in victims])
        return tuple(needs), list(zip(*columns, strict=True)) if columns else [()] * len(victims)

    def _may_leave(self, requirements: ReplicaRequirements, victims: Sequence[Victim], eligible: Bools | None) -> bool:
        """Whether these victims may leave, with the rest of the gangs that they break."""
        rest = self._gangs.rest(victims)
        if not rest:
            return self.victim_selection.allows(requirements, victims)
        if eligible is None or len(victims) + len(rest) > self._evictions_left:
            return False
        return all(eligible[self._index[member.name]] for member in rest) and self.victim_selection.allows(
            requirements, (*victims, *rest)
        )

    def _cost(self, victims: Sequence[Victim]) -> VictimCost:
        """The cost of the victims and of the rest of the gangs that they break."""
        victims = (*victims, *self._gangs.rest(victims))
        priorities = [victim.priority for victim in victims]
        names = tuple(sorted(victim.name for victim in victims))
        return VictimCost(
            len(priorities), max(priorities), sum(priorities), self.victim_selection.disruption_cost(victims), names
        )

    def _fits(
        self, requirements: ReplicaRequirements, slot: int, victims: Sequence[Victim], eligible: Bools | None
    ) -> bool:
        """Whether, apart from amounts, one replica fits if exactly these victims leave, and all may."""
        return (
            self._fixed_ports_suffice(requirements, slot, victims)
            and self._devices_suffice(requirements, slot, victims)
            and self._neighbours_stay(requirements, slot, victims)
            and self._may_leave(requirements, victims, eligible)
        )

    def _fixed_ports_suffice(self, requirements: ReplicaRequirements, slot: int, victims: Sequence[Victim]) -> bool:
        if not requirements.fixed_ports:
            return True
        freed = {port for victim in victims for port in victim.claim.ports}
        still_owned = [port for port in requirements.fixed_ports if port not in freed]
        return self._scratch.fixed_ports_free(still_owned, slot)

    def _note_neighbours(self, requirements: ReplicaRequirements) -> None:
        rules = required_affinity(requirements.placement) if requirements.placement.affinity else ()
        scratch, workload, labels = self._scratch, requirements.workload, requirements.labels
        self._neighbours = [
            (
                rule,
                staying_neighbours(scratch, requirements, rule),
                matching_replicas(scratch, requirements, rule) if may_be_first(rule, workload, labels) else None,
            )
            for rule in rules
        ]

    def _neighbours_stay(self, requirements: ReplicaRequirements, slot: int, victims: Sequence[Victim]) -> bool:
        """Whether every required affinity rule is met on the node if these victims leave."""
        for rule, there, existing in self._neighbours:
            near = sum(count for other, count in there.items() if self._is_near(rule, other, slot))
            leaving = sum(
                victim.claim.namespace == requirements.namespace
                and is_neighbour(rule, requirements.workload, victim.claim.workload, victim.claim.labels)
                for victim in victims
            )
            # Victims are on the node, so they are no matching replicas elsewhere.
            if near <= leaving and (
                existing is None or not all(self._is_near(rule, other, slot) for other in existing)
            ):
                return False
        return True

    def _is_near(self, rule: AffinityRule, other: int, slot: int) -> bool:
        """Whether the slots are in one domain. The slot itself has one: other slots are not allowed."""
        if rule.topology == "node":
            return other == slot
        ids = self._scratch.snapshot.domain_ids(rule.topology)
        return bool(ids[other] == ids[slot])

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


def _rating(ranked: tuple[VictimCost, int, str, int]) -> tuple[int, int, int, int, int, str]:
    cost, tie, name, _ = ranked
    return (cost.victims, cost.highest, cost.total, cost.hurt, tie, name)
