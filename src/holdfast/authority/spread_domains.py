"""Nodes, zones and label values that count as domains of a spread rule, cached until a node changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from holdfast.model.kinds import kind_of
from holdfast.model.node import Node
from holdfast.store.objects import Objects

# Sets of spread domains that the authority caches, one per kind of placement rules. At the bound all are dropped.
SPREAD_DOMAINS_CACHED_MAX = 256

_NODE = kind_of(Node)


class Domains:
    """Eligible nodes, and the zones with at least one of them."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        """Zone by node name."""
        self.zones: dict[str, int] = {}
        """Number of eligible nodes by zone."""
        self.changed_at = -1
        self._labels: dict[str, Mapping[str, str]] = {}
        """Labels of the eligible nodes."""
        self._values: dict[str, frozenset[str]] = {}
        """By label key, as far as asked: the values that eligible nodes have."""
        self._revisions: dict[str, int] = {}

    def update(self, nodes: list[Node], eligible: Callable[[Node], bool]) -> None:
        """Evaluates nodes that were added or changed, and drops removed ones."""
        revisions = self._revisions
        for node in nodes:
            name = node.metadata.name
            if revisions.get(name) != node.revision:
                revisions[name] = node.revision
                self._set(name, node.spec.zone if eligible(node) else "")
                if name in self.nodes:
                    self._labels[name] = node.metadata.labels
        if len(revisions) != len(nodes):
            known = {node.metadata.name for node in nodes}
            for name in [name for name in revisions if name not in known]:
                del revisions[name]
                self._set(name, "")

    def values(self, key: str) -> frozenset[str]:
        """The values of this label that eligible nodes have."""
        if key not in self._values:
            self._values[key] = frozenset(labels[key] for labels in self._labels.values() if key in labels)
        return self._values[key]

    def _set(self, name: str, zone: str) -> None:
        self._values.clear()
        self._labels.pop(name, None)
        old = self.nodes.pop(name, "")
        if old:
            self.zones[old] -= 1
            if not self.zones[old]:
                del self.zones[old]
        if zone:
            self.nodes[name] = zone
            self.zones[zone] = self.zones.get(zone, 0) + 1


class DomainCache:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._cached: dict[tuple[object, ...], Domains] = {}

    def find(self, key: tuple[object, ...], eligible: Callable[[Node], bool]) -> Domains:
        """The domains of rules with this key, at the published state of the nodes."""
        if key not in self._cached and len(self._cached) >= SPREAD_DOMAINS_CACHED_MAX:
            self._cached.clear()
        domains = self._cached.setdefault(key, Domains())
        changed_at = self._objects.changed_at(_NODE)
        if domains.changed_at != changed_at:
            domains.update(cast("list[Node]", self._objects.list(_NODE)[0]), eligible)
            domains.changed_at = changed_at
        return domains
