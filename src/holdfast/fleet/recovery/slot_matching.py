"""Matches critical workloads to recovery slots: exact within a region, exact over regions up to a bound.

Slots of one region, shape and tenant list form a group. Within a region, replicas are matched to groups by augmenting
paths, so a failed match is a proof. Over regions a greedy choice by priority comes first. If it fails, a search over
how many identical workloads go to which region decides. The search is bounded; beyond the bound the result is inexact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.model.placement_eligibility import can_use_slots
from holdfast.model.quantity import Amounts, add, scaled, shortfall

NO_REGION_LEFT = "no other region can run it"
# Steps of the exact search that matches critical workloads to recovery slots. At the bound the result of the greedy
# match is reported as inexact.
SLOT_SEARCH_STEPS_MAX = 20_000
# Classes of identical workloads in the exact search. With more, only the greedy match is made.
SLOT_SEARCH_CLASSES_MAX = 200


class SlotGroup(msgspec.Struct, frozen=True):
    """Free slots of one shape. Only `tenants` may use them; empty: every tenant. `zone` "": any zone."""

    region: str
    shape: Amounts
    tenants: tuple[str, ...]
    count: int
    zone: str = ""


class RecoveryDemand(msgspec.Struct, frozen=True):
    """A workload that needs slots in one region. `options` are (region, missing replicas), best first.

    `closed` are (region, zone) pairs that placement rules or an override forbid. `dedicated`: its tenant is dedicated.
    """

    tenant: str
    name: str
    shape: Amounts
    options: tuple[tuple[str, int], ...]
    closed: frozenset[tuple[str, str]] = frozenset()
    dedicated: bool = False
    obstacle: str = ""
    """Why it has no options."""


class SlotShortage(msgspec.Struct, frozen=True):
    demand: RecoveryDemand
    message: str


class MatchResult(msgspec.Struct, frozen=True):
    """`placements` are (demand, region, replicas). `exact` is False if the search reached its bound."""

    placements: tuple[tuple[RecoveryDemand, str, int], ...]
    shortages: tuple[SlotShortage, ...]
    exact: bool = True


class _Matching:
    """Replicas matched to the slot groups of one region. `take` matches all replicas of an item or none."""

    def __init__(self, groups: Sequence[SlotGroup]) -> None:
        self._groups = list(groups)
        self._left = [g.count for g in groups]
        self._used: list[dict[int, int]] = [{} for _ in groups]
        self._items: list[RecoveryDemand] = []

    def copy(self) -> _Matching:
        twin = _Matching(self._groups)
        twin._left = list(self._left)
        twin._used = [dict(used) for used in self._used]
        twin._items = list(self._items)
        return twin

    def take(self, item: RecoveryDemand, count: int) -> bool:
        before = (list(self._left), [dict(used) for used in self._used])
        self._items.append(item)
        number = len(self._items) - 1
        for _ in range(count):
            if not self._augment(number, set()):
                self._left, self._used = before
                self._items.pop()
                return False
        return True

    def room(self, item: RecoveryDemand) -> int:
        """How many more replicas of the item fit."""
        twin = self.copy()
        count = 0
        while twin.take(item, 1):
            count += 1
        return count

    def _fits(self, number: int, group: int) -> bool:
        item, slots = self._items[number], self._groups[group]
        if (slots.region, slots.zone) in item.closed or shortfall(item.shape, slots.shape):
            return False
        return can_use_slots(slots.tenants, item.tenant, dedicated=item.dedicated)

    def _augment(self, number: int, seen: set[int]) -> bool:
        """Matches one more replica of an item, moving other replicas to other groups if needed."""
        for group in range(len(self._groups)):
            if group in seen or not self._fits(number, group):
                continue
            seen.add(group)
            if self._left[group] > 0:
                self._left[group] -= 1
                self._used[group][number] = self._used[group].get(number, 0) + 1
                return True
            for other in sorted(self._used[group]):
                if self._used[group][other] and other != number and self._augment(other, seen):
                    self._used[group][other] -= 1
                    self._used[group][number] = self._used[group].get(number, 0) + 1
                    return True
        return False


class _SlotSearch:
    def __init__(self, groups: Sequence[SlotGroup], allowance: dict[str, Amounts]) -> None:
        self._by_region: dict[str, list[SlotGroup]] = {}
        for group in groups:
            self._by_region.setdefault(group.region, []).append(group)
        self.allowance = allowance
        self.steps = 0

    def matching(self, region: str) -> _Matching:
        return _Matching(self._by_region.get(region, []))

    def allowance_excess(self, spent: dict[str, Amounts], item: RecoveryDemand, count: int) -> Amounts:
        """By how much the tenant's recovery allowance would be exceeded."""
        after = dict(spent.get(item.tenant, {}))
        add(after, scaled(item.shape, count))
        return shortfall(after, self.allowance.get(item.tenant, {}))

    def greedy(self, items: Sequence[RecoveryDemand]) -> MatchResult:
        """Each item in the first region with room, in order. Slots and allowances only become fewer, so an item like
        the one before it has no room either where that had none."""
        matchings: dict[str, _Matching] = {}
        spent: dict[str, Amounts] = {}
        chosen: list[tuple[RecoveryDemand, str, int]] = []
        short: list[SlotShortage] = []
        before: RecoveryDemand | None = None
        first, why = 0, ""
        for item in items:
            alike = before is not None and item.dedicated == before.dedicated and item.obstacle == before.obstacle
            if before is None or not alike or not _identical(before, item):
                before, first, why = item, 0, ""
            for index in range(first, len(item.options)):
                region, count = item.options[index]
                first = index
                matching = matchings.setdefault(region, self.matching(region))
                if not self.allowance_excess(spent, item, count) and matching.take(item, count):
                    add(spent.setdefault(item.tenant, {}), scaled(item.shape, count))
                    chosen.append((item, region, count))
                    break
            else:
                first = len(item.options)
                why = why or self._shortage_reason(item, matchings, spent)
                short.append(SlotShortage(item, why))
        return MatchResult(tuple(chosen), tuple(short))

    def _shortage_reason(self, item: RecoveryDemand, matchings: dict[str, _Matching], spent: dict[str, Amounts]) -> str:
        if not item.options:
            return item.obstacle or NO_REGION_LEFT
        parts = []
        for region, count in item.options:
            over = self.allowance_excess(spent, item, count)
            if over:
                named = ", ".join(sorted(over))
                parts.append(f"{region}: the recovery allowance has too little {named} for {count} replica(s)")
                continue
            fits = matchings.setdefault(region, self.matching(region)).room(item)
            parts.append(f"{region}: {fits} of {count} matching recovery slots are free")
        return "; ".join(parts)

    def place_all(self, items: Sequence[RecoveryDemand]) -> tuple[tuple[RecoveryDemand, str, int], ...] | None:
        """A placement of every item, or None if there is none or the bound was reached.

        Identical items are one class; only the number per region matters.
        """
        classes: list[list[RecoveryDemand]] = []
        for item in items:
            mine = next((c for c in classes if _identical(c[0], item)), None)
            if mine is None:
                classes.append([item])
            else:
                mine.append(item)
        if len(classes) > SLOT_SEARCH_CLASSES_MAX:
            self.steps = SLOT_SEARCH_STEPS_MAX + 1
            return None
        order = sorted(classes, key=lambda c: (len(c[0].options), -_max_demand(c), c[0].tenant, c[0].name))
        return self._place(order, 0, {}, {}, ())

    def _place(
        self,
        order: Sequence[list[RecoveryDemand]],
        at: int,
        matchings: dict[str, _Matching],
        spent: dict[str, Amounts],
        chosen: tuple[tuple[RecoveryDemand, str, int], ...],
    ) -> tuple[tuple[RecoveryDemand, str, int], ...] | None:
        if at == len(order):
            return chosen
        alike = order[at]
        item = alike[0]
        most = [self._most(item, region, count, matchings) for region, count in item.options]
        for split in self._splits(len(alike), most):
            more = {**spent, item.tenant: dict(spent.get(item.tenant, {}))}
            taken = dict(matchings)
            placed = list(chosen)
            waiting = iter(alike)
            for (region, count), many in zip(item.options, split, strict=True):
                add(more[item.tenant], scaled(item.shape, count * many))
                taken[region] = taken.get(region, self.matching(region)).copy()
                taken[region].take(item, count * many)
                placed += [(next(waiting), region, count) for _ in range(many)]
            if shortfall(more[item.tenant], self.allowance.get(item.tenant, {})):
                continue
            found = self._place(order, at + 1, taken, more, tuple(placed))
            if found is not None:
                return found
        return None

    def _most(self, item: RecoveryDemand, region: str, count: int, matchings: dict[str, _Matching]) -> int:
        """How many workloads of this class the region's slots have room for."""
        return matchings.get(region, self.matching(region)).room(item) // count

    def _splits(self, many: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """All ways to divide `many` workloads among regions with room for `most` each, first region first."""
        if not most:
            if not many:
                yield ()
            return
        rest = sum(most[1:])
        for here in range(min(most[0], many), max(0, many - rest) - 1, -1):
            self.steps += 1
            if self.steps > SLOT_SEARCH_STEPS_MAX:
                return
            for others in self._splits(many - here, most[1:]):
                yield (here, *others)


def _max_demand(alike: Sequence[RecoveryDemand]) -> int:
    return len(alike) * max((count for _, count in alike[0].options), default=0)


def _identical(one: RecoveryDemand, other: RecoveryDemand) -> bool:
    return (one.tenant, one.shape, one.options, one.closed) == (other.tenant, other.shape, other.options, other.closed)


def match_slots(
    items: Sequence[RecoveryDemand], groups: Sequence[SlotGroup], allowance: dict[str, Amounts]
) -> MatchResult:
    """A placement of all items if possible. Otherwise the greedy result by priority, with the shortages."""
    search = _SlotSearch(groups, allowance)
    quick = search.greedy(items)
    if not quick.shortages:
        return quick
    whole = search.place_all(items)
    if whole is not None:
        return MatchResult(whole, ())
    return msgspec.structs.replace(quick, exact=search.steps <= SLOT_SEARCH_STEPS_MAX)
