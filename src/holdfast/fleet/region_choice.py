"""Chooses the regions that may get new replicas of a workload. Pure.

Without `spreadRegions` every region may. With it, the regions in use stay and the others are chosen by, in this order:
most replicas with room, the most even shares, the lowest cost. Room beyond an even share has no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.fleet.capacity import RegionHeadroom
from holdfast.fleet.spillover import max_regions
from holdfast.model.workload import Workload, WorkloadType

# Exchanges of one region for another while the cheapest set is searched. A bound; few are needed.
EXCHANGES_MAX = 32

Rooms = Mapping[str, RegionHeadroom]


def candidate_regions(
    workload: Workload, have: Mapping[str, int], rooms: Rooms, lacking: int, left: Collection[str]
) -> list[str]:
    """Regions for new replicas. Avoided regions (`left`) are used only if there is no other."""
    order = sorted(rooms, key=lambda name: (name not in have, rooms[name].cost, name))
    able = [name for name in order if rooms[name].fits_when_empty] or order
    limit = max_regions(workload)
    if limit:
        able = _limited(workload, have, rooms, able, left=left, limit=limit, lacking=_at_once(workload, lacking))
    return [name for name in able if name not in left] or able


def _at_once(workload: Workload, lacking: int) -> int:
    """How many of the lacking replicas need room at the same time."""
    batch = workload.spec.batch
    is_batch = workload.spec.type is WorkloadType.BATCH and batch is not None
    return min(lacking, batch.parallelism) if is_batch and batch is not None else lacking


def _limited(
    workload: Workload,
    have: Mapping[str, int],
    rooms: Rooms,
    able: Sequence[str],
    *,
    left: Collection[str],
    limit: int,
    lacking: int,
) -> list[str]:
    """At most `limit` regions: those in use, then the best others, then avoided ones."""
    used = sorted((name for name in able if name in have), key=lambda name: (-rooms[name].fits, rooms[name].cost, name))
    used = used[:limit]
    others = [name for name in able if name not in have]
    fresh = [name for name in others if name not in left]
    if workload.spec.gang is not None:
        chosen = _for_gang(rooms, fresh, lacking)[: limit - len(used)]
    else:
        chosen = _cheapest_set(have, rooms, used, fresh, more=limit - len(used), lacking=lacking)
    avoided = [name for name in others if name in left]
    return [*used, *chosen, *avoided][:limit]


def _for_gang(rooms: Rooms, names: Sequence[str], lacking: int) -> list[str]:
    """Regions with room for the whole gang, cheapest first, then the others, most room first."""

    def order(name: str) -> tuple[object, ...]:
        room = rooms[name]
        whole = room.fits >= lacking
        return (not whole, 0 if whole else -room.fits, room.cost, name)

    return sorted(names, key=order)


def _cheapest_set(
    have: Mapping[str, int], rooms: Rooms, used: Sequence[str], others: Sequence[str], *, more: int, lacking: int
) -> list[str]:
    """The `more` regions of `others` that complete the regions in use."""
    if more <= 0:
        return []

    def space(name: str, most: int) -> int:
        """Replicas that the region can take, up to `most` replicas of the workload in it."""
        return max(0, min(rooms[name].fits, most - have.get(name, 0)))

    def largest(most: int) -> list[str]:
        return sorted(others, key=lambda name: (-space(name, most), rooms[name].cost, name))[:more]

    def total(names: Sequence[str], most: int) -> int:
        return min(lacking, sum(space(name, most) for name in (*used, *names)))

    ceiling = lacking + max((have.get(name, 0) for name in used), default=0)
    goal = total(largest(ceiling), ceiling)
    low, high = 0, ceiling  # the smallest largest share with which the goal is reached
    while low < high:
        middle = (low + high) // 2
        if total(largest(middle), middle) >= goal:
            high = middle
        else:
            low = middle + 1
    chosen = largest(high)
    for _ in range(EXCHANGES_MAX):
        cost = _cost(have, rooms, [*used, *chosen], lacking)
        best = min(
            (
                (found, index, name)
                for index in range(len(chosen))
                for name in others
                if name not in chosen and rooms[name].cost <= rooms[chosen[index]].cost
                if total(tried := [*chosen[:index], name, *chosen[index + 1 :]], high) >= goal
                if (found := _cost(have, rooms, [*used, *tried], lacking)) < cost
            ),
            default=None,
        )
        if best is None:
            break
        chosen[best[1]] = best[2]
    return sorted(chosen, key=lambda name: (rooms[name].cost, name))


def _cost(have: Mapping[str, int], rooms: Rooms, names: Sequence[str], lacking: int) -> int:
    """Cost of the new replicas if they are shared as evenly as room allows, the odd ones in the cheapest regions."""
    level = dict.fromkeys(names, 0)
    left = lacking
    while left:
        open_names = [name for name in names if level[name] < rooms[name].fits]
        if not open_names:
            break
        lowest = min(have.get(name, 0) + level[name] for name in open_names)
        row = sorted(
            (name for name in open_names if have.get(name, 0) + level[name] == lowest),
            key=lambda name: (rooms[name].cost, name),
        )
        rest = [have.get(name, 0) + level[name] - lowest for name in open_names if name not in row]
        # All of them rise together until one is full, meets the next level, or the replicas are used up.
        step = min([left // len(row), *(rooms[n].fits - level[n] for n in row), *rest])
        for name in row[:left] if not step else row:
            level[name] += max(1, step)
            left -= max(1, step)
    return sum(count * rooms[name].cost for name, count in level.items())
