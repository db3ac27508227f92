"""hold: requests recovery slots on nodes for each RecoveryBudget. Owns RecoverySlot (spec, deletion).

- A RecoverySlot is a request until the authority admits it (`status.admission`), so creating one never races a bind.
- Slots of a budget are spread over zones as evenly as the live nodes allow.
- A slot whose node drains, stops reporting or is removed is deleted and requested on another node.
- A consumed slot stays until its claim is released. No replica is evicted to make room for a slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model import limits
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

LABEL_BUDGET = "holdfast.dev/budget"
RECHECK_AFTER_S = 5.0
"""Recheck interval while slots are missing, refused or waiting for a claim to end."""
_STAYS = ("", "NodeReconciling")
"""Unschedulable reasons that do not move a slot: an agent that reconciles after a restart is back in seconds."""


class _Site(msgspec.Struct):
    """A candidate node: its free resources and the number of slots it has."""

    node: Node
    free: Amounts
    places: int


def decider(region: str) -> Callable[[Key, View, float], Outcome]:
    """Returns the decide function for RecoveryBudgets of this region."""

    def decide(key: Key, view: View, now: float) -> Outcome:
        budget: RecoveryBudget | None = view.get(RecoveryBudget, key.name)
        mine: Sequence[RecoverySlot] = [h for h in view.by(RecoverySlot, "budget", key.name) if not h.metadata.terminating]
        if budget is None or budget.spec.region != region:
            unused = [_delete(h) for h in mine if not is_consumed(h, view)]
            left = len(unused) < len(mine)
            return Outcome(writes=tuple(unused), requeue_after_s=RECHECK_AFTER_S if left else None)
        return _settle(budget, mine, view, now)

    return decide


def _settle(budget: RecoveryBudget, mine: Sequence[RecoverySlot], view: View, now: float) -> Outcome:
    by_name = {h.metadata.name: h for h in mine}
    wanted = {
        slot_name(budget.metadata.name, index, number): (index, slot)
        for index, slot in enumerate(budget.spec.slot_shapes)
        for number in range(slot.count)
    }
    goes = [h for name, h in by_name.items() if _must_go(h, budget, wanted.get(name), view, now)]
    missing = [name for name in wanted if name not in by_name][: limits.SLOT_REQUESTS_PER_PASS_MAX]
    writes: list[Write] = [_delete(h) for h in goes]
    going = {h.metadata.name for h in goes}
    staying = [h for h in mine if h.metadata.name not in going]
    if missing:
        sites = _sites(budget, view)
        refused = {h.spec.node for h in staying if is_rejected(h)}
        # Updated per new slot; counting again for each one would cost nodes times slots.
        per_zone = Counter((h.spec.shape_index, h.spec.zone) for h in staying)
        for name in missing:
            made = _place(budget, name, wanted[name][0], sites, per_zone=per_zone, refused=refused)
            if made is not None:
                writes.append(Create(made))
                staying.append(made)
                per_zone[made.spec.shape_index, made.spec.zone] += 1
    elif not goes:
        moved = _uneven(budget, staying, view)
        writes += [_delete(moved)] if moved is not None else []
    short = len(staying) < len(wanted) or any(is_rejected(h) for h in staying)
    if not writes and not short:
        return NO_CHANGES
    return Outcome(writes=tuple(writes), requeue_after_s=RECHECK_AFTER_S if short else None)


def slot_name(budget: str, slot: int, number: int) -> str:
    return f"{budget}-{slot}-{number}"


def is_consumed(hold: RecoverySlot, view: View) -> bool:
    """Whether a claim consumes the slot. Slot and Reservation are written in one commit; the Reservation decides."""
    if hold.status.consumer is not None:
        return True
    claims = view.by(Reservation, "node", hold.spec.node)
    return any(hold.metadata.name in c.spec.recovery_slots and c.status.phase is not ReservationPhase.RELEASED for c in claims)


def _must_go(hold: RecoverySlot, budget: RecoveryBudget, wanted: tuple[int, SlotShape] | None, view: View, now: float) -> bool:
    if is_consumed(hold, view):
        return False
    if wanted is None or amounts(hold.spec.resources) != amounts(wanted[1].resources):
        return True
    node: Node | None = view.get(Node, hold.spec.node)
    if node is None or unschedulable_reason(node) not in _STAYS or node.spec.zone != hold.spec.zone:
        return True
    if not _can_use(budget, node, view):
        return True
    kept = hold.status.admission
    return kept is not None and not kept.admitted and now - parse_time(kept.at) >= limits.REJECTED_SLOT_RETENTION_S


def _can_use(budget: RecoveryBudget, node: Node, view: View) -> bool:
    """Whether a tenant that may draw on the budget can run on the node; on a node that one tenant owns, all of them."""
    usable = [
        can_use_node(tenant, node.spec.tenant, dedicated=is_dedicated(view.get(Tenant, tenant)))
        for tenant in budget.spec.tenants or ("",)
    ]
    return all(usable) if node.spec.tenant else any(usable)


def _sites(budget: RecoveryBudget, view: View) -> list[_Site]:
    """Candidate nodes with their free resources after firm work, recovery slots and unbound reservations."""
    found = []
    for node in view.list(Node):
        if unschedulable_reason(node) or not _can_use(budget, node, view):
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
        places = [h for h in view.by(RecoverySlot, "node", name) if not is_rejected(h) and not is_consumed(h, view)]
        for hold in places:
            add(free, amounts(hold.spec.resources), times=-1)
        found.append(_Site(node, free, len(places)))
    return found


def _place(
    budget: RecoveryBudget,
    name: str,
    index: int,
    sites: list[_Site],
    *,
    per_zone: Counter[tuple[int, str]],
    refused: set[str],
) -> RecoverySlot | None:
    """A slot in the zone with the fewest slots of this shape, on the node with the fewest slots and most free capacity.

    None if no node fits. A node that refused a slot of this budget is chosen only if no other node fits.
    """
    slot = budget.spec.slot_shapes[index]
    need = amounts(slot.resources)
    fitting = [s for s in sites if not shortfall(need, s.free)]
    if not fitting:
        return None
    resources = sorted(need)

    def order(site: _Site) -> tuple[object, ...]:
        left = tuple(-site.free.get(resource, 0) for resource in resources)
        return (site.node.metadata.name in refused, per_zone[index, site.node.spec.zone], site.places, left,
                site.node.metadata.name)  # fmt: skip

    chosen = min(fitting, key=order)
    add(chosen.free, need, times=-1)
    chosen.places += 1
    spec = RecoverySlotSpec(
        budget=budget.metadata.name,
        node=chosen.node.metadata.name,
        shape_index=index,
        zone=chosen.node.spec.zone,
        resources=slot.resources,
    )
    return RecoverySlot(metadata=ObjectMeta(name=name, labels={LABEL_BUDGET: budget.metadata.name}), spec=spec)


def _uneven(budget: RecoveryBudget, staying: Sequence[RecoverySlot], view: View) -> RecoverySlot | None:
    """A slot to move from an overfull zone to one with room, such as a zone that recovered; None if slots are even."""
    sites = _sites(budget, view)
    for index, slot in enumerate(budget.spec.slot_shapes):
        like = [h for h in staying if h.spec.shape_index == index]
        idle = [h for h in like if not is_consumed(h, view)]
        open_zones = sorted({s.node.spec.zone for s in sites if not shortfall(amounts(slot.resources), s.free)})
        if not idle or not open_zones:
            continue
        every = sorted({*open_zones, *(h.spec.zone for h in like)})
        counted = Counter(h.spec.zone for h in like)
        counts = {zone: counted[zone] for zone in every}
        fullest = max(idle, key=lambda h: (counts[h.spec.zone], h.metadata.name))
        if counts[fullest.spec.zone] - min(counts[zone] for zone in open_zones) >= 2:
            return fullest
    return None


def _delete(hold: RecoverySlot) -> Delete:
    """Deletes only the observed revision: a claim that consumes the slot meanwhile changes the revision."""
    return Delete("Hold", hold.key, hold.uid, if_revision=hold.revision)


def keys(view: View) -> Iterable[Key]:
    found = {b.key for b in view.list(RecoveryBudget)}
    found |= {Key("", h.spec.budget) for h in view.list(RecoverySlot)}
    return sorted(found)


def woken_by_budget(new: RecoveryBudget | None, old: RecoveryBudget | None, view: View) -> Iterable[Key]:
    item = new or old
    return (item.key,) if item is not None else ()


def woken_by_hold(new: RecoverySlot | None, old: RecoverySlot | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key("", item.spec.budget),) if item is not None else ()


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    """Only changes of schedulability, capacity or zone; task reports do not matter here."""
    if new is not None and old is not None:
        same = unschedulable_reason(new) == unschedulable_reason(old)
        if same and new.spec.capacity == old.spec.capacity and new.spec.zone == old.spec.zone:
            return ()
    return [b.key for b in view.list(RecoveryBudget)]
