"""node-pool: which nodes of a pool should exist, from what waits and what is held. Owns NodePool.status.

More nodes are asked for only for reasons that a node cures: too little of a resource, or no node at all, for work and
recovery places that would fit on an empty one; and never for what waits although such a node is there and stays empty,
in every zone of the pool: what keeps it off that one keeps it off the next. A node is given up only when it holds
nothing, no recovery place either, has done so for the pool's idle time, and nothing waits; it is closed to new work
first, and looked at again. The last one stays as long as something waits that would only bring it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.hold import Hold, is_kept
from holdfast.model.meta import Key
from holdfast.model.node import Node, why_not_schedulable
from holdfast.model.node_pool import NodePool, PoolNode
from holdfast.model.placement_eligibility import allows_pool, allows_zone
from holdfast.model.quantity import Amounts, add, amounts, scaled
from holdfast.model.reasons import Reason
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import requests
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import NOTHING, Outcome, SetStatus, Update, Write

CURED_BY_A_NODE = frozenset(
    {
        Reason.INSUFFICIENT_CPU,
        Reason.INSUFFICIENT_MEMORY,
        Reason.INSUFFICIENT_RESOURCE,
        Reason.NO_NODES,
    }
)
CURED_BY_THE_FIRST = CURED_BY_A_NODE | {Reason.POOL_NOT_ALLOWED}
"""What the first node of an empty pool cures besides: every other node is of a pool that the work may not use."""


class Lack(msgspec.Struct, frozen=True, gc=False):
    """What has no place: as so many nodes of the pool, and in words; `widest` is the most that any of it asks for."""

    nodes: int = 0
    replicas: int = 0
    places: int = 0
    widest: Amounts = {}
    needs_first: bool = False
    """Whether something waits that would bring a node if the pool had none, whatever keeps it off the one it has."""


def decider(region: str) -> Callable[[Key, View, float], Outcome]:
    def decide(key: Key, view: View, now: float) -> Outcome:
        return _decide(region, key, view, now)

    return decide


def _decide(region: str, key: Key, view: View, now: float) -> Outcome:
    pool = view.get(NodePool, key.name)
    if pool is None or pool.metadata.terminating:
        return NOTHING
    there = {n.metadata.name: n for n in view.list(Node) if n.spec.pool == pool.metadata.name}
    lack = lacking(pool, region, view)
    nodes, said = next_nodes(pool, there, occupied([n.name for n in pool.status.nodes], view), lack, now)
    writes: list[Write] = []
    for wanted in nodes:
        node = there.get(wanted.name)
        if node is not None and node.spec.unschedulable != wanted.leaving and _ours(pool, wanted):
            spec = msgspec.structs.replace(node.spec, unschedulable=wanted.leaving)
            writes.append(Update(msgspec.structs.replace(node, spec=spec)))
    reason, message = said
    if (pool.status.nodes, pool.status.reason, pool.status.message) != (nodes, reason, message):
        blocks = {"nodes": nodes, "reason": reason, "message": message}
        generation = pool.metadata.generation
        writes.append(SetStatus("NodePool", pool.key, pool.uid, blocks=blocks, observed_generation=generation))
    return Outcome(writes=tuple(writes), again_in_s=limits.NODE_POOL_LOOK_EVERY_S)


def _ours(pool: NodePool, wanted: PoolNode) -> bool:
    """Whether closing or opening the node is this pool's doing: an operator's own cordon stays."""
    return wanted.leaving or any(n.name == wanted.name and n.leaving for n in pool.status.nodes)


def occupied(names: Iterable[str], view: View) -> frozenset[str]:
    """Those of the nodes on which something is bound, reserved, or kept for a recovery."""
    ended = (ReservationPhase.RELEASED, ReservationPhase.CONSUMED)
    return frozenset(
        name
        for name in names
        if bool(view.by(Binding, "node", name))
        or bool(view.by(Hold, "node", name))
        or any(r.status.phase not in ended for r in view.by(Reservation, "node", name))
    )


def lacking(pool: NodePool, region: str, view: View) -> Lack:
    """What waits for a reason that a node of this pool cures, and would fit on an empty one."""
    shape = amounts(pool.spec.capacity)
    there = any(node.spec.pool == pool.metadata.name for node in view.list(Node))
    total: Amounts = {}
    widest: Amounts = {}
    replicas = places = 0
    needs_first = False
    for request in view.list(SchedulingRequest):
        if not request.status.pending or not _may_use(request, pool):
            continue
        if not any(r.reason in CURED_BY_THE_FIRST for r in request.status.reasons):
            continue
        asked = requests(request.spec.template)
        if not _fits(asked, shape):
            continue
        needs_first = True
        if not there or any(r.reason in CURED_BY_A_NODE for r in request.status.reasons):
            widest = _wider(widest, asked)
            add(total, scaled(asked, request.status.pending))
            replicas += request.status.pending
    for shape_of, missing in missing_places(region, view):
        if _fits(shape_of, shape):
            widest = _wider(widest, shape_of)
            add(total, scaled(shape_of, missing))
            places += missing
    nodes = max((math.ceil(amount / shape[name]) for name, amount in total.items() if shape.get(name)), default=0)
    return Lack(nodes, replicas, places, widest, needs_first)


def _may_use(request: SchedulingRequest, pool: NodePool) -> bool:
    rules = request.spec.placement
    return allows_pool(rules, pool.metadata.name) and any(allows_zone(rules, zone) for zone in pool.spec.zones)


def missing_places(region: str, view: View) -> list[tuple[Amounts, int]]:
    """Recovery places that a budget of this region asks for and no node keeps, by shape."""
    kept: dict[tuple[str, int], int] = {}
    for hold in view.list(Hold):
        if is_kept(hold):
            where = (hold.spec.budget, hold.spec.slot)
            kept[where] = kept.get(where, 0) + 1
    found: list[tuple[Amounts, int]] = []
    for budget in view.list(RecoveryBudget):
        for index, slot in enumerate(budget.spec.slots if budget.spec.region == region else ()):
            missing = slot.count - kept.get((budget.metadata.name, index), 0)
            if missing > 0:
                found.append((amounts(slot.resources), missing))
    return found


def _fits(asked: Amounts, shape: Amounts) -> bool:
    return all(amount <= shape.get(name, 0) for name, amount in asked.items())


def _wider(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


Said = tuple[str, str]


def next_nodes(
    pool: NodePool, there: dict[str, Node], held: frozenset[str], lack: Lack, now: float
) -> tuple[tuple[PoolNode, ...], Said]:
    """The nodes that should exist, one step on from those that should now, and what is said of it."""
    spec = pool.spec
    nodes = [_seen(n, there, held, now) for n in pool.status.nodes if not _given_up(n, there, held, lack, now)]
    coming = sum(_young(n, now) if n.name not in there else _just_there(n, now) for n in nodes)
    empty = _passed_over(pool, nodes, there, lack, now)
    short = max(lack.nodes - coming - empty, spec.min_nodes - len(nodes), 0)
    for index, node in enumerate(nodes):
        if short and node.leaving:
            nodes[index] = msgspec.structs.replace(node, leaving=False, idle_since="")
            short -= 1
    room = max(0, spec.max_nodes - len(nodes))
    nodes += _more(pool, nodes, min(short, room), now)
    waiting = f"{lack.replicas} replica(s) and {lack.places} recovery place(s) wait for room"
    if short > room:
        return tuple(nodes), (Reason.POOL_FULL, f"{waiting}; the pool has its {spec.max_nodes} nodes")
    if lack.nodes and not coming and not short:
        return tuple(nodes), (Reason.POOL_STEADY, f"{waiting}, and {empty} node(s) of the pool stay empty beside them")
    if lack.nodes:
        return tuple(nodes), (Reason.POOL_GROWING, f"{waiting}; {coming + min(short, room)} node(s) on their way")
    least = max(spec.min_nodes, int(lack.needs_first))
    return _with_one_leaving(pool, nodes, there, least, now)


def _seen(node: PoolNode, there: dict[str, Node], held: frozenset[str], now: float) -> PoolNode:
    """With what is true of it now: idle time counts only while it is there and holds nothing."""
    busy = node.name in held or node.name not in there
    if busy:
        return msgspec.structs.replace(node, idle_since="", leaving=node.leaving and node.name not in held)
    return node if node.idle_since else msgspec.structs.replace(node, idle_since=micro_text(now))


def _given_up(node: PoolNode, there: dict[str, Node], held: frozenset[str], lack: Lack, now: float) -> bool:
    """Closed for a while, still empty, and nobody waits: now it may go. One that never came is given up in the end."""
    stored = there.get(node.name)
    if stored is None:
        return not _young(node, now)
    return node.leaving and stored.spec.unschedulable and node.name not in held and not lack.nodes


def _young(node: PoolNode, now: float) -> bool:
    """Whether it may still be on its way: a machine takes its time to start and to register."""
    return bool(node.since) and now - parse_time(node.since) < limits.NODE_POOL_START_S


def _just_there(node: PoolNode, now: float) -> bool:
    """Whether it has been there, and empty, for so short a time that it may still be taken."""
    return bool(node.idle_since) and not node.leaving and now - parse_time(node.idle_since) < limits.NODE_POOL_TAKEN_S


def _passed_over(pool: NodePool, nodes: Sequence[PoolNode], there: dict[str, Node], lack: Lack, now: float) -> int:
    """How many nodes could take any of what waits by their size, and stay empty. None while a zone of the pool has no
    such node: what waits may need that one."""
    found = [
        there[node.name]
        for node in nodes
        if node.idle_since
        and not node.leaving
        and not _just_there(node, now)
        and not why_not_schedulable(there[node.name])
        and _fits(lack.widest, amounts(there[node.name].spec.capacity))
    ]
    return len(found) if {node.spec.zone for node in found} >= set(pool.spec.zones) else 0


def _more(pool: NodePool, nodes: Sequence[PoolNode], count: int, now: float) -> list[PoolNode]:
    """New names, in the zones with the fewest."""
    taken = {n.name for n in nodes}
    made: list[PoolNode] = []
    number = 0
    while len(made) < count:
        number += 1
        name = f"{pool.metadata.name}-{number}"
        if name in taken:
            continue
        every = [*nodes, *made]
        zone = min(pool.spec.zones, key=lambda z: (sum(n.zone == z for n in every), z))
        made.append(PoolNode(name=name, zone=zone, since=micro_text(now)))
    return made


def _with_one_leaving(
    pool: NodePool, nodes: list[PoolNode], there: dict[str, Node], least: int, now: float
) -> tuple[tuple[PoolNode, ...], Said]:
    """Closes at most one node that was idle for long enough, and leaves at least so many open."""
    staying = [n for n in nodes if not n.leaving]
    idle = [
        n for n in staying
        if n.idle_since and now - parse_time(n.idle_since) >= pool.spec.idle_seconds
    ]  # fmt: skip
    if idle and len(staying) > least and len(staying) == len(nodes):
        gone = max(idle, key=lambda n: (n.idle_since, n.name))
        closed = msgspec.structs.replace(gone, leaving=True)
        nodes = [closed if n.name == gone.name else n for n in nodes]
        said = (Reason.POOL_SHRINKING, f"{gone.name} has held nothing since {gone.idle_since} and is given up")
        return tuple(nodes), said
    if len(staying) < len(nodes):
        return tuple(nodes), (pool.status.reason, pool.status.message)
    return tuple(nodes), (Reason.POOL_STEADY, f"{len(nodes)} node(s), {sum(n.name in there for n in nodes)} registered")


def keys(view: View) -> Iterable[Key]:
    return [p.key for p in view.list(NodePool)]


def woken_by_pool(new: NodePool | None, old: NodePool | None, view: View) -> Iterable[Key]:
    return (new.key,) if new is not None and (old is None or new.spec != old.spec) else ()


def woken_by_request(new: SchedulingRequest | None, old: SchedulingRequest | None, view: View) -> Iterable[Key]:
    """Only what begins to wait: the rest is found by the next look."""
    if new is None or not new.status.pending or (old is not None and old.status.pending == new.status.pending):
        return ()
    return keys(view)
