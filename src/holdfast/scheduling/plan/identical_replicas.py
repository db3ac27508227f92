"""Places identical replicas one after another, rescoring only the node and the zone that a placement changed.

One heap per zone orders the candidates by score without the zone's points. A placement changes the points of its zone
and the entry of one node. The result equals scoring every node for every replica (test_plan_reference.py checks it).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.model.binding import DeviceClaim
from holdfast.model.decision import ScoreComponent
from holdfast.model.placement_rules import selects_own_replicas
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember
from holdfast.scheduling import filters as gates
from holdfast.scheduling.plan.tie_break import TIE_BITS, TIE_MAX, tie_numbers
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scores import NodeScorer, NodeScores
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Codes, Counts, Snapshot

# Replicas scored ahead on one node in a single vectorized step, while identical replicas are placed.
PLANNER_LOOKAHEAD_REPLICAS = 8


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """The chosen node of one member, and the runner-up. A proposal with `victims` waits for their release."""

    member: RequestMember
    node: str
    devices: tuple[DeviceClaim, ...]
    score: int
    scores: tuple[ScoreComponent, ...]
    runner_up: str = ""
    runner_up_score: int = 0
    victims: tuple[str, ...] = ()


class _Entry(NamedTuple):
    """Heap entry; the best candidate sorts first. `at` is its index in the table of scores."""

    minus_key: int
    name: str
    slot: int
    at: int
    level: int


class _Placement(NamedTuple):
    slot: int
    devices: tuple[DeviceClaim, ...]


class IdenticalReplicasPlan(NamedTuple):
    """`final_codes` has each node's refusal after the last placement; None if every member was placed."""

    proposals: list[Proposal]
    placements: list[_Placement]
    feasible: int
    initial_codes: Codes
    final_codes: Codes | None
    eligible: gates.EligibleNodes
    skew: gates.Skew


class _CandidateHeaps:
    """The candidate nodes of one request while its members are placed."""

    def __init__(
        self,
        scratch: Scratch,
        requirements: ReplicaRequirements,
        rules: PolicyRules,
        skew: gates.Skew,
        *,
        seed: int,
        codes: Codes,
    ) -> None:
        self._scratch, self._requirements, self._skew = scratch, requirements, skew
        self._snapshot = scratch.snapshot
        self._scorer = NodeScorer(scratch, requirements, rules, skew)
        self._ties = tie_numbers(self._snapshot, seed)
        self._tables: list[NodeScores] = [self._scorer.score()]
        if len(requirements.members) > 1 and not requirements.rescores_each_placement:
            self._tables.append(self._scorer.score(level=1))
        self._scored_ahead: dict[int, tuple[NodeScores, int]] = {}
        self._placed_count: dict[int, int] = {}
        self._skew_blocked: list[tuple[int, _Entry]] = []
        self._heaps = self._initial_heaps(codes, len(codes) if skew.domains else len(requirements.members) + 1)

    def next(self, member: RequestMember, *, last: bool) -> tuple[Proposal, _Placement] | None:
        """Places one member on the best node; None if no node is feasible."""
        zone = self._best_zone()
        if zone is None:
            return None
        entry = heappop(self._heaps[zone])
        scored, index = self._scored(entry)
        score = self._total(entry, zone)
        parts = self._scorer.score_parts(scored, index, zone)
        other = self._best_zone()
        runner_up = self._heaps[other][0] if other is not None else None
        runner_up_score = self._total(runner_up, other) if runner_up is not None and other is not None else 0
        devices = self._scratch.place(self._requirements, entry.slot)
        if self._skew.add(entry.slot):
            self._unblock()
        if not last:
            self._push_next(entry, zone)
        proposal = Proposal(
            member, entry.name, devices, score, parts, runner_up.name if runner_up is not None else "", runner_up_score
        )
        return proposal, _Placement(entry.slot, devices)

    def _best_zone(self) -> int | None:
        best: tuple[int, str] | None = None
        chosen: int | None = None
        for zone, heap in self._heaps.items():
            if not heap or not self._skew.zone_open(zone):
                continue
            while heap and not self._skew.node_open(heap[0].slot):
                self._skew_blocked.append((zone, heappop(heap)))
            if not heap:
                continue
            key_and_name = (heap[0].minus_key - (self._scorer.zone_points(zone) << TIE_BITS), heap[0].name)
            if best is None or key_and_name < best:
                best, chosen = key_and_name, zone
        return chosen

    def _total(self, entry: _Entry, zone: int) -> int:
        return (-entry.minus_key >> TIE_BITS) + self._scorer.zone_points(zone)

    def _initial_heaps(self, codes: Codes, limit: int) -> dict[int, list[_Entry]]:
        """Keeps only the best nodes of each zone: a plan uses at most one node per member, and one runner-up.

        A hard spread by node closes nodes by their number of replicas. So the best nodes are kept for each number:
        nodes with equal numbers are open or closed together. With a spread by label all nodes are kept.
        """
        ok = np.flatnonzero(codes == 0)
        keys = ((self._tables[0].total << TIE_BITS) + (TIE_MAX - self._ties))[ok]
        zones = self._snapshot.static.zone.ids[ok]
        counts = self._skew.counts_for_node_limit(ok)
        name = self._snapshot.name
        heaps: dict[int, list[_Entry]] = {}
        for zone in self._skew.zones:
            in_zone = zones == zone
            heap: list[_Entry] = []
            for count in np.unique(counts[in_zone]).tolist():
                here = np.flatnonzero(in_zone & (counts == count))
                there = keys[here]
                if len(here) > limit:
                    best = there >= np.partition(there, len(here) - limit)[len(here) - limit]
                    here, there = here[best], there[best]
                heap += [
                    _Entry(-key, name(slot), slot, slot, 0)
                    for key, slot in zip(there.tolist(), ok[here].tolist(), strict=True)
                ]
            heapify(heap)
            heaps[zone] = heap
        return heaps

    def _push_next(self, entry: _Entry, zone: int) -> None:
        """Pushes the node again, scored with the replica it just received."""
        slot = entry.slot
        left = self._scratch.replicas_that_fit(self._requirements, slot)
        if left < 1:
            return
        level = self._placed_count[slot] = self._placed_count.get(slot, 0) + 1
        if level < len(self._tables):
            index, scored = slot, self._tables[level]
        else:
            known = self._scored_ahead.get(slot)
            if known is not None and level - known[1] < len(known[0].total):
                scored, from_level = known
            else:
                many = 1 if self._requirements.rescores_each_placement else min(PLANNER_LOOKAHEAD_REPLICAS, left)
                scored = self._scorer.score(np.full(many, slot, dtype=np.intp), np.arange(many, dtype=np.int64))
                from_level = level
                self._scored_ahead[slot] = (scored, level)
            index = level - from_level
        key = (int(scored.total[index]) << TIE_BITS) + TIE_MAX - int(self._ties[slot])
        heappush(self._heaps[zone], _Entry(-key, entry.name, slot, index, level))

    def _scored(self, entry: _Entry) -> tuple[NodeScores, int]:
        if entry.level < len(self._tables):
            return self._tables[entry.level], entry.at
        return self._scored_ahead[entry.slot][0], entry.at

    def _unblock(self) -> None:
        for zone, entry in self._skew_blocked:
            heappush(self._heaps[zone], entry)
        self._skew_blocked.clear()


def _place_one(
    scratch: Scratch,
    requirements: ReplicaRequirements,
    rules: PolicyRules,
    skew: gates.Skew,
    *,
    seed: int,
    codes: Codes,
    feasible: int,
) -> tuple[Proposal, _Placement]:
    """The same choice for a single replica without spread limits, by two scans instead of heaps."""
    snapshot, scorer = scratch.snapshot, NodeScorer(scratch, requirements, rules, skew)
    scored = scorer.score()
    zones = snapshot.static.zone
    by_zone = {zone: scorer.zone_points(zone) for zone in skew.zones}
    if len(set(by_zone.values())) == 1:
        totals = scored.total + next(iter(by_zone.values()))
    else:
        points: Counts = np.zeros(len(zones.values), dtype=np.int64)
        points[list(by_zone)] = list(by_zone.values())
        totals = scored.total + points[zones.ids]
    keys = totals << TIE_BITS
    keys += TIE_MAX
    keys -= tie_numbers(snapshot, seed)
    if feasible < len(keys):
        keys[codes != 0] = -1
    slot = _best_slot(snapshot, keys)
    keys[slot] = -1
    other = _best_slot(snapshot, keys)
    has_runner_up = keys[other] >= 0
    parts = scorer.score_parts(scored, slot, int(zones.ids[slot]))
    devices = scratch.place(requirements, slot)
    proposal = Proposal(
        requirements.members[0],
        snapshot.name(slot),
        devices,
        int(totals[slot]),
        parts,
        snapshot.name(other) if has_runner_up else "",
        int(totals[other]) if has_runner_up else 0,
    )
    return proposal, _Placement(slot, devices)


def _best_slot(snapshot: Snapshot, keys: Counts) -> int:
    """The slot with the highest key; the first by name among equals."""
    first = int(keys.argmax())
    equal = np.flatnonzero(keys == keys[first])
    return first if len(equal) == 1 else min(equal.tolist(), key=snapshot.name)


def place_identical(
    scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, seed: int
) -> IdenticalReplicasPlan:
    """Places as many members as fit, in their order, and subtracts them from `scratch`."""
    if len(requirements.members) == 1 or not selects_own_replicas(requirements.placement):
        return _place_batch(scratch, requirements, rules, seed)
    done: IdenticalReplicasPlan | None = None
    for member in requirements.members:
        one = _place_batch(scratch, msgspec.structs.replace(requirements, members=(member,)), rules, seed)
        if done is not None:
            proposals, placements = done.proposals + one.proposals, done.placements + one.placements
            one = one._replace(
                proposals=proposals, placements=placements, feasible=done.feasible, initial_codes=done.initial_codes
            )
        done = one
        if done.final_codes is not None:
            break
    assert done is not None
    return done


def _place_batch(
    scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, seed: int
) -> IdenticalReplicasPlan:
    """Places members whose placement does not change the affinity of the next one."""
    eligible = gates.eligible_nodes(scratch, requirements, rules)
    skew = gates.skew_of(scratch, requirements, rules, eligible)
    codes = gates.refusal_codes(scratch, requirements, rules, eligible)
    feasible = len(codes) - int(np.count_nonzero(codes))
    proposals: list[Proposal] = []
    places: list[_Placement] = []
    if feasible and len(requirements.members) == 1 and not skew.limited:
        proposal, placement = _place_one(scratch, requirements, rules, skew, seed=seed, codes=codes, feasible=feasible)
        proposals.append(proposal)
        places.append(placement)
    elif feasible:
        candidates = _CandidateHeaps(scratch, requirements, rules, skew, seed=seed, codes=codes)
        for number, member in enumerate(requirements.members, 1):
            found = candidates.next(member, last=number == len(requirements.members))
            if found is None:
                break
            proposals.append(found[0])
            places.append(found[1])
    last = None
    if len(proposals) < len(requirements.members):
        last = gates.refusal_codes(scratch, requirements, rules, eligible, skew)
    return IdenticalReplicasPlan(proposals, places, feasible, codes, last, eligible, skew)
