"""release: the only one that decides that a replica gives up its place. Owns Replica.status.release and its finalizer.

The way back, each step waiting for proof of the one before: decision recorded → address withdrawn (serve) → stop
asked (authority) → stop acknowledged (agent) → claims freed, attempt raised (authority) → finalizer removed, or
queued again. A lost node skips the acknowledgement only after the fencing commit.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, Desired
from holdfast.model.lifecycle import Stage, current_execution, finished, stage
from holdfast.model.meta import Key
from holdfast.model.node import Contact, Node
from holdfast.model.placement import ReleaseAction, ReleaseItem
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, ReleaseBlock, Replica
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.workload import WorkloadType
from holdfast.model.writes import NOTHING, Notice, Outcome, SetStatus, Update, Write

FINALIZER = "holdfast.dev/release"
LOOK_AGAIN_S = 2.0
ENDED = frozenset({Phase.STOPPED, Phase.FAILED, Phase.SUCCEEDED})


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one replica."""
    replica: Replica | None = view.get(Replica, key.name, key.namespace)
    if replica is None:
        return NOTHING
    placed = replica.status.placement
    if not placed.binding and not placed.reservation:
        return _let_go(replica)
    binding: Binding | None = view.get(Binding, placed.binding, key.namespace) if placed.binding else None
    node: Node | None = view.get(Node, placed.node)
    asked = replica.status.release
    if asked is None or asked.attempt != placed.attempt:
        return _consider(replica, binding, node, view, now)
    return _carry_on(replica, binding, node, asked)


def _let_go(replica: Replica) -> Outcome:
    """Nothing is claimed: a replica that is to go may go."""
    if not replica.metadata.terminating or FINALIZER not in replica.metadata.finalizers:
        return NOTHING
    rest = tuple(f for f in replica.metadata.finalizers if f != FINALIZER)
    meta = msgspec.structs.replace(replica.metadata, finalizers=rest)
    return Outcome(writes=(Update(msgspec.structs.replace(replica, metadata=meta)),))


def _consider(replica: Replica, binding: Binding | None, node: Node | None, view: View, now: float) -> Outcome:
    why = _why(replica, binding, node, view)
    if why is None:
        draining = node is not None and node.spec.drain
        return Outcome(again_in_s=LOOK_AGAIN_S) if draining else NOTHING
    reason, by, message = why
    block = ReleaseBlock(
        attempt=replica.status.placement.attempt, reason=reason, message=message, requested_by=by, at=micro_text(now)
    )
    write: Write = SetStatus("Replica", replica.key, replica.uid, blocks={"release": block})
    notice = Notice(replica, reason, message, warning=reason is Reason.NODE_LOST)
    return Outcome(writes=(write,), notices=(notice,))


def _why(replica: Replica, binding: Binding | None, node: Node | None, view: View) -> tuple[Reason, str, str] | None:
    """The reason to give up the place, who wants it, and the sentence for people; None to stay."""
    if replica.metadata.terminating:
        return _why_deleted(replica, view)
    ended = finished(replica)
    if ended is not None and current_execution(replica) is not None:
        return Reason.FINISHED, "release", f"the work ended ({ended.value}); its claims are returned"
    if binding is not None and _is_lost(binding, node):
        return Reason.NODE_LOST, "node-health", f"node {binding.spec.node} is gone; placing the replica elsewhere"
    if binding is not None and binding.status.phase in ENDED:
        return Reason.NODE_RETURNED, "agent", f"node {binding.spec.node} no longer runs the work"
    ran = current_execution(replica)
    if ran is not None and ran.phase is Phase.FAILED and replica.spec.type is WorkloadType.SERVICE:
        return (
            Reason.EXITED,
            "agent",
            f"the work failed on {replica.status.placement.node}: {ran.message or ran.reason}",
        )
    if node is not None and node.spec.drain and _may_disrupt(replica, view):
        return Reason.DRAINED, "drain", f"node {node.metadata.name} is being drained"
    return None


def _why_deleted(replica: Replica, view: View) -> tuple[Reason, str, str]:
    assignment: Assignment | None = view.get(Assignment, replica.spec.assignment, replica.metadata.namespace)
    if assignment is None or assignment.metadata.terminating or not assignment.spec.replicas:
        return Reason.OWNER_DELETED, "replicate", "the workload no longer wants replicas in this region"
    if assignment.spec.revision != replica.spec.revision:
        return Reason.REVISION_REPLACED, "replicate", f"revision {assignment.spec.revision} replaces this one"
    return Reason.SCALED_DOWN, "replicate", "fewer replicas are wanted, or this one was deleted"


def _is_lost(binding: Binding, node: Node | None) -> bool:
    """Whether the fencing commit, or the removal of the node, allows a place elsewhere."""
    return node is None or node.status.fence.fenced_epoch >= binding.spec.node_epoch


def _may_disrupt(replica: Replica, view: View) -> bool:
    """Voluntary acts leave all but `maxUnavailable` of a workload's replicas serving."""
    if replica.spec.type is not WorkloadType.SERVICE:
        return True
    mates = view.by(Replica, "workload", f"{replica.metadata.namespace}/{replica.spec.workload}")
    staying = [r for r in mates if not r.metadata.terminating]
    serving = sum(stage(r) is Stage.SERVING for r in staying)
    after = serving - (stage(replica) is Stage.SERVING)
    return after >= len(staying) - max(1, replica.spec.disruption.max_unavailable)


def _carry_on(replica: Replica, binding: Binding | None, node: Node | None, asked: ReleaseBlock) -> Outcome:
    traffic = replica.status.traffic
    if traffic is not None and traffic.serving and traffic.attempt == asked.attempt:
        return Outcome(again_in_s=LOOK_AGAIN_S)  # serve withdraws it first, and that wakes us
    if binding is None or binding.status.phase in ENDED or _is_lost(binding, node):
        return Outcome(releases=(_item(replica, ReleaseAction.FREE, asked),), again_in_s=LOOK_AGAIN_S)
    if binding.spec.desired is not Desired.STOP:
        return Outcome(releases=(_item(replica, ReleaseAction.STOP, asked),), again_in_s=LOOK_AGAIN_S)
    return Outcome(again_in_s=LOOK_AGAIN_S * 5)


def _item(replica: Replica, action: ReleaseAction, asked: ReleaseBlock) -> ReleaseItem:
    return ReleaseItem(
        namespace=replica.metadata.namespace,
        replica=replica.metadata.name,
        replica_uid=replica.uid,
        attempt=asked.attempt,
        action=action,
        reason=asked.reason,
        grace_seconds=replica.spec.template.termination_grace_seconds,
    )


def keys(view: View) -> Iterable[Key]:
    return [replica.key for replica in view.list(Replica)]


def woken_by_replica(new: Replica | None, old: Replica | None, view: View) -> Iterable[Key]:
    """Most changes on the way up are none of its business; on the way down every one is."""
    if new is None:
        return ()
    status = new.status
    retreating = new.metadata.terminating or status.release is not None
    ran = current_execution(new)
    if retreating or (ran is not None and ran.phase in ENDED):
        return (new.key,)
    return ()


def woken_by_binding(new: Binding | None, old: Binding | None, view: View) -> Iterable[Key]:
    item = new or old
    if item is None:
        return ()
    if new is not None and old is not None and new.status == old.status and new.spec.desired is old.spec.desired:
        return ()
    if old is None and item.status.phase is None:
        return ()
    return (Key(item.metadata.namespace, item.spec.replica),)


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    """A fence, a drain or a removal concerns every replica on the node."""
    item = new or old
    if item is None:
        return ()
    if new is not None and old is not None:
        if new.status.fence == old.status.fence and new.spec.drain == old.spec.drain:
            return ()
    elif new is not None and new.status.contact.state is not Contact.FENCED and not new.spec.drain:
        return ()
    return [r.key for r in view.by(Replica, "node", item.metadata.name)]
