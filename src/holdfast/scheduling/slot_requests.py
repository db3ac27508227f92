"""hold: requests recovery slots on nodes for each RecoveryBudget. Owns RecoverySlot (spec, deletion).

- A RecoverySlot is a request until the authority admits it (`status.admission`), so creating one never races a bind.
- Slots of a budget are spread over zones as evenly as the live nodes allow.
- A slot whose node drains, stops reporting or is removed is deleted and requested on another node.
- A consumed slot stays until its claim is released. No replica is evicted to free capacity for a slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model.binding import Binding, CapacityClass, Reservation, ReservationPhase
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import Node, node_capacity, unschedulable_reason
from holdfast.model.placement_eligibility import can_use_node
from holdfast.model.quantity import Amounts, add, amounts, shortfall
from holdfast.model.recovery_budget import RecoveryBudget, SlotShape
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec, is_rejected
from holdfast.model.tenant import Tenant, is_dedicated
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Create, Delete, Outcome, Write

# Recovery slots requested in one pass of a budget. The rest follows in the next pass.
SLOT_REQUESTS_PER_PASS_MAX = 64
# How long a rejected slot is kept, so that its reason can be read. After that, another node is tried.
REJECTED_SLOT_RETENTION_S = 5.0

LABEL_BUDGET = "holdfast.dev/budget"
RECHECK_AFTER_S = 5.0
"""Recheck interval while slots are missing, refused or waiting for a claim to end."""
_KEEPS_SLOT = ("", "NodeReconciling")
"""Unschedulable reasons that do not move a slot: an agent that reconciles after a restart is back in seconds."""


class _CandidateNode(msgspec.Struct):
    """A candidate node: its free resources and the number of slots it has."""

    node: Node
    free: Amounts
    slots_here: int


def decider(region: str) -> Callable[[Key, View, float], Outcome]:
    """Returns the decide function for RecoveryBudgets of this region."""

    def decide(key: Key, view: View, now: float) -> Outcome:
        budget: RecoveryBudget | None = view.get(RecoveryBudget, key.name)
        slots: Sequence[RecoverySlot] = [
            h for h in view.by(RecoverySlot, "budget", key.name) if not h.metadata.terminating
        ]
        if budget is None or budget.spec.region != region:
            unused = [_delete(h) for h in slots if not is_consumed(h, view)]
            remaining = len(unused) < len(slots)
            return Outcome(writes=tuple(unused), requeue_after_s=RECHECK_AFTER_S if remaining else None)
        return _reconcile(budget, slots, view, now)

    return decide


def _reconcile(budget: RecoveryBudget, slots: Sequence[RecoverySlot], view: View, now: float) -> Outcome:
    by_name = {h.metadata.name: h for h in slots}
    desired = {
        slot_name(budget.metadata.name, index, number): (index, slot)
        for index, slot in enumerate(budget.spec.slot_shapes)
        for number in range(slot.count)
    }
    moving = [h for name, h in by_name.items() if _must_move(h, budget, desired.get(name), view, now)]
    missing = [name for name in desired if name not in by_name][:SLOT_REQUESTS_PER_PASS_MAX]
    writes: list[Write] = [_delete(h) for h in moving]
    moving_names = {h.metadata.name for h in moving}
    staying = [h for h in slots if h.metadata.name not in moving_names]
    if missing:
        candidates = _candidate_nodes(budget, view)
        refused = {h.spec.node for h in staying if is_rejected(h)}
        # Updated per new slot; counting again for each one would cost nodes times slots.
        per_zone = Counter((h.spec.shape_index, h.spec.zone) for h in staying)
        for name in missing:
            created = _new_slot(budget, name, desired[name][0], candidates, per_zone=per_zone, refused=refused)
            if created is not None:
                writes.append(Create(created))
                staying.append(created)
                per_zone[created.spec.shape_index, created.spec.zone] += 1
    elif not moving:
        moved = _slot_to_move(budget, staying, view)
        writes += [_delete(moved)] if moved is not None else []
    short = len(staying) < len(desired) or any(is_rejected(h) for h in staying)
    if not writes and not short:
        return NO_CHANGES
    return Outcome(writes=tuple(writes), requeue_after_s=RECHECK_AFTER_S if short else None)


def slot_name(budget: str, slot: int, number: int) -> str:
    return f"{budget}-{slot}-{number}"


def is_consumed(slot: RecoverySlot, view: View) -> bool:
    """Whether a claim consumes the slot. Slot and Reservation are written in one commit; the Reservation decides."""
    if slot.status.consumer is not None:
        return True
    claims = view.by(Reservation, "node", slot.spec.node)
    return any(
        slot.metadata.name in c.spec.recovery_slots and c.status.phase is not ReservationPhase.RELEASED for c in claims
    )


def _must_move(
    slot: RecoverySlot, budget: RecoveryBudget, desired: tuple[int, SlotShape] | None, view: View, now: float
) -> bool:
    if is_consumed(slot, view):
        return False
    if desired is None or amounts(slot.spec.resources) != amounts(desired[1].resources):
        return True
    node: Node | None = view.get(Node, slot.spec.node)
    if node is None or unschedulable_reason(node) not in _KEEPS_SLOT or node.spec.zone != slot.spec.zone:
        return True
    if not _is_usable(budget, node, view):
        return True
    kept = slot.status.admission
    return kept is not None and not kept.admitted and now - parse_time(kept.at) >= REJECTED_SLOT_RETENTION_S


def _is_usable(budget: RecoveryBudget, node: Node, view: View) -> bool:
    """Whether a tenant of the budget can use the node; a node that one tenant owns must be usable by all of them."""
    usable = [
        can_use_node(tenant, node.spec.tenant, dedicated=is_dedicated(view.get(Tenant, tenant)))
        for tenant in budget.spec.tenants or ("",)
    ]
    return all(usable) if node.spec.tenant else any(usable)


def _candidate_nodes(budget: RecoveryBudget, view: View) -> list[_CandidateNode]:
    """Candidate nodes with their free resources after firm work, recovery slots and unbound reservations."""
    found = []
    for node in view.list(Node):
        if unschedulable_reason(node) or not _is_usable(budget, node, view):
            continue
        name = node.metadata.name
        free = node_capacity(node)
        claimed = {b.metadata.name for b in view.by(Binding, "node", name)}
        for binding in view.by(Binding, "node", name):
            if binding.spec.capacity_class is not CapacityClass.RECLAIMABLE:
                add(free, amounts(binding.spec.resources), times=-1)
        for reservation in view.by(Reservation, "node", name):
            if reservation.metadata.name in claimed or reservation.status.phase is ReservationPhase.RELEASED:
                continue
            if reservation.spec.capacity_class is not CapacityClass.RECLAIMABLE:
                add(free, amounts(reservation.spec.resources), times=-1)
        slots_here = [h for h in view.by(RecoverySlot, "node", name) if not is_rejected(h) and not is_consumed(h, view)]
        for slot in slots_here:
            add(free, amounts(slot.spec.resources), times=-1)
        found.append(_CandidateNode(node, free, len(slots_here)))
    return found


def _new_slot(
    budget: RecoveryBudget,
    name: str,
    index: int,
    candidates: list[_CandidateNode],
    *,
    per_zone: Counter[tuple[int, str]],
    refused: set[str],
) -> RecoverySlot | None:
    """A slot in the zone with the fewest slots of this shape, on the node with the fewest slots and most free capacity.

    None if no node fits. A node that refused a slot of this budget is chosen only if no other node fits.
    """
    slot = budget.spec.slot_shapes[index]
    need = amounts(slot.resources)
    fitting = [s for s in candidates if not shortfall(need, s.free)]
    if not fitting:
        return None
    resources = sorted(need)

    def order(candidate: _CandidateNode) -> tuple[object, ...]:
        remaining = tuple(-candidate.free.get(resource, 0) for resource in resources)
        name, zone = candidate.node.metadata.name, candidate.node.spec.zone
        return (name in refused, per_zone[index, zone], candidate.slots_here, remaining, name)

    chosen = min(fitting, key=order)
    add(chosen.free, need, times=-1)
    chosen.slots_here += 1
    spec = RecoverySlotSpec(
        budget=budget.metadata.name,
        node=chosen.node.metadata.name,
        shape_index=index,
        zone=chosen.node.spec.zone,
        resources=slot.resources,
    )
    return RecoverySlot(metadata=ObjectMeta(name=name, labels={LABEL_BUDGET: budget.metadata.name}), spec=spec)


def _slot_to_move(budget: RecoveryBudget, staying: Sequence[RecoverySlot], view: View) -> RecoverySlot | None:
    """A slot to move from an overfull zone to one with capacity, such as a recovered one; None if slots are even."""
    candidates = _candidate_nodes(budget, view)
    for index, slot in enumerate(budget.spec.slot_shapes):
        like = [h for h in staying if h.spec.shape_index == index]
        idle = [h for h in like if not is_consumed(h, view)]
        open_zones = sorted({s.node.spec.zone for s in candidates if not shortfall(amounts(slot.resources), s.free)})
        if not idle or not open_zones:
            continue
        every = sorted({*open_zones, *(h.spec.zone for h in like)})
        counted = Counter(h.spec.zone for h in like)
        counts = {zone: counted[zone] for zone in every}
        fullest = max(idle, key=lambda h: (counts[h.spec.zone], h.metadata.name))
        if counts[fullest.spec.zone] - min(counts[zone] for zone in open_zones) >= 2:
            return fullest
    return None


def _delete(slot: RecoverySlot) -> Delete:
    """Deletes only the observed revision: a claim that consumes the slot meanwhile changes the revision."""
    return Delete("RecoverySlot", slot.key, slot.uid, if_revision=slot.revision)


def keys(view: View) -> Iterable[Key]:
    found = {b.key for b in view.list(RecoveryBudget)}
    found |= {Key("", h.spec.budget) for h in view.list(RecoverySlot)}
    return sorted(found)


def woken_by_budget(new: RecoveryBudget | None, old: RecoveryBudget | None, view: View) -> Iterable[Key]:
    item = new or old
    return (item.key,) if item is not None else ()


def woken_by_slot(new: RecoverySlot | None, old: RecoverySlot | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key("", item.spec.budget),) if item is not None else ()


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    """Wakes all budgets if the node's schedulability, capacity or zone changes."""
    if new is not None and old is not None:
        same = unschedulable_reason(new) == unschedulable_reason(old)
        if same and new.spec.capacity == old.spec.capacity and new.spec.zone == old.spec.zone:
            return ()
    return [b.key for b in view.list(RecoveryBudget)]
