"""Spread rules: a domain may have at most `maxSkew` more replicas of the workload than the emptiest domain.

Domains are zones, nodes or values of a node label with at least one eligible node. A zone that is down, avoided or
forbidden does not limit the others; a full zone does. Replicas that are stopping do not count. While there are fewer
domains than `minDomains`, the emptiest one counts as empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from holdfast.model.placement_eligibility import allows_skew, counted_fewest
from holdfast.model.placement_rules import BUILT_IN_TOPOLOGIES, SpreadRule
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Counts

_NEVER = 2**31
"""More replicas than can leave."""


class DomainSkew:
    """Replica counts of one rule by a node label, or with `minDomains`. Other rules are counted by `Skew`, faster."""

    def __init__(self, scratch: Scratch, rule: SpreadRule, eligible: Bools, nodes: Mapping[int, int]) -> None:
        self._ids = scratch.snapshot.domain_ids(rule.topology)
        self._limit, self._min_domains = rule.max_skew, rule.min_domains
        self._counts: dict[int, int] = dict.fromkeys(np.unique(self._ids[eligible & (self._ids >= 0)]).tolist(), 0)
        for slot, count in nodes.items():
            domain = int(self._ids[slot])
            if domain in self._counts:
                self._counts[domain] += count
        self._fewest = self._find_fewest()

    def is_open(self, slot: int) -> bool:
        domain = int(self._ids[slot])
        return domain in self._counts and allows_skew(self._limit, self._counts[domain], self._fewest)

    def add(self, slot: int) -> bool:
        """Counts one more replica. Returns whether nodes beyond the limit may be allowed again."""
        domain = int(self._ids[slot])
        if domain in self._counts:
            self._counts[domain] += 1
        before, self._fewest = self._fewest, self._find_fewest()
        return self._fewest > before

    def excess(self) -> Counts:
        """As `Skew.excess`. A node without a domain is never allowed."""
        by_domain: Counts = np.full(int(self._ids.max(initial=0)) + 1, _NEVER, dtype=np.int64)
        by_domain[list(self._counts)] = list(self._counts.values())
        counts = np.where(self._ids >= 0, by_domain[self._ids], _NEVER)
        return counts + 1 - self._fewest - self._limit

    def _find_fewest(self) -> int:
        return counted_fewest(min(self._counts.values(), default=0), len(self._counts), self._min_domains)


class Skew:
    """Replica counts per domain, updated with each placement. With `hard`, spread rules are enforced."""

    def __init__(
        self,
        scratch: Scratch,
        requirements: ReplicaRequirements,
        eligible: Bools,
        zones: tuple[int, ...],
        *,
        hard: bool,
    ) -> None:
        self._zone_ids = scratch.snapshot.static.zone.ids
        self._eligible = eligible
        self.nodes = scratch.counts(requirements.namespace, requirements.workload)
        self.zones: dict[int, int] = dict.fromkeys(zones, 0)
        for slot, count in self.nodes.items():
            zone = int(self._zone_ids[slot])
            if zone in self.zones:
                self.zones[zone] += count
        rules = [rule for rule in requirements.placement.spread if hard and not rule.preferred]
        self.domains = [
            DomainSkew(scratch, rule, eligible, self.nodes)
            for rule in rules
            if rule.min_domains or rule.topology not in BUILT_IN_TOPOLOGIES
        ]
        rules = [rule for rule in rules if not rule.min_domains]
        self._zone_limit = min((r.max_skew for r in rules if r.topology == "zone"), default=0)
        self._node_limit = min((r.max_skew for r in rules if r.topology == "node"), default=0)
        self._fewest_in_zone = min(self.zones.values(), default=0)
        self._fewest_on_node = 0
        self._nodes_by_count: Counter[int] = Counter()
        if self._node_limit:
            counted = [count for slot, count in self.nodes.items() if eligible[slot]]
            self._nodes_by_count = Counter(counted)
            self._nodes_by_count[0] = int(eligible.sum()) - len(counted)
            self._fewest_on_node = min((c for c, nodes in self._nodes_by_count.items() if nodes > 0), default=0)

    def zone_open(self, zone: int) -> bool:
        return not self._zone_limit or allows_skew(self._zone_limit, self.zones[zone], self._fewest_in_zone)

    def node_open(self, slot: int) -> bool:
        if self._node_limit and not allows_skew(self._node_limit, self.nodes.get(slot, 0), self._fewest_on_node):
            return False
        return not self.domains or all(domain.is_open(slot) for domain in self.domains)

    def counts_for_node_limit(self, slots: NDArray[np.intp]) -> Counts:
        """Replicas per slot, which decide whether a node is open; all zero without a hard spread by node."""
        counts: Counts = np.zeros(len(self._zone_ids), dtype=np.int64)
        if self._node_limit and self.nodes:
            counts[list(self.nodes)] = list(self.nodes.values())
        return counts[slots]

    def above_fewest(self, zone: int) -> int:
        """Number of replicas in the zone beyond the emptiest zone."""
        return self.zones[zone] - self._fewest_in_zone

    def add(self, slot: int) -> bool:
        """Counts one more replica. Returns whether nodes beyond the skew limit may be allowed again."""
        zone, count = int(self._zone_ids[slot]), self.nodes.get(slot, 0)
        self.nodes[slot] = count + 1
        self.zones[zone] += 1
        self._fewest_in_zone = min(self.zones.values())
        reopened = False
        for domain in self.domains:
            reopened |= domain.add(slot)
        if not self._node_limit:
            return reopened
        self._nodes_by_count[count] -= 1
        self._nodes_by_count[count + 1] += 1
        before = self._fewest_on_node
        while not self._nodes_by_count[self._fewest_on_node]:
            self._fewest_on_node += 1
        return reopened or self._fewest_on_node > before

    def refuse(self) -> list[Refusal]:
        """The present refusals, for refusal counts; the planner itself checks domain by domain."""
        refused = self._eligible.copy()
        for slot in refused.nonzero()[0].tolist():
            refused[slot] = not (self.zone_open(int(self._zone_ids[slot])) and self.node_open(slot))
        return [(Reason.SPREAD_VIOLATED, refused)]

    def excess(self) -> Counts:
        """[slot]: by how many replicas its domains exceed the skew with one more; 0 or less if the slot is open."""
        found: Counts = np.zeros(len(self._zone_ids), dtype=np.int64)
        if self._zone_limit and self.zones:
            by_zone: Counts = np.zeros(int(self._zone_ids.max()) + 1, dtype=np.int64)
            by_zone[list(self.zones)] = list(self.zones.values())
            found = np.maximum(found, by_zone[self._zone_ids] + 1 - self._fewest_in_zone - self._zone_limit)
        if self._node_limit:
            counts: Counts = np.zeros(len(self._zone_ids), dtype=np.int64)
            counts[list(self.nodes)] = list(self.nodes.values())
            found = np.maximum(found, counts + 1 - self._fewest_on_node - self._node_limit)
        for domain in self.domains:
            found = np.maximum(found, domain.excess())
        return found

    @property
    def limited(self) -> bool:
        return bool(self._zone_limit or self._node_limit or self.domains)
