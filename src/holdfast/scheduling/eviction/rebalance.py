"""rebalance: requests that a running replica of an unevenly spread service moves to another zone or node. Pure.

- Owns Replica.status.rebalance. It releases nothing itself: `release` does, as the disruption budget allows.
- A move lowers the sum of squares of the workload's replicas per zone, or leaves it and lowers the sum per node. Moves
  alone therefore end. The planner itself must choose the better node, without preemption.
- One move at a time in a region, at most MOVES_PER_HOUR, and none during a recovery, without recent contact with the
  global cell, or while an override pauses it.
- All times are read from stored objects, so a restart changes nothing: every replica of the workload must have been
  bound, and the target node in contact, for `rebalance.afterSeconds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model import input_freshness, limits
from holdfast.model.active_policy import active_policy
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import Binding, Reservation
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.meta import Key, Object
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.override import Override, OverrideKind, is_in_scope
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.region import Region
from holdfast.model.replica import RebalanceBlock, Replica
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.volume import Volume
from holdfast.model.workload import WorkloadType
from holdfast.model.writes import NO_CHANGES, Notice, Outcome, SetStatus
from holdfast.scheduling.last_contact import is_effective_here, last_contact_s
from holdfast.scheduling.plan import plan
from holdfast.scheduling.replica_requirements import request_for, requirements_of
from holdfast.scheduling.snapshot.builder import SnapshotBuilder

# Interval at which a region looks for a move, and follows the present one.
REBALANCE_CHECK_EVERY_S = 30.0
# Moves per region and hour. Further ones wait: rebalancing is never urgent.
MOVES_PER_HOUR = 12
# How long a request waits for the disruption budget. Then it is withdrawn, and another workload may be moved.
REQUEST_TIMEOUT_S = 120.0
# How long a workload is left alone after a move that did not help: the replica came back to the zone or node it left.
RETRY_AFTER_S = 24 * 3600.0
# Workloads that are planned in one pass. A plan needs the region's whole state; the next pass tries further workloads.
PLANS_PER_PASS_MAX = 4

SINGLE_KEY = Key("", "spread")
SNAPSHOT_KINDS: tuple[type[Object], ...] = (
    Node,
    Binding,
    Reservation,
    RecoverySlot,
    Override,
    GrantCopy,
    Region,
    Volume,
)
READS: tuple[type[Object], ...] = (*SNAPSHOT_KINDS, Replica, Assignment, PolicyRevision)
Decide = Callable[[Key, View, float], Outcome]


class Move(msgspec.Struct, frozen=True):
    """One replica, the node that the planner chose for it, and why the move improves the spread."""

    replica: Replica
    to_node: str
    to_zone: str
    message: str


def decider(region: str) -> Decide:
    return lambda key, view, now: _decide(region, view, now)


def _decide(region: str, view: View, now: float) -> Outcome:
    """One key per region, because moves share a budget."""
    replicas = view.list(Replica)
    requested = [r for r in replicas if _is_requested(r)]
    if requested:
        return _follow(region, requested, view, now)
    if stop_reason(view, now) or any(_is_moving(r) for r in replicas) or _moved_last_hour(replicas, now):
        return NO_CHANGES
    move = next(iter(find_moves(region, view, now)), None)
    if move is None:
        return NO_CHANGES
    placed = move.replica.status.placement
    block = RebalanceBlock(
        attempt=placed.attempt,
        from_node=placed.node,
        from_zone=placed.zone,
        to_node=move.to_node,
        to_zone=move.to_zone,
        message=move.message,
        at=micro_text(now),
    )
    write = SetStatus("Replica", move.replica.key, move.replica.uid, blocks={"rebalance": block})
    notice = Notice(move.replica, Reason.REBALANCED, f"a move is requested: {move.message}")
    return Outcome(writes=(write,), notices=(notice,))


def _follow(region: str, requested: Sequence[Replica], view: View, now: float) -> Outcome:
    """Withdraws requests that waited too long or are no longer allowed. The others wait for `release`."""
    stopped = stop_reason(view, now)
    writes, notices = [], []
    for replica in requested:
        block = replica.status.rebalance
        assert block is not None
        waited = now - parse_time(block.at) > REQUEST_TIMEOUT_S
        why = stopped or pause_reason(replica, region, view, now)
        why = why or ("the disruption budget did not allow it in time" if waited else "")
        if why:
            writes.append(SetStatus("Replica", replica.key, replica.uid, blocks={"rebalance": None}))
            notices.append(Notice(replica, Reason.REBALANCED, f"the request to move it is withdrawn: {why}"))
    return Outcome(writes=tuple(writes), notices=tuple(notices))


def stop_reason(view: View, now: float) -> str:
    """Why the region moves nothing at the moment; empty if it may."""
    for assignment in view.list(Assignment):
        recovering = assignment.spec.purpose is Purpose.RECOVERY and assignment.spec.replicas
        if recovering or assignment.spec.suspended:
            return f"a recovery uses {assignment.metadata.namespace}/{assignment.spec.workload}"
    if any(r.spec.purpose is Purpose.RECOVERY for r in view.list(Replica)):
        return "recovery replicas are not returned yet"
    if now - last_contact_s(view.list(GrantCopy)) > input_freshness.OVERRIDE.seconds:
        return "the region has no recent contact with the global cell"
    return ""


def pause_reason(replica: Replica, region: str, view: View, now: float) -> str:
    """The override that forbids moving the replica; empty if there is none."""
    heard_at_s = last_contact_s(view.list(GrantCopy))
    tenant, workload = replica.metadata.namespace, replica.spec.workload
    for override in view.list(Override):
        if override.spec.kind is not OverrideKind.PAUSE_REBALANCE or not is_effective_here(override, now, heard_at_s):
            continue
        if is_in_scope(override, region=region, tenant=tenant, workload=workload):
            return f"Override {override.metadata.name} pauses rebalancing"
    return ""


def find_moves(region: str, view: View, now: float, *, plans_max: int = PLANS_PER_PASS_MAX) -> Iterable[Move]:
    """Moves that are due, at most one per workload. Each is planned for the present state alone."""
    nodes = [node for node in view.list(Node) if not unschedulable_reason(node)]
    found = [
        (assignment, candidate)
        for assignment in view.list(Assignment)
        if (candidate := _candidate(assignment, nodes, view, now)) is not None
        and not pause_reason(candidate, region, view, now)
    ]
    if not found:
        return
    # Passes begin with different workloads, so that some that cannot be improved do not hide the others.
    first = int(now // REBALANCE_CHECK_EVERY_S) * PLANS_PER_PASS_MAX % len(found)
    builder = SnapshotBuilder(region)
    for kind in SNAPSHOT_KINDS:
        for item in view.list(kind):
            builder.upsert(item)
    for assignment, replica in [*found[first:], *found[:first]][:plans_max]:
        move = _planned(assignment, replica, builder, view, now, region=region)
        if move is not None:
            yield move


def _candidate(assignment: Assignment, nodes: Sequence[Node], view: View, now: float) -> Replica | None:
    """The replica to move if the workload is at rest, spread unevenly for long enough, and may be disrupted."""
    spec, after_s = assignment.spec, _after_s(assignment)
    movable = spec.type is WorkloadType.SERVICE and spec.exclusive is None and spec.gang is None
    if not after_s or not movable or spec.replicas < 2 or not spec.disruption.max_unavailable:
        return None
    replicas: Sequence[Replica] = view.by(Replica, "assignment", str(assignment.key))
    if len(replicas) != spec.replicas or any(
        stage(r) is not Stage.SERVING or r.metadata.terminating or r.spec.revision != spec.revision for r in replicas
    ):
        return None
    if any(now - parse_time(r.status.placement.bound_at) < after_s or _did_not_help(r, now) for r in replicas):
        return None
    steady = [n for n in nodes if now - parse_time(n.status.contact.since) >= after_s]
    _, by_node = spread_of(replicas)
    return max(
        _crowded(replicas, steady), key=lambda r: (by_node[r.status.placement.node], r.metadata.name), default=None
    )


def _crowded(replicas: Sequence[Replica], nodes: Sequence[Node]) -> list[Replica]:
    """The replicas in the fullest zone, else on the fullest node, if a usable zone or node has at least two less."""
    by_zone, by_node = spread_of(replicas)
    fullest = max(sorted(by_zone), key=lambda name: by_zone[name])
    if any(by_zone[fullest] - by_zone[node.spec.zone] >= 2 for node in nodes):
        return [r for r in replicas if r.status.placement.zone == fullest]
    most = max(by_node.values())
    if any(most - by_node[node.metadata.name] >= 2 for node in nodes):
        return [r for r in replicas if by_node[r.status.placement.node] == most]
    return []


def _after_s(assignment: Assignment) -> float:
    rules = assignment.spec.rebalance
    return rules.after_seconds if rules is not None else limits.REBALANCE_AFTER_S


def spread_of(replicas: Iterable[Replica]) -> tuple[Counter[str], Counter[str]]:
    """Replicas per zone and per node."""
    placed = [r.status.placement for r in replicas]
    return Counter(p.zone for p in placed), Counter(p.node for p in placed)


def _planned(
    assignment: Assignment, replica: Replica, builder: SnapshotBuilder, view: View, now: float, *, region: str
) -> Move | None:
    """The move if the planner, without the replica's present claim, chooses a node that improves the spread."""
    placed = replica.status.placement
    binding = view.get(Binding, placed.binding, replica.metadata.namespace)
    if binding is None:
        return None
    rules = active_policy(view.list(PolicyRevision), view.list(Override), region, now).rules
    request = request_for(replica, attempt=placed.attempt + 1)
    builder.delete(binding)
    planned = plan(builder.freeze(0), [requirements_of(request)], rules, now, seed=placed.attempt).request_plans[0]
    builder.upsert(binding)
    if len(planned.proposals) != 1 or planned.proposals[0].victims:
        return None
    node = view.get(Node, planned.proposals[0].node)
    after_s = _after_s(assignment)
    if node is None or now - parse_time(node.status.contact.since) < after_s:
        return None
    by_zone, by_node = spread_of(view.by(Replica, "assignment", str(assignment.key)))
    name, zone = node.metadata.name, node.spec.zone
    zones, nodes = by_zone[placed.zone] - by_zone[zone], by_node[placed.node] - by_node[name]
    better_zones = zone != placed.zone and zones >= 2
    same_zones = zone == placed.zone or zones == 1
    if better_zones:
        counts = f"zone {placed.zone} has {by_zone[placed.zone]} replicas of the workload, zone {zone} {by_zone[zone]}"
    elif same_zones and nodes >= 2:
        counts = f"node {placed.node} has {by_node[placed.node]} replicas of the workload, node {name} {by_node[name]}"
    else:
        return None
    score = planned.proposals[0].score
    message = f"{counts}, for at least {after_s:g} s; the planner chooses node {name} (score {score})"
    return Move(replica, name, zone, message)


def _is_requested(replica: Replica) -> bool:
    return bool(release_request(replica)) and not _is_released(replica)


def _is_released(replica: Replica) -> bool:
    release = replica.status.release
    return release is not None and release.attempt == replica.status.placement.attempt


def _is_moving(replica: Replica) -> bool:
    """Whether the replica was released for a move and does not serve again yet."""
    block, placed = replica.status.rebalance, replica.status.placement
    if block is None or stage(replica) is Stage.SERVING:
        return False
    return placed.attempt in (block.attempt, block.attempt + 1)


def _moved_last_hour(replicas: Sequence[Replica], now: float) -> bool:
    """Whether the region has used its moves of the last hour."""
    moved = (r.status.rebalance for r in replicas if r.status.rebalance is not None)
    return sum(now - parse_time(block.at) < 3600.0 for block in moved) >= MOVES_PER_HOUR


def _did_not_help(replica: Replica, now: float) -> bool:
    """Whether the last move of the replica, not long ago, ended where it began."""
    block, placed = replica.status.rebalance, replica.status.placement
    if block is None or placed.attempt == block.attempt or now - parse_time(block.at) > RETRY_AFTER_S:
        return False
    returned_to_zone = block.to_zone != block.from_zone and placed.zone == block.from_zone
    return returned_to_zone or placed.node == block.from_node


def release_request(replica: Replica) -> str:
    """Why rebalance requests the release of the replica; empty if it does not. Read by `release`."""
    block = replica.status.rebalance
    if block is None or block.attempt != replica.status.placement.attempt or stage(replica) is not Stage.SERVING:
        return ""
    return block.message or "its workload is spread unevenly"


def keys(view: View) -> Iterable[Key]:
    return (SINGLE_KEY,)
