"""Index of claims by workload and labels, for affinity and spread. A part of the ledger; changed only by it. Pure.

It has every claim whose quota is held, also those of commits in flight. Callers leave out claims that are stopping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.authority.claims import Claim
from holdfast.model.placement_eligibility import Labels, NeighbourSelector, selector_of

_ClaimsByNode = dict[str, dict[str, Claim]]
_Guard = tuple[str, str, NeighbourSelector]
"""Workload, topology and selector of a required anti-affinity rule."""


class NeighbourIndex:
    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, Labels], _ClaimsByNode]] = {}
        self._guards: dict[str, dict[_Guard, dict[str, int]]] = {}
        self._staying: dict[tuple[str, str], dict[str, int]] = {}
        """By tenant and workload: claims per node that are not stopping."""

    def put(self, claim: Claim) -> None:
        if not claim.quota_held or not claim.workload:
            return
        groups = self._groups.setdefault(claim.namespace, {})
        by_node = groups.setdefault((claim.workload, claim.labels), {})
        by_node.setdefault(claim.node, {})[claim.key] = claim
        if not claim.stopping:
            counts = self._staying.setdefault((claim.namespace, claim.workload), {})
            counts[claim.node] = counts.get(claim.node, 0) + 1
        for rule in claim.anti_affinity:
            guard = (claim.workload, rule.topology, selector_of(rule))
            nodes = self._guards.setdefault(claim.namespace, {}).setdefault(guard, {})
            nodes[claim.node] = nodes.get(claim.node, 0) + 1

    def drop(self, claim: Claim) -> None:
        if not claim.quota_held or not claim.workload:
            return
        groups = self._groups[claim.namespace]
        by_node = groups[claim.workload, claim.labels]
        del by_node[claim.node][claim.key]
        if not claim.stopping:
            self._drop_staying(claim)
        if not by_node[claim.node]:
            del by_node[claim.node]
        if not by_node:
            del groups[claim.workload, claim.labels]
        if not groups:
            del self._groups[claim.namespace]
        for rule in claim.anti_affinity:
            self._drop_guard(claim, (claim.workload, rule.topology, selector_of(rule)))

    def groups(self, namespace: str) -> Iterator[tuple[str, Labels, _ClaimsByNode]]:
        """(workload, labels, claims by node) of the tenant."""
        for (workload, labels), by_node in self._groups.get(namespace, {}).items():
            yield workload, labels, by_node

    def staying(self, namespace: str, workload: str) -> Mapping[str, int]:
        """Replicas of the workload per node, without those that are stopping."""
        return self._staying.get((namespace, workload), {})

    def has_guards(self, namespace: str) -> bool:
        return namespace in self._guards

    def guards(self, namespace: str) -> Iterator[tuple[str, str, NeighbourSelector, dict[str, int]]]:
        """(workload, topology, selector, claims per node) of the tenant's required anti-affinity rules."""
        for (workload, topology, selector), nodes in self._guards.get(namespace, {}).items():
            yield workload, topology, selector, nodes

    def comparable_state(self) -> tuple[object, ...]:
        """The content that two equal indexes share."""
        return self._groups, self._guards, self._staying

    def _drop_staying(self, claim: Claim) -> None:
        counts = self._staying[claim.namespace, claim.workload]
        counts[claim.node] -= 1
        if not counts[claim.node]:
            del counts[claim.node]
        if not counts:
            del self._staying[claim.namespace, claim.workload]

    def _drop_guard(self, claim: Claim, guard: _Guard) -> None:
        guards = self._guards[claim.namespace]
        nodes = guards[guard]
        nodes[claim.node] -= 1
        if not nodes[claim.node]:
            del nodes[claim.node]
        if not nodes:
            del guards[guard]
        if not guards:
            del self._guards[claim.namespace]
