"""Spread rules: a domain may have at most `maxSkew` more replicas of the workload than the emptiest domain.

Domains are zones or nodes with at least one eligible node. A zone that is down, avoided or forbidden does not limit the
others; a full zone does.
"""

from __future__ import annotations

from collections import Counter

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools


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
        return not self._zone_limit or self.zones[zone] + 1 - self._fewest_in_zone <= self._zone_limit

    def node_open(self, slot: int) -> bool:
        return not self._node_limit or self.nodes.get(slot, 0) + 1 - self._fewest_on_node <= self._node_limit

    def above_fewest(self, zone: int) -> int:
        """Number of replicas in the zone beyond the emptiest zone."""
        return self.zones[zone] - self._fewest_in_zone

    def add(self, slot: int) -> bool:
        """Counts one more replica. Returns whether nodes beyond the skew limit may be allowed again."""
        zone, count = int(self._zone_ids[slot]), self.nodes.get(slot, 0)
        self.nodes[slot] = count + 1
        self.zones[zone] += 1
        self._fewest_in_zone = min(self.zones.values())
        if not self._node_limit:
            return False
        self._nodes_by_count[count] -= 1
        self._nodes_by_count[count + 1] += 1
        before = self._fewest_on_node
        while not self._nodes_by_count[self._fewest_on_node]:
            self._fewest_on_node += 1
        return self._fewest_on_node > before

    def refuse(self) -> list[Refusal]:
        """The present refusals, for refusal counts; the planner itself checks domain by domain."""
        refused = self._eligible.copy()
        for slot in refused.nonzero()[0].tolist():
            refused[slot] = not (self.zone_open(int(self._zone_ids[slot])) and self.node_open(slot))
        return [(Reason.SPREAD_VIOLATED, refused)]

    @property
    def limited(self) -> bool:
        return bool(self._zone_limit or self._node_limit)
