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
from holdfast.sim import lost_stores, operators
from holdfast.sim.fault_injection import LOST_STORES, SCHEDULED_FAULTS, FaultKind
from holdfast.sim.ports import random_stream
from holdfast.sim.releases import ReleaseVersion

if TYPE_CHECKING:
    from holdfast.sim.hosts import AgentHost, CellHost
    from holdfast.sim.simulation import Simulation

MEAN_INTERVAL_S = 45.0
"""Mean interval between two faults of one enabled kind."""
GLOBAL = "global"


class ScheduledFault(msgspec.Struct, frozen=True):
    """`target` is a cell, node, zone or tenant, depending on the kind. `amount` is a step, a rate or a count."""

    name: str
    kind: FaultKind
    at_s: float
    target: str
    for_s: float = 10.0
    amount: float = 0.0


class FaultTargets(msgspec.Struct, frozen=True):
    """The possible targets of faults."""

    regions: tuple[str, ...]
    nodes: tuple[str, ...]
    zones: tuple[str, ...]
    tenants: tuple[str, ...]


_NODES = frozenset(
    {
        FaultKind.AGENT_CRASH,
        FaultKind.AGENT_PAUSE,
        FaultKind.NODE_LOSS,
        FaultKind.AGENT_CUT,
        FaultKind.AGENT_CUT_ONE_WAY,
        FaultKind.CORDON,
        FaultKind.DRAIN,
        FaultKind.NODE_DELETED,
        FaultKind.NODE_SHRINKS,
        FaultKind.NODE_BROKEN,
        FaultKind.NODE_TAINTED,
    }
)
_REGIONS = frozenset(
    {
        FaultKind.LINK_CUT,
        FaultKind.LINK_CUT_ONE_WAY,
        FaultKind.REGION_ISOLATED,
        FaultKind.REGION_LOSS,
        FaultKind.REPLICA_DELETED,
        FaultKind.OVERRIDE_GIVEN,
        FaultKind.BREAK_GLASS,
        FaultKind.SECOND_SCHEDULER,
        FaultKind.REGION_RETURNS_STALE,
        FaultKind.REGION_CUT_OFF,
        FaultKind.RECORD_LOST,
        FaultKind.RECORD_DELETED,
        FaultKind.MAINTENANCE,
    }
)
_ZONES = frozenset({FaultKind.ZONE_LOSS, FaultKind.ZONE_AVOIDED})
_TENANTS = frozenset({FaultKind.QUOTA_CHANGED, FaultKind.TENANT_DELETED, FaultKind.BURST, FaultKind.QUOTA_LOWERED})
ONCE_PER_RUN = frozenset(
    {
        FaultKind.REGION_LOSS,
        FaultKind.REGION_ISOLATED,
        FaultKind.TENANT_DELETED,
        FaultKind.ZONE_LOSS,
        FaultKind.DISK_FULL,
        FaultKind.CLOCK_WILD,
        *LOST_STORES,
        FaultKind.REGION_RETURNS_STALE,
        FaultKind.REGION_CUT_OFF,
        FaultKind.CELL_RESTORED,
    }
)
"""At most once in a run."""

EARLY_S = (30.0, 45.0)
_EARLY = frozenset({FaultKind.REGION_RETURNS_STALE, FaultKind.REGION_CUT_OFF})
"""Faults whose consequences take most of the fault phase."""
STALE_STATUS_S = 80.0

DURATIONS_S: dict[FaultKind, tuple[float, float]] = {
    FaultKind.CELL_PAUSE: (3.0, 120.0),
    FaultKind.AGENT_PAUSE: (3.0, 120.0),
    FaultKind.STORE_DOWN: (1.0, 30.0),
    FaultKind.REGION_LOSS: (20.0, 90.0),
    FaultKind.CORDON: (5.0, 90.0),
    FaultKind.DRAIN: (5.0, 90.0),
    FaultKind.ZONE_AVOIDED: (5.0, 60.0),
    FaultKind.NEXT_RELEASE: (5.0, 90.0),
    FaultKind.FORMER_RELEASE: (5.0, 90.0),
    **dict.fromkeys(LOST_STORES, (5.0, 60.0)),
    FaultKind.SECOND_SCHEDULER: (40.0, 140.0),
    FaultKind.REGION_RETURNS_STALE: (40.0, 55.0),
    FaultKind.REGION_CUT_OFF: (150.0, 250.0),
    FaultKind.CELL_RESTORED: (10.0, 80.0),
    FaultKind.MAINTENANCE: (60.0, 90.0),
}
DEFAULT_DURATION_S = (0.5, 60.0)


def draw_schedule(
    seed: int, enabled: Iterable[FaultKind], where: FaultTargets, faults_s: float
) -> tuple[ScheduledFault, ...]:
    """The scheduled faults of a run, in order of time."""
    found: list[ScheduledFault] = []
    enabled_kinds = frozenset(enabled)
    for kind in SCHEDULED_FAULTS:
        if kind not in enabled_kinds:
            continue
        rng = random_stream(seed, f"troubles/{kind}")
        at_s, number = rng.uniform(*EARLY_S) if kind in _EARLY else rng.expovariate(1.0 / MEAN_INTERVAL_S), 0
        while at_s < faults_s and not (number and kind in ONCE_PER_RUN):
            number += 1
            for_s = rng.uniform(*DURATIONS_S.get(kind, DEFAULT_DURATION_S))
            target = rng.choice(_targets(kind, where))
            found.append(ScheduledFault(f"{kind}#{number}", kind, at_s, target, for_s, _amount(kind, rng)))
            at_s += 2.0 + rng.expovariate(1.0 / MEAN_INTERVAL_S)
    return tuple(sorted(found, key=lambda t: (t.at_s, t.name)))


def _targets(kind: FaultKind, where: FaultTargets) -> tuple[str, ...]:
    if kind in _NODES:
        return where.nodes
    if kind in _REGIONS:
        return where.regions
    if kind in _ZONES:
        return where.zones
    if kind in _TENANTS:
        return where.tenants
    if kind is FaultKind.CACHES_STALE:
        kinds = ("Replica", "SchedulingRequest")
        return (GLOBAL, *where.regions, *(f"{region}/{kind}" for region in where.regions for kind in kinds))
    if kind in (FaultKind.CLOCK_STEP, FaultKind.CLOCK_DRIFT, FaultKind.CLOCK_WILD):
        return (GLOBAL, *where.regions, *where.nodes)
    if kind in (FaultKind.NEXT_RELEASE, FaultKind.FORMER_RELEASE):
        cells = (GLOBAL, *where.regions)
        return (*cells * max(1, len(where.nodes) // len(cells)), *where.nodes)  # cells as often as nodes
    return (GLOBAL, *where.regions)


def _amount(kind: FaultKind, rng: random.Random) -> float:
    if kind is FaultKind.CLOCK_STEP:
        return rng.choice((-1.0, 1.0)) * 10 ** rng.uniform(-1.0, 2.5)
    if kind is FaultKind.CLOCK_DRIFT:
        # Leases tolerate CLOCK_DRIFT between two clocks, so each clock may deviate by half of it.
        return 1.0 + rng.uniform(-0.49, 0.49) * limits.CLOCK_DRIFT
    if kind is FaultKind.CLOCK_WILD:
        return 1.0 + rng.choice((-1.0, 1.0)) * rng.uniform(0.03, 0.3)
    if kind is FaultKind.CRASH_AT_AWAIT:
        return float(rng.randint(1, 400))
    if kind is FaultKind.TIMEOUT_AT:
        return float(rng.choice((-1, 1)) * rng.randint(1, 60))
    if kind is FaultKind.QUOTA_CHANGED:
        return rng.choice((0.5, 0.75, 1.25))
    return rng.random()


async def inject_scheduled(simulation: Simulation, fault: ScheduledFault) -> None:
    """Waits until the fault's time, injects it and ends it."""
    await asyncio.sleep(fault.at_s)
    if simulation.faults.healed or not simulation.faults.allows(fault.name):
        return
    simulation.faults.record(fault.kind, fault.name, _detail(fault))
    try:
        await _inject(simulation, fault)
    except Fault:
        return  # an operator's request was refused or its response was lost: the fault has no effect
    if fault.kind not in _FELT_LATER:
        simulation.faults.effective_counts[fault.kind] += 1


def _detail(fault: ScheduledFault) -> str:
    """Target and duration or amount, for the failure report."""
    if fault.kind is FaultKind.POLICY_CHANGED:
        return operators.describe_policy_change(fault.amount)
    if fault.kind in _BY_AMOUNT:
        return f"{fault.target}, {fault.amount:.4g}"
    return fault.target if fault.kind in _AT_ONCE else f"{fault.target}, for {fault.for_s:.1f} s"


_BY_AMOUNT = frozenset(
    {
        FaultKind.CLOCK_STEP,
        FaultKind.CLOCK_DRIFT,
        FaultKind.CLOCK_WILD,
        FaultKind.CRASH_AT_AWAIT,
        FaultKind.TIMEOUT_AT,
        FaultKind.QUOTA_CHANGED,
        FaultKind.REPLICA_DELETED,
    }
)
_FELT_LATER = frozenset({FaultKind.TIMEOUT_AT, FaultKind.CRASH_AT_AWAIT, FaultKind.DISK_FULL})
"""Faults that take effect later, at a commit or step."""
_AT_ONCE = frozenset(
    {
        FaultKind.BURST,
        FaultKind.NODE_DELETED,
        FaultKind.TENANT_DELETED,
        FaultKind.COMPACTION,
        FaultKind.RECORD_LOST,
        FaultKind.RECORD_DELETED,
    }
)


async def _inject(simulation: Simulation, fault: ScheduledFault) -> None:
    match fault.kind:
        case (
            FaultKind.CELL_CRASH
            | FaultKind.CELL_PAUSE
            | FaultKind.CRASH_AT_AWAIT
            | FaultKind.TIMEOUT_AT
            | FaultKind.STORE_DOWN
            | FaultKind.DISK_FULL
            | FaultKind.COMPACTION
            | FaultKind.OVERLOAD
        ):
            await _to_cell(simulation.cell(fault.target), fault)
        case FaultKind.AGENT_CRASH | FaultKind.AGENT_PAUSE | FaultKind.NODE_LOSS:
            await _to_agent(simulation.agent(fault.target), fault)
        case FaultKind.ROLLING_RESTART:
            for cell in simulation.cells():
                cell.crash()
                await asyncio.sleep(0.5 + fault.amount)
                cell.boot()
                await asyncio.sleep(fault.for_s / 4)
        case FaultKind.ZONE_LOSS:
            await _power_cut([a for a in simulation.agents if a.zone == fault.target], [], fault.for_s)
        case FaultKind.REGION_LOSS:
            region = simulation.cell(fault.target)
            await _power_cut([a for a in simulation.agents if a.region is region], [region], fault.for_s)
        case FaultKind.REGION_RETURNS_STALE:
            await _return_with_stale_status(simulation, fault)
        case FaultKind.REGION_CUT_OFF:
            await operators.widen_quotas(simulation, fault)
            async with asyncio.TaskGroup() as group:
                group.create_task(_cut(simulation, _paths(simulation, fault), fault.for_s))
                group.create_task(operators.delete_replicas_in_turn(simulation, fault, limits.GRANT_LEASE_S))
        case (
            FaultKind.LINK_CUT
            | FaultKind.LINK_CUT_ONE_WAY
            | FaultKind.AGENT_CUT
            | FaultKind.AGENT_CUT_ONE_WAY
            | FaultKind.REGION_ISOLATED
        ):
            await _cut(simulation, _paths(simulation, fault), fault.for_s)
        case FaultKind.CLOCK_STEP:
            simulation.clock(fault.target).step_s += fault.amount
        case FaultKind.CLOCK_DRIFT:
            simulation.clock(fault.target).drift(fault.amount)
        case FaultKind.CLOCK_WILD:
            # The invariants assume clocks within the bound, so S7 is not checked for leases on this clock.
            simulation.checkers.exclude_clock(fault.target)
            simulation.clock(fault.target).drift(fault.amount)
        case FaultKind.CACHES_STALE:
            simulation.faults.stall_caches(fault.target, fault.for_s)
        case FaultKind.NODE_BROKEN:
            simulation.agent(fault.target).machine.start_disabled = True
            await asyncio.sleep(fault.for_s)
            simulation.agent(fault.target).machine.start_disabled = False
        case FaultKind.NEXT_RELEASE:
            await _as_release(simulation, fault, ReleaseVersion.NEXT)
        case FaultKind.FORMER_RELEASE:
            await _as_release(simulation, fault, ReleaseVersion.PREVIOUS)
        case kind if kind in LOST_STORES:
            await simulation.stores.lose(fault)
        case FaultKind.RECORD_LOST:
            await lost_stores.lose_record(simulation, fault)
        case FaultKind.NODE_SHRINKS:
            await simulation.agent(fault.target).shrink(fault.for_s)
        case _:
            await operators.apply_operator_fault(simulation, fault)


async def _to_cell(cell: CellHost, fault: ScheduledFault) -> None:
    match fault.kind:
        case FaultKind.CELL_CRASH:
            cell.crash()
            await asyncio.sleep(fault.for_s)
            cell.boot()
        case FaultKind.CELL_PAUSE:
            cell.pause(fault.for_s)
        case FaultKind.CRASH_AT_AWAIT:
            cell.crash_after_steps(int(fault.amount))
        case FaultKind.TIMEOUT_AT:
            cell.disk.timeout_at_commit = int(fault.amount)
        case FaultKind.OVERLOAD:
            cell.overloaded = True
            await asyncio.sleep(fault.for_s)
            cell.overloaded = False
        case FaultKind.STORE_DOWN:
            cell.disk.unavailable = True
            await asyncio.sleep(fault.for_s)
            cell.disk.unavailable = False
        case FaultKind.DISK_FULL:
            # The store fails at its next write. Later an operator frees disk space and restarts the cell.
            cell.disk.full = True
            await asyncio.sleep(fault.for_s)
            cell.disk.full = False
            if cell.store_failed:
                cell.crash()
                cell.boot()
        case FaultKind.COMPACTION:
            await cell.disk.store.compact(cell.disk.store.head)


async def _to_agent(agent: AgentHost, fault: ScheduledFault) -> None:
    match fault.kind:
        case FaultKind.AGENT_PAUSE:
            agent.pause(fault.for_s)
            return
        case FaultKind.NODE_LOSS:
            agent.lose_power()
        case _:
            agent.crash()
    await asyncio.sleep(fault.for_s)
    agent.boot()


async def _as_release(simulation: Simulation, fault: ScheduledFault, release: ReleaseVersion) -> None:
    """Restarts the host as another release and later as the current one, both on the same disk."""
    host = simulation.host(fault.target)
    host.switch_release(release)
    await asyncio.sleep(fault.for_s)
    if not (simulation.faults.healed and simulation.keeps_mixed_releases):
        host.switch_release(ReleaseVersion.CURRENT)


async def _power_cut(agents: list[AgentHost], cells: list[CellHost], for_s: float) -> None:
    for agent in agents:
        agent.lose_power()
        agent.held_down = True
    for cell in cells:
        cell.crash()
        cell.held_down = True
    await asyncio.sleep(for_s)
    hosts: list[CellHost | AgentHost] = [*cells, *agents]
    for host in hosts:
        host.held_down = False
        host.boot()


async def _return_with_stale_status(simulation: Simulation, fault: ScheduledFault) -> None:
    """Loss of a region with critical work, which returns healthy: its nodes register, but start tasks very slowly, and
    the statuses of its Assignments do not reach the global cell. `target` is used if no region has critical work."""
    assignments = (a for key, a in simulation.checkers.state(GLOBAL).items() if key.startswith("/assignments/"))
    serving = {a.spec.region: None for a in assignments if a.status.serving and a.spec.workload.startswith("critical")}
    region = simulation.cell(next(iter(serving), fault.target))
    nodes = [agent for agent in simulation.agents if agent.region is region]
    for_s = STALE_STATUS_S * (1.0 + fault.amount / 2)
    simulation.faults.stall_caches(f"region/{region.name}/Assignment", fault.for_s + for_s)
    for agent in nodes:
        agent.machine.start_delay_s = for_s
    await _power_cut(nodes, [region], fault.for_s)
    await asyncio.sleep(for_s)
    for agent in nodes:
        agent.machine.start_delay_s = 0.0


def _paths(simulation: Simulation, fault: ScheduledFault) -> list[tuple[str, str]]:
    """The network directions that the fault blocks."""
    if fault.kind in (FaultKind.AGENT_CUT, FaultKind.AGENT_CUT_ONE_WAY):
        agent = simulation.agent(fault.target)
        both = [(agent.caller, agent.region.name), (agent.region.name, agent.caller)]
    else:
        both = [(f"region/{fault.target}", GLOBAL), (GLOBAL, f"region/{fault.target}")]
    if fault.kind in (FaultKind.LINK_CUT_ONE_WAY, FaultKind.AGENT_CUT_ONE_WAY):
        return [both[fault.amount < 0.5]]
    if fault.kind is FaultKind.REGION_ISOLATED:
        callers = [a.caller for a in simulation.agents if a.region.name == fault.target] + ["operator"]
        both += [path for caller in callers for path in ((caller, fault.target), (fault.target, caller))]
    return both


async def _cut(simulation: Simulation, paths: list[tuple[str, str]], for_s: float) -> None:
    for source, target in paths:
        simulation.network.cut(source, target)
    await asyncio.sleep(for_s)
    for source, target in paths:
        simulation.network.restore(source, target)
