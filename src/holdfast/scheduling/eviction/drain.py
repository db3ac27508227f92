"""drain: reports the progress of a node drain, and which replica blocks it and why. Owns Node.status.drain.

It evicts nothing: `release` evicts replicas one by one, as disruption budgets allow. A drain past its deadline
continues; it is only reported as Overdue, with the blocking replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model.lifecycle import Stage, stage
from holdfast.model.meta import Key
from holdfast.model.node import BlockedReplica, DrainBlock, DrainPhase, Node
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Notice, Outcome, SetStatus
from holdfast.scheduling.disruption_budget import eviction_blocked_reason

# Blocking replicas listed in a drain status. The rest is only counted.
DRAIN_BLOCKED_LISTED_MAX = 10

RECHECK_AFTER_S = 2.0
"""Interval at which an unfinished drain is rechecked, because siblings on other nodes change the blocking reasons."""


def decide(key: Key, view: View, now: float) -> Outcome:
    """The drain status of one node."""
    node: Node | None = view.get(Node, key.name)
    if node is None:
        return NO_CHANGES
    old = node.status.drain
    if not node.spec.drain:
        if old is None:
            return NO_CHANGES
        return Outcome(writes=(_status(node, None),))
    new = _block(node, view.by(Replica, "node", key.name), view, now)
    again_s = RECHECK_AFTER_S if new.remaining else None
    if new == old:
        return Outcome(requeue_after_s=again_s)
    notices: tuple[Notice, ...] = ()
    if old is None or old.phase != new.phase:
        reason = Reason.DRAIN_OVERDUE if new.phase == DrainPhase.OVERDUE else Reason.DRAINED
        notices = (Notice(node, reason, new.message, warning=new.phase == DrainPhase.OVERDUE),)
    return Outcome(writes=(_status(node, new),), notices=notices, requeue_after_s=again_s)


def _status(node: Node, block: DrainBlock | None) -> SetStatus:
    return SetStatus("Node", node.key, node.uid, blocks={"drain": block}, observed_generation=node.metadata.generation)


def _block(node: Node, replicas: Sequence[Replica], view: View, now: float) -> DrainBlock:
    old = node.status.drain
    since = old.since if old is not None and old.since else micro_text(now)
    if not replicas:
        return DrainBlock(phase=DrainPhase.DRAINED, message="no replicas are bound to the node", since=since)
    blocking = sorted(replicas, key=lambda r: (_blocking_order(r), r.key))
    blocked = tuple(_blocked(r, view) for r in blocking[:DRAIN_BLOCKED_LISTED_MAX])
    limit_s = node.spec.drain_seconds
    late = bool(limit_s) and now - parse_time(since) >= limit_s
    examples = "; ".join(f"{b.replica}: {b.message}" for b in blocked[:3])
    more = f"; and {len(replicas) - 3} more" if len(replicas) > 3 else ""
    overdue = f"not drained within {limit_s:g} s: " if late else ""
    return DrainBlock(
        phase=DrainPhase.OVERDUE if late else DrainPhase.DRAINING,
        remaining=len(replicas),
        since=since,
        message=f"{overdue}{len(replicas)} replicas remain: {examples}{more}",
        blocked=blocked,
    )


def _blocking_order(replica: Replica) -> int:
    """Sort key: replicas that never leave by themselves are listed first, then blocked ones, then stopping ones."""
    if stage(replica) is Stage.STOPPING:
        return 2
    return 1 if replica.spec.disruption.max_unavailable else 0


def _blocked(replica: Replica, view: View) -> BlockedReplica:
    name = str(replica.key)
    if stage(replica) is Stage.STOPPING:
        grace_s = replica.spec.template.termination_grace_seconds
        return BlockedReplica(replica=name, reason=Reason.DRAINED, message=f"stopping (grace period {grace_s:g} s)")
    why = eviction_blocked_reason(replica, view)
    if why:
        return BlockedReplica(replica=name, reason=Reason.BUDGET_EXHAUSTED, message=why)
    return BlockedReplica(replica=name, reason=Reason.WAITING, message="eviction is due")


def keys(view: View) -> Iterable[Key]:
    return [node.key for node in view.list(Node) if node.spec.drain or node.status.drain is not None]


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    if new is None or (not new.spec.drain and new.status.drain is None):
        return ()
    if old is not None and (old.spec.drain, old.spec.drain_seconds) == (new.spec.drain, new.spec.drain_seconds):
        return ()
    return (new.key,)


def woken_by_replica(new: Replica | None, old: Replica | None, view: View) -> Iterable[Key]:
    """Wakes the replica's node before and after the change, if that node is draining."""
    names = {r.status.placement.node for r in (new, old) if r is not None and r.status.placement.node}
    if not names:
        return ()
    found = []
    for name in sorted(names):
        node: Node | None = view.get(Node, name)
        if node is not None and node.spec.drain:
            found.append(node.key)
    return found
