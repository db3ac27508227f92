"""Planned maintenance: nothing new is bound where it goes on, and it leaves nothing behind.

- A Binding that is made while a region's copy of the Override says that its node is in maintenance is a violation. The
  times are those of the records: the authority's clock made the Binding, and decides when the maintenance begins.
- The Override must have been in the region for a while: a proposal may have been checked before it arrived.
- At rest no node is marked or drained by an Override that is not in force.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.binding import DesiredRunState
from holdfast.model.node import Node
from holdfast.model.override import Override
from holdfast.model.times import parse_time
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

KNOWN_FOR_S = 20.0
"""Maximum delay between a decision and its commit."""
MARK = "holdfast.dev/maintenance"
RESOLUTION_S = 1.0
"""Resolution of creation timestamps."""


class MaintenanceChecker:
    """Checker of one region."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._active_since_s: dict[str, float] = {}
        """Override uid → true time at which its copy became active here."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            override = change.new
            if not isinstance(override, Override) or override.spec.maintenance is None:
                continue
            if override.status.phase == "Active":
                self._active_since_s.setdefault(override.uid, commit.at_s)
        if not self._active_since_s:
            return
        for change in commit.changes:
            if change.kind.name == "Binding" and change.old is None:
                yield from self._bound(change, commit)

    def _bound(self, change: ObservedChange, commit: ObservedCommit) -> Iterator[Finding]:
        binding, meta = change.new, change.new.metadata
        reservation = commit.state.get(f"/reservations/{meta.namespace}/{meta.name}")
        earlier = reservation is not None and reservation.metadata.creation_timestamp != meta.creation_timestamp
        node: Node | None = commit.state.get(f"/nodes/{binding.spec.node}")
        if earlier or node is None or binding.spec.desired is not DesiredRunState.RUN:
            return
        made_s, decided_s = parse_time(meta.creation_timestamp), commit.at_s - commit.latency_s
        for override in commit.state.values():
            if not isinstance(override, Override) or override.spec.scope.region != self._region:
                continue
            if not _covers(override, node, made_s):
                continue
            if decided_s - self._active_since_s.get(override.uid, commit.at_s) > KNOWN_FOR_S:
                name = override.metadata.name
                what = f"{change.key} was bound to {node.metadata.name}, which {name} keeps free for maintenance"
                yield "maintenance", what, (change.key, f"/overrides/{name}")


def _covers(override: Override, node: Node, at_s: float) -> bool:
    planned, status, scope = override.spec.maintenance, override.status, override.spec.scope
    if planned is None or status.phase != "Active" or override.spec.revoked or not status.expires_at:
        return False
    if planned.nodes and node.metadata.name not in planned.nodes:
        return False
    if scope.zone and scope.zone != node.spec.zone:
        return False
    return parse_time(planned.starts_at) <= at_s < parse_time(status.expires_at) - RESOLUTION_S


def drains_at_rest(state: dict[str, Any]) -> Iterator[Finding]:
    """Nodes of a region that an Override drained which is not in force."""
    for key, item in state.items():
        if not isinstance(item, Node) or MARK not in item.metadata.annotations:
            continue
        name = item.metadata.annotations[MARK]
        override = state.get(f"/overrides/{name}")
        if override is None or override.status.phase != "Active":
            yield "maintenance", f"{key} is still drained by {name}, which has ended", (key, f"/overrides/{name}")
