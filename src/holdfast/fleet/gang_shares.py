"""Divides the replicas of a gang over regions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.fleet.capacity import RegionHeadroom


def add_gang_members(
    have: Mapping[str, int], rooms: Mapping[str, RegionHeadroom], candidates: Sequence[str], lacking: int, least: int
) -> dict[str, int]:
    """Adds replicas of a gang. A region with fewer than `least` of them starts none, so all go to one region that has
    room. If no region has, they are divided into the largest possible parts of at least that size."""
    shares, left = dict(have), list(candidates)

    def room(name: str) -> int:
        return max(0, rooms[name].fits - max(0, shares.get(name, 0) - rooms[name].own_replicas))

    def part(name: str) -> int:
        """The replicas that go to the region, so that neither it nor the rest has too few; 0 if that is impossible."""
        size = min(room(name), lacking)
        if 0 < lacking - size < least:
            size = lacking - least
        return size if shares.get(name, 0) + size >= least else 0

    while lacking and left:
        whole = [name for name in left if room(name) >= lacking and shares.get(name, 0) + lacking >= least]
        if whole:
            chosen = min(whole, key=lambda name: (name not in shares, rooms[name].cost, name))
            size = lacking
        else:
            chosen = min(left, key=lambda name: (-part(name), name not in shares, -room(name), rooms[name].cost, name))
            size = part(chosen) or lacking  # nowhere is room for a whole gang: it waits in the region with most room
        shares[chosen] = shares.get(chosen, 0) + size
        lacking -= size
        left.remove(chosen)
    if lacking:
        shares[chosen] += lacking
    return shares
