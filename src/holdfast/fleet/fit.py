"""Whether replicas fit into kept places: an exact matching, and an exact search for who goes to which region.

Places of one shape and audience are one group. Within a region replicas are matched to groups by augmenting paths, so
"does not fit" is a proof. Over regions a greedy choice by rank comes first; where it fails, a search decides: it goes
over how many workloads of a kind go where, so hundreds that are alike cost no more than one. Its steps are bounded, and
an answer that it did not reach says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.placement_eligibility import can_draw
from holdfast.model.quantity import Amounts, add, scaled, shortfall


class Group(msgspec.Struct, frozen=True):
    """Free places of one shape; `tenants` may use them, everyone if empty. `zone` is empty where it does not matter."""

    region: str
    shape: Amounts
    tenants: tuple[str, ...]
    count: int
    zone: str = ""


class Item(msgspec.Struct, frozen=True):
    """A workload that must go to one region: `options` are (region, replicas it lacks there), the best first.

    `closed` are the (region, zone) pairs that its rules or an override forbid; `dedicated` as its tenant is.
    """

    tenant: str
    name: str
    shape: Amounts
    options: tuple[tuple[str, int], ...]
    closed: frozenset[tuple[str, str]] = frozenset()
    dedicated: bool = False


class Shortage(msgspec.Struct, frozen=True):
    item: Item
    message: str


class Fit(msgspec.Struct, frozen=True):
    """`chosen` is (item, region, replicas); `short` could not be placed. `decided` is False if the search gave up."""

    chosen: tuple[tuple[Item, str, int], ...]
    short: tuple[Shortage, ...]
    decided: bool = True


class _Matching:
    """Replicas of items in the groups of one region. `take` is all or nothing."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = list(groups)
        self._left = [g.count for g in groups]
        self._used: list[dict[int, int]] = [{} for _ in groups]
        self._items: list[Item] = []

    def copy(self) -> _Matching:
        twin = _Matching(self._groups)
        twin._left = list(self._left)
        twin._used = [dict(used) for used in self._used]
        twin._items = list(self._items)
        return twin

    def take(self, item: Item, count: int) -> bool:
        before = (list(self._left), [dict(used) for used in self._used])
        self._items.append(item)
        number = len(self._items) - 1
        for _ in range(count):
            if not self._augment(number, set()):
                self._left, self._used = before
                self._items.pop()
                return False
        return True

    def room(self, item: Item) -> int:
        """How many replicas of the item fit beside what is there."""
        twin = self.copy()
        count = 0
        while twin.take(item, 1):
            count += 1
        return count

    def _suits(self, number: int, group: int) -> bool:
        item, place = self._items[number], self._groups[group]
        if (place.region, place.zone) in item.closed or shortfall(item.shape, place.shape):
            return False
        return can_draw(place.tenants, item.tenant, dedicated=item.dedicated)

    def _augment(self, number: int, seen: set[int]) -> bool:
        """One more replica of an item, moving others to places that suit them as well."""
        for group in range(len(self._groups)):
            if group in seen or not self._suits(number, group):
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


class _Search:
    def __init__(self, groups: Sequence[Group], allowance: dict[str, Amounts]) -> None:
        self._by_region: dict[str, list[Group]] = {}
        for group in groups:
            self._by_region.setdefault(group.region, []).append(group)
        self.allowance = allowance
        self.steps = 0

    def matching(self, region: str) -> _Matching:
        return _Matching(self._by_region.get(region, []))

    def allowed(self, spent: dict[str, Amounts], item: Item, count: int) -> Amounts:
        """By how much the tenant's allowance would be exceeded."""
        after = dict(spent.get(item.tenant, {}))
        add(after, scaled(item.shape, count))
        return shortfall(after, self.allowance.get(item.tenant, {}))

    def greedy(self, items: Sequence[Item]) -> Fit:
        matchings: dict[str, _Matching] = {}
        spent: dict[str, Amounts] = {}
        chosen, short = [], []
        for item in items:
            for region, count in item.options:
                matching = matchings.setdefault(region, self.matching(region))
                if not self.allowed(spent, item, count) and matching.take(item, count):
                    add(spent.setdefault(item.tenant, {}), scaled(item.shape, count))
                    chosen.append((item, region, count))
                    break
            else:
                short.append(Shortage(item, self._why(item, matchings, spent)))
        return Fit(tuple(chosen), tuple(short))

    def _why(self, item: Item, matchings: dict[str, _Matching], spent: dict[str, Amounts]) -> str:
        if not item.options:
            return "no other region may hold it"
        parts = []
        for region, count in item.options:
            over = self.allowed(spent, item, count)
            if over:
                named = ", ".join(sorted(over))
                parts.append(f"{region}: the recovery allowance of {item.tenant} is short of {named} for {count} more")
                continue
            fits = matchings.setdefault(region, self.matching(region)).room(item)
            parts.append(f"{region}: {fits} of {count} recovery places that suit it are left")
        return "; ".join(parts)

    def all_of(self, items: Sequence[Item]) -> tuple[tuple[Item, str, int], ...] | None:
        """Every item in some region, or None when that is impossible, or not decided within the steps allowed.

        Items that ask for the same are one class: how many of a class go to which region is all that matters.
        """
        classes: list[list[Item]] = []
        for item in items:
            mine = next((c for c in classes if _alike(c[0], item)), None)
            if mine is None:
                classes.append([item])
            else:
                mine.append(item)
        if len(classes) > limits.BACKING_CLASSES:
            self.steps = limits.BACKING_STEPS + 1
            return None
        order = sorted(classes, key=lambda c: (len(c[0].options), -_most_asked(c), c[0].tenant, c[0].name))
        return self._place(order, 0, {}, {}, ())

    def _place(
        self,
        order: Sequence[list[Item]],
        at: int,
        matchings: dict[str, _Matching],
        spent: dict[str, Amounts],
        chosen: tuple[tuple[Item, str, int], ...],
    ) -> tuple[tuple[Item, str, int], ...] | None:
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

    def _most(self, item: Item, region: str, count: int, matchings: dict[str, _Matching]) -> int:
        """How many workloads like this one the region's places have room for."""
        return matchings.get(region, self.matching(region)).room(item) // count

    def _splits(self, many: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Every way to share so many out to regions that have room for `most` each, the first region first."""
        if not most:
            if not many:
                yield ()
            return
        rest = sum(most[1:])
        for here in range(min(most[0], many), max(0, many - rest) - 1, -1):
            self.steps += 1
            if self.steps > limits.BACKING_STEPS:
                return
            for others in self._splits(many - here, most[1:]):
                yield (here, *others)


def _most_asked(alike: Sequence[Item]) -> int:
    return len(alike) * max((count for _, count in alike[0].options), default=0)


def _alike(one: Item, other: Item) -> bool:
    return (one.tenant, one.shape, one.options, one.closed) == (other.tenant, other.shape, other.options, other.closed)


def fit(items: Sequence[Item], groups: Sequence[Group], allowance: dict[str, Amounts]) -> Fit:
    """Everyone if that is possible; else who goes where by rank, who stays short, and why."""
    search = _Search(groups, allowance)
    quick = search.greedy(items)
    if not quick.short:
        return quick
    whole = search.all_of(items)
    if whole is not None:
        return Fit(whole, ())
    return msgspec.structs.replace(quick, decided=search.steps <= limits.BACKING_STEPS)
