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
from holdfast.model.hold import Hold, HoldSpec, is_refused
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import Node, node_capacity, why_not_schedulable
from holdfast.model.placement_eligibility import can_use_node
from holdfast.model.quantity import Amounts, add, amounts, shortfall
from holdfast.model.recovery_budget import RecoveryBudget, Slot
from holdfast.model.tenant import Tenant, is_dedicated
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.writes import NOTHING, Create, Delete, Outcome, Write

LABEL_BUDGET = "holdfast.dev/budget"
LOOK_AGAIN_S = 5.0
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
        mine: Sequence[Hold] = [h for h in view.by(Hold, "budget", key.name) if not h.metadata.terminating]
        if budget is None or budget.spec.region != region:
            unused = [_delete(h) for h in mine if not is_drawn(h, view)]
            left = len(unused) < len(mine)
            return Outcome(writes=tuple(unused), again_in_s=LOOK_AGAIN_S if left else None)
        return _settle(budget, mine, view, now)

    return decide


def _settle(budget: RecoveryBudget, mine: Sequence[Hold], view: View, now: float) -> Outcome:
    by_name = {h.metadata.name: h for h in mine}
    wanted = {
        place_name(budget.metadata.name, index, number): (index, slot)
        for index, slot in enumerate(budget.spec.slots)
        for number in range(slot.count)
    }
    goes = [h for name, h in by_name.items() if _must_go(h, budget, wanted.get(name), view, now)]
    missing = [name for name in wanted if name not in by_name][: limits.HOLDS_PER_PASS]
    writes: list[Write] = [_delete(h) for h in goes]
    going = {h.metadata.name for h in goes}
    staying = [h for h in mine if h.metadata.name not in going]
    if missing:
        sites = _sites(budget, view)
        refused = {h.spec.node for h in staying if is_refused(h)}
        # Updated per new slot; counting again for each one would cost nodes times slots.
        per_zone = Counter((h.spec.slot, h.spec.zone) for h in staying)
        for name in missing:
            made = _place(budget, name, wanted[name][0], sites, per_zone=per_zone, refused=refused)
            if made is not None:
                writes.append(Create(made))
                staying.append(made)
                per_zone[made.spec.slot, made.spec.zone] += 1
    elif not goes:
        moved = _uneven(budget, staying, view)
        writes += [_delete(moved)] if moved is not None else []
    short = len(staying) < len(wanted) or any(is_refused(h) for h in staying)
    if not writes and not short:
        return NOTHING
    return Outcome(writes=tuple(writes), again_in_s=LOOK_AGAIN_S if short else None)


def place_name(budget: str, slot: int, number: int) -> str:
    return f"{budget}-{slot}-{number}"


def is_drawn(hold: Hold, view: View) -> bool:
    """Whether a claim consumes the slot. Slot and Reservation are written in one commit; the Reservation decides."""
    if hold.status.draw is not None:
        return True
    claims = view.by(Reservation, "node", hold.spec.node)
    return any(hold.metadata.name in c.spec.holds and c.status.phase is not ReservationPhase.RELEASED for c in claims)


def _must_go(hold: Hold, budget: RecoveryBudget, wanted: tuple[int, Slot] | None, view: View, now: float) -> bool:
    if is_drawn(hold, view):
        return False
    if wanted is None or amounts(hold.spec.resources) != amounts(wanted[1].resources):
        return True
    node: Node | None = view.get(Node, hold.spec.node)
    if node is None or why_not_schedulable(node) not in _STAYS or node.spec.zone != hold.spec.zone:
        return True
    if not _can_use(budget, node, view):
        return True
    kept = hold.status.kept
    return kept is not None and not kept.kept and now - parse_time(kept.at) >= limits.HOLD_REFUSED_KEPT_S


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
        if why_not_schedulable(node) or not _can_use(budget, node, view):
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
        places = [h for h in view.by(Hold, "node", name) if not is_refused(h) and not is_drawn(h, view)]
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
) -> Hold | None:
    """A slot in the zone with the fewest slots of this shape, on the node with the fewest slots and most free capacity.

    None if no node fits. A node that refused a slot of this budget is chosen only if no other node fits.
    """
    slot = budget.spec.slots[index]
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
    spec = HoldSpec(
        budget=budget.metadata.name,
        node=chosen.node.metadata.name,
        slot=index,
        zone=chosen.node.spec.zone,
        resources=slot.resources,
    )
    return Hold(metadata=ObjectMeta(name=name, labels={LABEL_BUDGET: budget.metadata.name}), spec=spec)


def _uneven(budget: RecoveryBudget, staying: Sequence[Hold], view: View) -> Hold | None:
    """A slot to move from an overfull zone to one with room, such as a zone that recovered; None if slots are even."""
    sites = _sites(budget, view)
    for index, slot in enumerate(budget.spec.slots):
        like = [h for h in staying if h.spec.slot == index]
        idle = [h for h in like if not is_drawn(h, view)]
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


def _delete(hold: Hold) -> Delete:
    """Deletes only the observed revision: a claim that consumes the slot meanwhile changes the revision."""
    return Delete("Hold", hold.key, hold.uid, if_revision=hold.revision)


def keys(view: View) -> Iterable[Key]:
    found = {b.key for b in view.list(RecoveryBudget)}
    found |= {Key("", h.spec.budget) for h in view.list(Hold)}
    return sorted(found)


def woken_by_budget(new: RecoveryBudget | None, old: RecoveryBudget | None, view: View) -> Iterable[Key]:
    item = new or old
    return (item.key,) if item is not None else ()


def woken_by_hold(new: Hold | None, old: Hold | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key("", item.spec.budget),) if item is not None else ()


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    """Only changes of schedulability, capacity or zone; task reports do not matter here."""
    if new is not None and old is not None:
        same = why_not_schedulable(new) == why_not_schedulable(old)
        if same and new.spec.capacity == old.spec.capacity and new.spec.zone == old.spec.zone:
            return ()
    return [b.key for b in view.list(RecoveryBudget)]
