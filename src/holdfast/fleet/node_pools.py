"""node-pool: decides which nodes of a pool should exist. Owns NodePool.status.

- Nodes are added for pending replicas and recovery slots that would fit on an empty node and lack resources or nodes.
- No node is added while every zone of the pool has an empty node that fits: another one would stay empty too.
- A node is removed only if it has been empty for `idleSeconds` and nothing is pending. It is cordoned first and checked
  again. The last node stays while something is pending that would bring it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.meta import Key
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.node_pool import NodePool, PoolNode
from holdfast.model.placement_eligibility import allows_pool, allows_zone
from holdfast.model.quantity import Amounts, add, amounts, scaled
from holdfast.model.reasons import Reason
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.recovery_slot import RecoverySlot, is_admitted
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import requests
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.volume import Volume
from holdfast.model.writes import NO_CHANGES, Outcome, SetStatus, Update, Write

# Time for a new pool node to start and register. After that, the pool drops it.
NODE_POOL_START_TIMEOUT_S = 120.0
# Grace period for pending replicas to be scheduled onto a new pool node before the pool adds another.
POOL_NEW_NODE_GRACE_S = 15.0

FIXED_BY_A_NODE = frozenset(
    {Reason.INSUFFICIENT_CPU, Reason.INSUFFICIENT_MEMORY, Reason.INSUFFICIENT_RESOURCE, Reason.NO_NODES}
)
FIXED_BY_FIRST_NODE = FIXED_BY_A_NODE | {Reason.POOL_NOT_ALLOWED}
"""Reasons that the first node of an empty pool fixes: all other nodes are in pools that the replica may not use."""


class PoolShortfall(msgspec.Struct, frozen=True, gc=False):
    """Pending replicas and slots, and the number of nodes they need. `largest_request` is the maximum per resource."""

    nodes: int = 0
    replicas: int = 0
    recovery_slots: int = 0
    largest_request: Amounts = {}
    needs_first_node: bool = False
    """Whether something is pending that would add a node if the pool had none."""


def decider(region: str) -> Callable[[Key, View, float], Outcome]:
    def decide(key: Key, view: View, now: float) -> Outcome:
        return _decide(region, key, view, now)

    return decide


def _decide(region: str, key: Key, view: View, now: float) -> Outcome:
    pool = view.get(NodePool, key.name)
    if pool is None or pool.metadata.terminating:
        return NO_CHANGES
    registered = {n.metadata.name: n for n in view.list(Node) if n.spec.pool == pool.metadata.name}
    shortfall = pool_shortfall(pool, region, view)
    nodes, status_text = next_nodes(
        pool, registered, occupied_nodes([n.name for n in pool.status.nodes], view), shortfall, now
    )
    writes: list[Write] = []
    for wanted in nodes:
        node = registered.get(wanted.name)
        if node is not None and node.spec.unschedulable != wanted.removing and _is_pool_cordon(pool, wanted):
            spec = msgspec.structs.replace(node.spec, unschedulable=wanted.removing)
            writes.append(Update(msgspec.structs.replace(node, spec=spec)))
    reason, message = status_text
    if (pool.status.nodes, pool.status.reason, pool.status.message) != (nodes, reason, message):
        blocks = {"nodes": nodes, "reason": reason, "message": message}
        generation = pool.metadata.generation
        writes.append(SetStatus("NodePool", pool.key, pool.uid, blocks=blocks, observed_generation=generation))
    return Outcome(writes=tuple(writes), requeue_after_s=limits.NODE_POOL_CHECK_EVERY_S)


def _is_pool_cordon(pool: NodePool, wanted: PoolNode) -> bool:
    """Whether the pool itself cordons or uncordons the node. An operator's cordon is left alone."""
    return wanted.removing or any(n.name == wanted.name and n.removing for n in pool.status.nodes)


def occupied_nodes(names: Iterable[str], view: View) -> frozenset[str]:
    """Nodes with a Binding, a Reservation, a Volume or a recovery slot."""
    ended = (ReservationPhase.RELEASED, ReservationPhase.CONSUMED)
    return frozenset(
        name
        for name in names
        if bool(view.by(Binding, "node", name))
        or bool(view.by(Volume, "node", name))
        or bool(view.by(RecoverySlot, "node", name))
        or any(r.status.phase not in ended for r in view.by(Reservation, "node", name))
    )


def pool_shortfall(pool: NodePool, region: str, view: View) -> PoolShortfall:
    """Pending replicas and slots that a new node of this pool would fix."""
    shape = amounts(pool.spec.capacity)
    registered = any(node.spec.pool == pool.metadata.name for node in view.list(Node))
    total: Amounts = {}
    widest: Amounts = {}
    replicas = places = 0
    needs_first = False
    for request in view.list(SchedulingRequest):
        if not request.status.pending or not _may_use(request, pool):
            continue
        if not any(r.reason in FIXED_BY_FIRST_NODE for r in request.status.reasons):
            continue
        requested = requests(request.spec.template)
        if not _fits(requested, shape):
            continue
        needs_first = True
        if not registered or any(r.reason in FIXED_BY_A_NODE for r in request.status.reasons):
            widest = _max_amounts(widest, requested)
            add(total, scaled(requested, request.status.pending))
            replicas += request.status.pending
    for shape_of, missing in missing_slots(region, view):
        if _fits(shape_of, shape):
            widest = _max_amounts(widest, shape_of)
            add(total, scaled(shape_of, missing))
            places += missing
    nodes = max((math.ceil(amount / shape[name]) for name, amount in total.items() if shape.get(name)), default=0)
    return PoolShortfall(nodes, replicas, places, widest, needs_first)


def _may_use(request: SchedulingRequest, pool: NodePool) -> bool:
    rules = request.spec.placement
    return allows_pool(rules, pool.metadata.name) and any(allows_zone(rules, zone) for zone in pool.spec.zones)


def missing_slots(region: str, view: View) -> list[tuple[Amounts, int]]:
    """Recovery slots of this region's budgets that are not admitted on a node, by shape."""
    kept: dict[tuple[str, int], int] = {}
    for hold in view.list(RecoverySlot):
        if is_admitted(hold):
            where = (hold.spec.budget, hold.spec.shape_index)
            kept[where] = kept.get(where, 0) + 1
    found: list[tuple[Amounts, int]] = []
    for budget in view.list(RecoveryBudget):
        for index, slot in enumerate(budget.spec.slot_shapes if budget.spec.region == region else ()):
            missing = slot.count - kept.get((budget.metadata.name, index), 0)
            if missing > 0:
                found.append((amounts(slot.resources), missing))
    return found


def _fits(requested: Amounts, shape: Amounts) -> bool:
    return all(amount <= shape.get(name, 0) for name, amount in requested.items())


def _max_amounts(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


StatusText = tuple[str, str]


def next_nodes(
    pool: NodePool, registered: dict[str, Node], occupied_names: frozenset[str], shortfall: PoolShortfall, now: float
) -> tuple[tuple[PoolNode, ...], StatusText]:
    """The next list of nodes that should exist, with reason and message."""
    spec = pool.spec
    kept = [n for n in pool.status.nodes if not _is_removable(n, registered, occupied_names, shortfall, now)]
    nodes = [_with_idle_time(n, registered, occupied_names, now) for n in kept]
    expected = sum(_may_be_starting(n, now) if n.name not in registered else _is_in_grace_period(n, now) for n in nodes)
    empty = _idle_nodes(pool, nodes, registered, shortfall, now)
    short = max(shortfall.nodes - expected - empty, spec.min_nodes - len(nodes), 0)
    for index, node in enumerate(nodes):
        if short and node.removing:
            nodes[index] = msgspec.structs.replace(node, removing=False, idle_since="")
            short -= 1
    allowed = max(0, spec.max_nodes - len(nodes))
    nodes += _new_nodes(pool, nodes, min(short, allowed), now)
    waiting = f"{shortfall.replicas} replica(s) and {shortfall.recovery_slots} recovery slot(s) are pending"
    if short > allowed:
        return tuple(nodes), (Reason.POOL_AT_MAX_NODES, f"{waiting}; the pool has reached maxNodes ({spec.max_nodes})")
    if shortfall.nodes and not expected and not short:
        return tuple(nodes), (Reason.POOL_STABLE, f"{waiting}, but {empty} node(s) of the pool are empty")
    if shortfall.nodes:
        return tuple(nodes), (Reason.POOL_GROWING, f"{waiting}; {expected + min(short, allowed)} node(s) starting")
    least = max(spec.min_nodes, int(shortfall.needs_first_node))
    return _remove_one_idle(pool, nodes, registered, least, now)


def _with_idle_time(
    node: PoolNode, registered: dict[str, Node], occupied_names: frozenset[str], now: float
) -> PoolNode:
    """The node with its current idle time, which counts only while it is registered and empty."""
    busy = node.name in occupied_names or node.name not in registered
    if busy:
        return msgspec.structs.replace(node, idle_since="", removing=node.removing and node.name not in occupied_names)
    return node if node.idle_since else msgspec.structs.replace(node, idle_since=micro_text(now))


def _is_removable(
    node: PoolNode, registered: dict[str, Node], occupied_names: frozenset[str], shortfall: PoolShortfall, now: float
) -> bool:
    """Whether to remove the node: cordoned, still empty and nothing pending; or not registered in time."""
    stored = registered.get(node.name)
    if stored is None:
        return not _may_be_starting(node, now)
    return node.removing and stored.spec.unschedulable and node.name not in occupied_names and not shortfall.nodes


def _may_be_starting(node: PoolNode, now: float) -> bool:
    """Whether the node may still be starting and registering."""
    return bool(node.since) and now - parse_time(node.since) < NODE_POOL_START_TIMEOUT_S


def _is_in_grace_period(node: PoolNode, now: float) -> bool:
    """Whether the node has been empty for so short a time that pending replicas may still be scheduled onto it."""
    return bool(node.idle_since) and not node.removing and now - parse_time(node.idle_since) < POOL_NEW_NODE_GRACE_S


def _idle_nodes(
    pool: NodePool, nodes: Sequence[PoolNode], registered: dict[str, Node], shortfall: PoolShortfall, now: float
) -> int:
    """Number of empty nodes that are large enough for every pending request. 0 while a zone of the pool has no such
    node, because the pending replicas may need that zone."""
    found = [
        registered[node.name]
        for node in nodes
        if node.idle_since
        and not node.removing
        and not _is_in_grace_period(node, now)
        and not unschedulable_reason(registered[node.name])
        and _fits(shortfall.largest_request, amounts(registered[node.name].spec.capacity))
    ]
    return len(found) if {node.spec.zone for node in found} >= set(pool.spec.zones) else 0


def _new_nodes(pool: NodePool, nodes: Sequence[PoolNode], count: int, now: float) -> list[PoolNode]:
    """New nodes with unused names, in the zones with the fewest nodes."""
    used_names = {n.name for n in nodes}
    made: list[PoolNode] = []
    number = 0
    while len(made) < count:
        number += 1
        name = f"{pool.metadata.name}-{number}"
        if name in used_names:
            continue
        every = [*nodes, *made]
        zone = min(pool.spec.zones, key=lambda z: (sum(n.zone == z for n in every), z))
        made.append(PoolNode(name=name, zone=zone, since=micro_text(now)))
    return made


def _remove_one_idle(
    pool: NodePool, nodes: list[PoolNode], registered: dict[str, Node], least: int, now: float
) -> tuple[tuple[PoolNode, ...], StatusText]:
    """Cordons at most one node that was idle for long enough, and keeps at least `least` nodes."""
    staying = [n for n in nodes if not n.removing]
    idle = [n for n in staying if n.idle_since and now - parse_time(n.idle_since) >= pool.spec.idle_seconds]
    if idle and len(staying) > least and len(staying) == len(nodes):
        idle_node = max(idle, key=lambda n: (n.idle_since, n.name))
        closed = msgspec.structs.replace(idle_node, removing=True)
        nodes = [closed if n.name == idle_node.name else n for n in nodes]
        status_text = (
            Reason.POOL_SHRINKING,
            f"{idle_node.name} has been empty since {idle_node.idle_since} and is removed",
        )
        return tuple(nodes), status_text
    if len(staying) < len(nodes):
        return tuple(nodes), (pool.status.reason, pool.status.message)
    return tuple(nodes), (
        Reason.POOL_STABLE,
        f"{len(nodes)} node(s), {sum(n.name in registered for n in nodes)} registered",
    )


def keys(view: View) -> Iterable[Key]:
    return [p.key for p in view.list(NodePool)]


def woken_by_pool(new: NodePool | None, old: NodePool | None, view: View) -> Iterable[Key]:
    return (new.key,) if new is not None and (old is None or new.spec != old.spec) else ()


def woken_by_request(new: SchedulingRequest | None, old: SchedulingRequest | None, view: View) -> Iterable[Key]:
    """Wakes all pools if a request becomes pending. The periodic check covers other changes."""
    if new is None or not new.status.pending or (old is not None and old.status.pending == new.status.pending):
        return ()
    return keys(view)
