"""Choice of regions: errors of the estimated room, cost against an exact optimum, share placed of a sequence.

`before` is the rule that knows only sums over a region and weighs room before cost; it exists only here. Both rules
see the same worlds. Small worlds are compared with the best of all possible choices.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

from bench.region_world import Shape, World
from holdfast.fleet.capacity import RegionHeadroom, region_headroom
from holdfast.model.limits import SPILLOVER_AFTER_S
from holdfast.model.region import Region

NODES: tuple[Shape, ...] = ((8_000, 32), (16_000, 64), (32_000, 128))
SMALL: tuple[Shape, ...] = ((250, 1), (500, 2), (1_000, 2), (1_000, 8), (2_000, 4), (3_000, 12))
LARGE: tuple[Shape, ...] = ((4_000, 8), (6_000, 24), (8_000, 16))
FILL = 0.9
NODES_PER_REGION = (10, 120)
WORLDS = 30
COST_WORLDS = 300
SEQUENCES = 150
SPILLOVER_CHECKS = 4
"""How often the pending replicas of a workload may move."""

BOUNDS = {
    "after.hint_error_max": (None, 1.0),
    "after.large_sent_where_full_pct": (None, 2.0),
    "after.cost_over_optimum_pct": (None, 2.0),
    "after.sequence_packing_placed_pct": (96.5, None),
    "after.sequence_spreading_placed_pct": (95.0, None),
}

Shares = dict[str, int]


async def run() -> dict[str, object]:
    return {rule: _figures(by_node=rule == "after") for rule in ("before", "after")}


def _figures(*, by_node: bool) -> dict[str, float]:
    found = _hint_errors(by_node=by_node)
    found.update(_costs(by_node=by_node))
    for rule, tight in (("packing", True), ("spreading", False)):
        placed, one_region = _sequences(by_node=by_node, tight=tight)
        found[f"sequence_{rule}_placed_pct"] = placed
        if by_node:
            found[f"sequence_{rule}_one_region_pct"] = one_region
    return {name: round(value, 2) for name, value in found.items()}


def sums_first(rooms: Mapping[str, RegionHeadroom], replicas: int, limit: int) -> Shares:
    """The rule before: with a limit, the regions with most room; then even shares."""
    order = sorted(rooms, key=lambda name: (-rooms[name].fits, rooms[name].cost, name))
    able = [name for name in order if rooms[name].fits_when_empty] or order
    able = able[:limit] if limit else able
    have: Shares = {}
    for _ in range(replicas):
        chosen = min(
            able,
            key=lambda name: (rooms[name].fits - have.get(name, 0) <= 0, have.get(name, 0), rooms[name].cost, name),
        )
        have[chosen] = have.get(chosen, 0) + 1
    return have


def _decided(world: World, name: str, shape: Shape, replicas: int, limit: int, *, by_node: bool) -> Shares:
    workload = world.workload(name, shape, replicas, limit)
    if by_node:
        return world.assign(workload)
    rooms = {r.metadata.name: region_headroom(r, workload, world.cache) for r in world.cache.list(Region)}
    shares = sums_first(rooms, replicas, limit)
    world.assign_as(workload, shares)
    return shares


def _world(chance: Random, regions: int, nodes: tuple[int, int], fill: float, *, by_node: bool) -> World:
    names = [f"r{index}" for index in range(regions)]
    world = World(
        {name: [chance.choice(NODES) for _ in range(chance.randint(*nodes))] for name in names},
        {name: chance.randrange(50, 200, 10) for name in names},
        by_node=by_node,
    )
    world.fill(chance, SMALL, fill)
    return world


def _hint_errors(*, by_node: bool) -> dict[str, float]:
    """Estimated room by real room, and large replicas sent to a region without room although another has room."""
    errors, sent, wrong = [], 0, 0
    for seed in range(WORLDS):
        chance = Random(seed)
        world = _world(chance, 5, NODES_PER_REGION, FILL, by_node=by_node)
        for shape in (*SMALL, *LARGE):
            probe = world.workload("probe", shape, 1)
            for name in world.free:
                exact = world.fits(name, shape)
                guess = max(0, region_headroom(world.region(name), probe, world.cache).fits)
                if exact or guess:
                    errors.append(guess / max(1, exact))
        for index, shape in enumerate(LARGE):
            if not any(world.fits(name, shape) for name in world.free):
                continue
            _decided(world, f"large-{index}", shape, 1, 0, by_node=by_node)
            sent += 1
            wrong += not world.run(world.stored(f"large-{index}"), shape)
    return {
        "hint_error_median": statistics.median(errors),
        "hint_error_p05": statistics.quantiles(errors, n=20)[0],
        "hint_error_max": max(errors),
        "large_sent_where_full_pct": 100 * wrong / sent,
    }


def _costs(*, by_node: bool) -> dict[str, float]:
    """One workload with `spreadRegions` in a small world, against the best of all shares."""
    over, placed, possible = [], 0, 0
    for seed in range(COST_WORLDS):
        chance = Random(1_000 + seed)
        world = _world(chance, chance.randint(3, 5), (2, 5), chance.choice((0.5, 0.7, 0.8)), by_node=by_node)
        shape, replicas = chance.choice((*SMALL, *LARGE)), chance.randint(1, 8)
        limit = chance.randint(1, 3)
        costs = {name: world.region(name).spec.cost for name in world.free}
        rooms = {name: world.fits(name, shape) for name in world.free}
        best = optimum(rooms, costs, replicas, limit)
        shares = _decided(world, "api", shape, replicas, limit, by_node=by_node)
        kept = {name: min(count, rooms[name]) for name, count in shares.items()}
        placed, possible = placed + sum(kept.values()), possible + sum(best.values())
        if sum(kept.values()) == sum(best.values()) > 0:
            over.append(_cost(kept, costs) / _cost(best, costs))
    return {"cost_over_optimum_pct": 100 * (statistics.mean(over) - 1), "one_placed_pct": 100 * placed / possible}


def optimum(rooms: Mapping[str, int], costs: Mapping[str, int], replicas: int, limit: int) -> Shares:
    """The best shares by trying all: most replicas placed, smallest largest share, lowest cost."""
    found: tuple[tuple[int, int, int], Shares] | None = None
    names = sorted(rooms)
    for counts in itertools.product(*(range(min(rooms[name], replicas) + 1) for name in names)):
        if sum(counts) > replicas or sum(count > 0 for count in counts) > limit:
            continue
        shares = {name: count for name, count in zip(names, counts, strict=True) if count}
        rank = (-sum(counts), max(counts), _cost(shares, costs))
        if found is None or rank < found[0]:
            found = (rank, shares)
    assert found is not None
    return found[1]


def _cost(shares: Mapping[str, int], costs: Mapping[str, int]) -> int:
    return sum(count * costs[name] for name, count in shares.items())


def _sequences(*, by_node: bool, tight: bool) -> tuple[float, float]:
    """Workloads one after another until about everything is full, against the most that one who knows all can place:
    the part that is placed, and the part that one region with all nodes places. `tight` regions fill node after node.
    """
    placed, alone, possible = 0, 0, 0
    for seed in range(SEQUENCES):
        chance = Random(5_000 + seed)
        nodes: dict[str, list[Shape]] = {
            f"r{region}": [(chance.choice((4, 6, 8)) * 1_000, 64)] * 2 for region in range(3)
        }
        every = [node for part in nodes.values() for node in part]
        world = World(nodes, dict.fromkeys(nodes, 100), by_node=by_node, tight=tight)
        single = World({"all": every}, {"all": 100}, by_node=by_node, tight=tight)
        asked: list[int] = []
        while sum(asked) < sum(cpu for cpu, _ in every):
            shape, replicas = (chance.choice((1, 1, 2, 3, 4)) * 1_000, 1), chance.randint(1, 3)
            asked += [shape[0]] * replicas
            placed += _run_one(world, f"w{len(asked):02}", shape, replicas, by_node=by_node)
            alone += single.place("all", shape, replicas)
        free = tuple(sorted(cpu // 1_000 for cpu, _ in every))
        possible += most_placed(free, tuple(sorted(cpu // 1_000 for cpu in asked)))
    return 100 * placed / possible, 100 * alone / possible


def _run_one(world: World, name: str, shape: Shape, replicas: int, *, by_node: bool) -> int:
    """Assigns a workload, lets its pending replicas move, and returns how many are placed."""
    _decided(world, name, shape, replicas, 0, by_node=by_node)
    placed = world.run(world.stored(name), shape)
    for _ in range(SPILLOVER_CHECKS):
        if placed == replicas:
            break
        world.now += SPILLOVER_AFTER_S + 5.0
        world.assign(world.stored(name))
        placed += world.run(world.stored(name), shape)
    return placed


def most_placed(free: Sequence[int], asked: Sequence[int]) -> int:
    """The most replicas that fit on these nodes together. Smallest first is no loss, so their number is searched."""

    @cache
    def packs(nodes: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
        if not sizes:
            return True
        if sum(sizes) > sum(nodes):
            return False
        largest, rest = sizes[-1], sizes[:-1]
        return any(
            packs(tuple(sorted((*nodes[:index], node - largest, *nodes[index + 1 :]))), rest)
            for index, node in enumerate(nodes)
            if node >= largest and node not in nodes[:index]
        )

    return max(count for count in range(len(asked) + 1) if packs(tuple(free), tuple(asked[:count])))
