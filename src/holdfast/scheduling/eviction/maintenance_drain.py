"""maintenance (in a region): drains the nodes of planned maintenance, and ends the drain with it.

It only sets and clears `spec.drain`: `release` evicts within disruption budgets, `drain` reports progress. The node's
annotation says which Override drained it, so that a drain by an operator is left alone, and so is an operator's
uncordon during the maintenance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.model.meta import Key
from holdfast.model.node import Node
from holdfast.model.override import EXPIRED, REVOKED, Override, maintenance_of_node
from holdfast.model.reasons import Reason
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Notice, Outcome, Update

ANNOTATION_MAINTENANCE = "holdfast.dev/maintenance"
"""The Override that drained the node."""

# Interval at which nodes are looked at again while maintenance is planned or goes on, besides the timers of its times.
RECHECK_S = 30.0


def decider(region: str) -> Callable[[Key, View, float], Outcome]:
    def decide(key: Key, view: View, now: float) -> Outcome:
        node: Node | None = view.get(Node, key.name)
        if node is None or node.metadata.terminating:
            return NO_CHANGES
        planned = [o for o in view.list(Override) if is_planned(o, region)]
        known = node.metadata.annotations.get(ANNOTATION_MAINTENANCE, "")
        found = maintenance_of_node(planned, region=region, zone=node.spec.zone, node=key.name, now=now)
        again_s = _next_s(planned, now)
        if found is None:
            return _released(node, known, again_s) if known else Outcome(requeue_after_s=again_s)
        name = found.metadata.name
        if known == name or (node.spec.drain and not known):
            return Outcome(requeue_after_s=again_s)
        notice = Notice(node, Reason.MAINTENANCE_ACTIVE, f"override {name}: {found.spec.reason}; the node is drained")
        return Outcome(writes=(Update(_marked(node, name)),), notices=(notice,), requeue_after_s=again_s)

    return decide


def _released(node: Node, override: str, again_s: float | None) -> Outcome:
    notice = Notice(node, Reason.MAINTENANCE_ENDED, f"override {override} has ended: the node takes work again")
    return Outcome(writes=(Update(_marked(node, "")),), notices=(notice,), requeue_after_s=again_s)


def _marked(node: Node, override: str) -> Node:
    """The node drained by the override; without one, with its mark and drain removed."""
    annotations = {k: v for k, v in node.metadata.annotations.items() if k != ANNOTATION_MAINTENANCE}
    if override:
        annotations[ANNOTATION_MAINTENANCE] = override
    meta = msgspec.structs.replace(node.metadata, annotations=annotations)
    return msgspec.structs.replace(node, metadata=meta, spec=msgspec.structs.replace(node.spec, drain=bool(override)))


def is_planned(override: Override, region: str) -> bool:
    """Whether the override stands for maintenance of the region that has not ended."""
    if override.spec.maintenance is None or override.spec.scope.region != region:
        return False
    return not override.spec.revoked and override.status.phase not in (EXPIRED, REVOKED)


def _next_s(planned: Iterable[Override], now: float) -> float | None:
    waits = [RECHECK_S]
    for override in planned:
        starts_at = override.spec.maintenance.starts_at if override.spec.maintenance is not None else ""
        waits += [parse_time(at) - now + 0.01 for at in (starts_at, override.status.expires_at) if at]
    due = [s for s in waits if s > 0]
    return min(due) if len(waits) > 1 else None


def keys(view: View) -> Iterable[Key]:
    """Nodes that maintenance may concern: all while some is planned, else those that are marked."""
    planned = any(o.spec.maintenance is not None for o in view.list(Override))
    return [n.key for n in view.list(Node) if planned or ANNOTATION_MAINTENANCE in n.metadata.annotations]


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    item = new or old
    if item is None or item.spec.maintenance is None:
        return ()
    return [n.key for n in view.list(Node)]


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    """Wakes a new node, and one whose drain or mark changed, while maintenance is planned."""
    if new is None or not any(o.spec.maintenance is not None for o in view.list(Override)):
        return ()
    if old is not None and (old.spec, old.metadata.annotations) == (new.spec, new.metadata.annotations):
        return ()
    return (new.key,)
