"""Scheduled faults: a list with name, time and target of each fault, drawn from the seed before the run.

Removing one fault changes no other, so that a failing run can be shrunk (`sim/shrink.py`). A scenario declares its own
list (`sim/scenarios`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.sim import operators
from holdfast.sim.chaos import COMING, Kind
from holdfast.sim.ports import stream
from holdfast.sim.releases import Release

if TYPE_CHECKING:
    from holdfast.sim.hosts import AgentHost, CellHost
    from holdfast.sim.world import World

EVERY_S = 45.0
"""Mean interval between two faults of one enabled kind."""
GLOBAL = "global"


class Trouble(msgspec.Struct, frozen=True):
    """`target` is a cell, node, zone or tenant, depending on the kind. `amount` is a step, a rate or a count."""

    name: str
    kind: Kind
    at_s: float
    target: str
    for_s: float = 10.0
    amount: float = 0.0


class Map(msgspec.Struct, frozen=True):
    """The possible targets of faults."""

    regions: tuple[str, ...]
    nodes: tuple[str, ...]
    zones: tuple[str, ...]
    tenants: tuple[str, ...]


_NODES = frozenset(
    {
        Kind.AGENT_CRASH,
        Kind.AGENT_PAUSE,
        Kind.NODE_LOSS,
        Kind.AGENT_CUT,
        Kind.AGENT_CUT_ONE_WAY,
        Kind.CORDON,
        Kind.DRAIN,
        Kind.NODE_DELETED,
        Kind.NODE_SHRINKS,
        Kind.NODE_BROKEN,
        Kind.NODE_TAINTED,
    }
)
_REGIONS = frozenset(
    {
        Kind.LINK_CUT,
        Kind.LINK_CUT_ONE_WAY,
        Kind.REGION_ISOLATED,
        Kind.REGION_LOSS,
        Kind.REPLICA_DELETED,
        Kind.OVERRIDE_GIVEN,
        Kind.BREAK_GLASS,
    }
)
_ZONES = frozenset({Kind.ZONE_LOSS, Kind.ZONE_AVOIDED})
_TENANTS = frozenset({Kind.QUOTA_CHANGED, Kind.TENANT_DELETED, Kind.BURST})
RARE = frozenset(
    {Kind.REGION_LOSS, Kind.REGION_ISOLATED, Kind.TENANT_DELETED, Kind.ZONE_LOSS, Kind.DISK_FULL, Kind.CLOCK_WILD}
)
"""At most once in a run."""

LASTS_S: dict[Kind, tuple[float, float]] = {
    Kind.CELL_PAUSE: (3.0, 120.0),
    Kind.AGENT_PAUSE: (3.0, 120.0),
    Kind.STORE_DOWN: (1.0, 30.0),
    Kind.REGION_LOSS: (20.0, 90.0),
    Kind.CORDON: (5.0, 90.0),
    Kind.DRAIN: (5.0, 90.0),
    Kind.ZONE_AVOIDED: (5.0, 60.0),
    Kind.NEXT_RELEASE: (5.0, 90.0),
    Kind.FORMER_RELEASE: (5.0, 90.0),
}
LASTS_ELSE_S = (0.5, 60.0)


def draw(seed: int, enabled: Iterable[Kind], where: Map, faults_s: float) -> tuple[Trouble, ...]:
    """The scheduled faults of a run, in order of time."""
    found: list[Trouble] = []
    wanted = frozenset(enabled)
    for kind in COMING:
        if kind not in wanted:
            continue
        chance = stream(seed, f"troubles/{kind}")
        at_s, number = chance.expovariate(1.0 / EVERY_S), 0
        while at_s < faults_s and not (number and kind in RARE):
            number += 1
            for_s = chance.uniform(*LASTS_S.get(kind, LASTS_ELSE_S))
            target = chance.choice(_targets(kind, where))
            found.append(Trouble(f"{kind}#{number}", kind, at_s, target, for_s, _amount(kind, chance)))
            at_s += 2.0 + chance.expovariate(1.0 / EVERY_S)
    return tuple(sorted(found, key=lambda t: (t.at_s, t.name)))


def _targets(kind: Kind, where: Map) -> tuple[str, ...]:
    if kind in _NODES:
        return where.nodes
    if kind in _REGIONS:
        return where.regions
    if kind in _ZONES:
        return where.zones
    if kind in _TENANTS:
        return where.tenants
    if kind is Kind.CACHES_STALE:
        kinds = ("Replica", "SchedulingRequest")
        return (GLOBAL, *where.regions, *(f"{region}/{kind}" for region in where.regions for kind in kinds))
    if kind in (Kind.CLOCK_STEP, Kind.CLOCK_DRIFT, Kind.CLOCK_WILD):
        return (GLOBAL, *where.regions, *where.nodes)
    if kind in (Kind.NEXT_RELEASE, Kind.FORMER_RELEASE):
        cells = (GLOBAL, *where.regions)
        return (*cells * max(1, len(where.nodes) // len(cells)), *where.nodes)  # cells as often as nodes
    return (GLOBAL, *where.regions)


def _amount(kind: Kind, chance: random.Random) -> float:
    if kind is Kind.CLOCK_STEP:
        return chance.choice((-1.0, 1.0)) * 10 ** chance.uniform(-1.0, 2.5)
    if kind is Kind.CLOCK_DRIFT:
        # Leases tolerate CLOCK_DRIFT between two clocks, so each clock may deviate by half of it.
        return 1.0 + chance.uniform(-0.49, 0.49) * limits.CLOCK_DRIFT
    if kind is Kind.CLOCK_WILD:
        return 1.0 + chance.choice((-1.0, 1.0)) * chance.uniform(0.03, 0.3)
    if kind is Kind.CRASH_AT_AWAIT:
        return float(chance.randint(1, 400))
    if kind is Kind.TIMEOUT_AT:
        return float(chance.choice((-1, 1)) * chance.randint(1, 60))
    if kind is Kind.QUOTA_CHANGED:
        return chance.choice((0.5, 0.75, 1.25))
    return chance.random()


async def suffer(world: World, trouble: Trouble) -> None:
    """Waits until the fault's time, injects it and ends it."""
    await asyncio.sleep(trouble.at_s)
    if world.chaos.healed or not world.chaos.allows(trouble.name):
        return
    world.chaos.note(trouble.kind, trouble.name, _told(trouble))
    try:
        await _happen(world, trouble)
    except Fault:
        return  # an operator's request was refused or its response was lost: the fault has no effect
    if trouble.kind not in _FELT_LATER:
        world.chaos.felt[trouble.kind] += 1


def _told(trouble: Trouble) -> str:
    """Target and duration or amount, for the failure report."""
    if trouble.kind is Kind.POLICY_CHANGED:
        return operators.policy_words(trouble.amount)
    if trouble.kind in _BY_AMOUNT:
        return f"{trouble.target}, {trouble.amount:.4g}"
    return trouble.target if trouble.kind in _AT_ONCE else f"{trouble.target}, for {trouble.for_s:.1f} s"


_BY_AMOUNT = frozenset(
    {
        Kind.CLOCK_STEP, Kind.CLOCK_DRIFT, Kind.CLOCK_WILD, Kind.CRASH_AT_AWAIT, Kind.TIMEOUT_AT, Kind.QUOTA_CHANGED,
        Kind.REPLICA_DELETED,
    }
)  # fmt: skip
_FELT_LATER = frozenset({Kind.TIMEOUT_AT, Kind.CRASH_AT_AWAIT, Kind.DISK_FULL})
"""Faults that take effect later, at a commit or step."""
_AT_ONCE = frozenset({Kind.BURST, Kind.NODE_DELETED, Kind.TENANT_DELETED, Kind.COMPACTION})


async def _happen(world: World, trouble: Trouble) -> None:
    match trouble.kind:
        case (
            Kind.CELL_CRASH
            | Kind.CELL_PAUSE
            | Kind.CRASH_AT_AWAIT
            | Kind.TIMEOUT_AT
            | Kind.STORE_DOWN
            | Kind.DISK_FULL
            | Kind.COMPACTION
            | Kind.OVERLOAD
        ):
            await _to_cell(world.cell(trouble.target), trouble)
        case Kind.AGENT_CRASH | Kind.AGENT_PAUSE | Kind.NODE_LOSS:
            await _to_agent(world.agent(trouble.target), trouble)
        case Kind.ROLLING_RESTART:
            for cell in world.cells():
                cell.crash()
                await asyncio.sleep(0.5 + trouble.amount)
                cell.boot()
                await asyncio.sleep(trouble.for_s / 4)
        case Kind.ZONE_LOSS:
            await _power_cut([a for a in world.agents if a.zone == trouble.target], [], trouble.for_s)
        case Kind.REGION_LOSS:
            region = world.cell(trouble.target)
            await _power_cut([a for a in world.agents if a.region is region], [region], trouble.for_s)
        case Kind.LINK_CUT | Kind.LINK_CUT_ONE_WAY | Kind.AGENT_CUT | Kind.AGENT_CUT_ONE_WAY | Kind.REGION_ISOLATED:
            await _cut(world, _paths(world, trouble), trouble.for_s)
        case Kind.CLOCK_STEP:
            world.clock(trouble.target).step_s += trouble.amount
        case Kind.CLOCK_DRIFT:
            world.clock(trouble.target).drift(trouble.amount)
        case Kind.CLOCK_WILD:
            # The invariants assume clocks within the bound, so S7 is not checked for leases on this clock.
            world.court.distrust(trouble.target)
            world.clock(trouble.target).drift(trouble.amount)
        case Kind.CACHES_STALE:
            world.chaos.make_stale(trouble.target, trouble.for_s)
        case Kind.NODE_BROKEN:
            world.agent(trouble.target).machine.broken = True
            await asyncio.sleep(trouble.for_s)
            world.agent(trouble.target).machine.broken = False
        case Kind.NEXT_RELEASE:
            await _as_release(world, trouble, Release.NEXT)
        case Kind.FORMER_RELEASE:
            await _as_release(world, trouble, Release.FORMER)
        case Kind.NODE_SHRINKS:
            await world.agent(trouble.target).shrink(trouble.for_s)
        case _:
            await operators.interfere(world, trouble)


async def _to_cell(cell: CellHost, trouble: Trouble) -> None:
    match trouble.kind:
        case Kind.CELL_CRASH:
            cell.crash()
            await asyncio.sleep(trouble.for_s)
            cell.boot()
        case Kind.CELL_PAUSE:
            cell.pause(trouble.for_s)
        case Kind.CRASH_AT_AWAIT:
            cell.stumble_after(int(trouble.amount))
        case Kind.TIMEOUT_AT:
            cell.disk.trap = int(trouble.amount)
        case Kind.OVERLOAD:
            cell.overloaded = True
            await asyncio.sleep(trouble.for_s)
            cell.overloaded = False
        case Kind.STORE_DOWN:
            cell.disk.down = True
            await asyncio.sleep(trouble.for_s)
            cell.disk.down = False
        case Kind.DISK_FULL:
            # The store fails at its next write. Later an operator frees disk space and restarts the cell.
            cell.disk.full = True
            await asyncio.sleep(trouble.for_s)
            cell.disk.full = False
            if cell.store_failed:
                cell.crash()
                cell.boot()
        case Kind.COMPACTION:
            await cell.disk.store.compact(cell.disk.store.head)


async def _to_agent(agent: AgentHost, trouble: Trouble) -> None:
    match trouble.kind:
        case Kind.AGENT_PAUSE:
            agent.pause(trouble.for_s)
            return
        case Kind.NODE_LOSS:
            agent.lose_power()
        case _:
            agent.crash()
    await asyncio.sleep(trouble.for_s)
    agent.boot()


async def _as_release(world: World, trouble: Trouble, release: Release) -> None:
    """Restarts the host as another release and later as the current one, both on the same disk."""
    host = world.host(trouble.target)
    host.install(release)
    await asyncio.sleep(trouble.for_s)
    if not (world.chaos.healed and world.mixed):
        host.install(Release.PRESENT)


async def _power_cut(agents: list[AgentHost], cells: list[CellHost], for_s: float) -> None:
    for agent in agents:
        agent.lose_power()
        agent.kept_down = True
    for cell in cells:
        cell.crash()
        cell.kept_down = True
    await asyncio.sleep(for_s)
    hosts: list[CellHost | AgentHost] = [*cells, *agents]
    for host in hosts:
        host.kept_down = False
        host.boot()


def _paths(world: World, trouble: Trouble) -> list[tuple[str, str]]:
    """The network directions that the fault blocks."""
    if trouble.kind in (Kind.AGENT_CUT, Kind.AGENT_CUT_ONE_WAY):
        agent = world.agent(trouble.target)
        both = [(agent.caller, agent.region.name), (agent.region.name, agent.caller)]
    else:
        both = [(f"region/{trouble.target}", GLOBAL), (GLOBAL, f"region/{trouble.target}")]
    if trouble.kind in (Kind.LINK_CUT_ONE_WAY, Kind.AGENT_CUT_ONE_WAY):
        return [both[trouble.amount < 0.5]]
    if trouble.kind is Kind.REGION_ISOLATED:
        callers = [a.caller for a in world.agents if a.region.name == trouble.target] + ["operator"]
        both += [path for caller in callers for path in ((caller, trouble.target), (trouble.target, caller))]
    return both


async def _cut(world: World, paths: list[tuple[str, str]], for_s: float) -> None:
    for source, target in paths:
        world.network.cut(source, target)
    await asyncio.sleep(for_s)
    for source, target in paths:
        world.network.join(source, target)
