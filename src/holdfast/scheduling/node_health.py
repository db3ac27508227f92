"""node-health: failure detector for nodes, based on their leases. Owns the contact blocks of Node and Replica.

An expired lease is evidence, not proof: it stops new placement and traffic, and never deletes anything. A replica is
rescheduled only after the authority's fencing commit, which waits longer. A late renewal is only told, so that a hung
agent is visible before its lease ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model import limits
from holdfast.model.lease_page import LeasePage, NodeLease
from holdfast.model.lifecycle import is_out_of_contact
from holdfast.model.meta import Key
from holdfast.model.node import ContactBlock, ContactState, Node
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica, ReplicaContact
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import Notice, Outcome, SetStatus, Write

# Age of the last renewal at which a node is reported as late. Renewals come every 5 s, so one is missing.
RENEWAL_LATE_S = 8.0
# How long a late renewal stays reported, also after the next one came. Otherwise a node whose renewals are often late
# would be written at each of them.
RENEWAL_LATE_HELD_S = 60.0


def newest_lease(node: str, pages: Iterable[LeasePage]) -> NodeLease | None:
    """The node's newest lease on any page."""
    found = [page.spec.leases[node] for page in pages if node in page.spec.leases]
    return max(found, key=lambda lease: (lease.epoch, lease.renewed_at_s), default=None)


def decide(key: Key, view: View, now: float) -> Outcome:
    """The contact state of one node and its replicas."""
    node: Node | None = view.get(Node, key.name)
    replicas: Sequence[Replica] = view.by(Replica, "node", key.name)
    if node is None:
        return Outcome(writes=tuple(_mark(replicas, lost=True, reason=Reason.NODE_NOT_FOUND, now=now)))
    lease = newest_lease(key.name, view.list(LeasePage))
    state, reason, recheck_s = _contact_state(node, lease, now)
    lost = state in (ContactState.EXPIRED, ContactState.FENCED)
    # A node that never registered tells nothing about replicas bound to a former node of its name: leave their marks.
    writes = _mark(replicas, lost=lost, reason=reason, now=now) if state is not ContactState.NO_LEASE else []
    known = node.status.contact
    late = reason is Reason.RENEWAL_LATE
    if known.state is state is ContactState.LIVE and known.reason == Reason.RENEWAL_LATE and not late:
        held_s = parse_time(known.since) + RENEWAL_LATE_HELD_S - now
        if held_s > 0:
            return Outcome(writes=tuple(writes), requeue_after_s=min(held_s + 0.05, recheck_s or held_s))
    if known.state is state and (known.reason == Reason.RENEWAL_LATE) is late:
        return Outcome(writes=tuple(writes), requeue_after_s=recheck_s)
    block = ContactBlock(state=state, since=micro_text(now), reason=reason)
    seen = node.metadata.generation
    writes.insert(0, SetStatus("Node", node.key, node.uid, blocks={"contact": block}, observed_generation=seen))
    message = {
        ContactState.LIVE: f"no heartbeat for {RENEWAL_LATE_S:g} s" if late else "the agent renews its lease",
        ContactState.EXPIRED: f"no heartbeat for {limits.NODE_LEASE_TTL_S:g} s; no new replicas are placed here",
        ContactState.FENCED: "the lease is fenced; replicas are rescheduled",
        ContactState.NO_LEASE: "the agent has not registered yet",
    }[state]
    notice = Notice(node, reason, message, warning=lost or late)
    return Outcome(writes=tuple(writes), notices=(notice,), requeue_after_s=recheck_s)


def _contact_state(node: Node, lease: NodeLease | None, now: float) -> tuple[ContactState, Reason, float | None]:
    """The contact state, its reason, and the seconds until it may change."""
    if lease is None:
        return ContactState.NO_LEASE, Reason.NODE_UNREACHABLE, None
    if node.status.fence.fenced_epoch >= lease.epoch:
        return ContactState.FENCED, Reason.FENCED, None
    if _belongs_to_former_node(node, lease):
        return ContactState.NO_LEASE, Reason.NODE_UNREACHABLE, None
    remaining_s = lease.renewed_at_s + lease.ttl_s - now
    if remaining_s <= 0:
        return ContactState.EXPIRED, Reason.LEASE_EXPIRED, None
    late_in_s = lease.renewed_at_s + min(RENEWAL_LATE_S, lease.ttl_s) - now
    if late_in_s <= 0:
        return ContactState.LIVE, Reason.RENEWAL_LATE, remaining_s + 0.05
    return ContactState.LIVE, Reason.LEASE_RENEWED, late_in_s + 0.05


def _belongs_to_former_node(node: Node, lease: NodeLease) -> bool:
    """Whether the lease expired before this Node was created, so that it belongs to a removed node of the same name."""
    created = node.metadata.creation_timestamp
    return bool(created) and lease.renewed_at_s + lease.ttl_s < parse_time(created)


def _mark(replicas: Sequence[Replica], *, lost: bool, reason: Reason, now: float) -> list[Write]:
    writes: list[Write] = []
    for replica in replicas:
        if is_out_of_contact(replica) == lost:
            continue
        placed = replica.status.placement
        new = ReplicaContact(lost=lost, attempt=placed.attempt, node=placed.node, since=micro_text(now), reason=reason)
        writes.append(SetStatus("Replica", replica.key, replica.uid, blocks={"contact": new}))
    return writes


def keys(view: View) -> Iterable[Key]:
    """All nodes, and removed nodes that still have replicas."""
    found = [node.key for node in view.list(Node)]
    names = {r.status.placement.node for r in view.list(Replica)}
    names.difference_update((key.name for key in found), ("",))
    return [*found, *(Key("", name) for name in sorted(names))]


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    item = new or old
    if item is None:
        return ()
    if (
        new is not None
        and old is not None
        and new.status.fence == old.status.fence
        and new.status.contact == old.status.contact
    ):
        return ()
    return (item.key,)


def woken_by_page(new: LeasePage | None, old: LeasePage | None, view: View) -> Iterable[Key]:
    """Wakes nodes with a new epoch or a late renewal. A timely renewal wakes none: the node's timer checks it."""
    if new is None:
        return
    before = old.spec.leases if old is not None else {}
    for name, lease in new.spec.leases.items():
        previous = before.get(name)
        if (
            previous is None
            or previous.epoch != lease.epoch
            or lease.renewed_at_s - previous.renewed_at_s > min(RENEWAL_LATE_S, previous.ttl_s)
        ):
            yield Key("", name)


def woken_by_replica(new: Replica | None, old: Replica | None, view: View) -> Iterable[Key]:
    """Wakes the node of a newly placed replica if the node is out of contact already: the replica must be marked."""
    if new is None:
        return ()
    placed = new.status.placement
    if not placed.node:
        return ()
    if old is not None:
        before = old.status.placement
        same = before is placed or (before.node, before.attempt) == (placed.node, placed.attempt)
        if same and old.status.contact == new.status.contact:
            return ()
    node: Node | None = view.get(Node, placed.node)
    if node is not None and node.status.contact.state is ContactState.LIVE and not is_out_of_contact(new):
        return ()
    return (Key("", placed.node),)
