"""Simulation sizes and scenarios, read from TOML (`sim/scenarios/*.toml`).

A scenario declares the size, scheduled faults, operation faults, expectations, and values to sweep for its first fault.
The seed decides everything else. Some seeds of the ordinary run start from a scenario and add drawn faults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from holdfast.model.scheduler_policy import PartitionMode
from holdfast.sim.fault_injection import FaultKind
from holdfast.sim.fault_schedule import ScheduledFault
from holdfast.sim.ports import random_stream

FAULT_TAIL_S = 20.0
SCENARIO_FRACTION = 0.15
"""Share of the seeds that start from a scenario."""
DRAWN_SCENARIOS = (
    "autoscaler-under-low-readiness",
    "cut-off",
    "cut-off-provisional",
    "drained-in-turn",
    "duplicate-reservation-race",
    "late-commits",
    "leader-dies-at-awaits",
    "leader-dies-at-commits",
    "leases-run-out",
    "lost-answers",
    "override-by-skewed-clock",
    "override-expires",
    "policy-in-the-middle",
    "recovery-crowded",
    "region-lost-and-recovered",
    "region-lost-then-nodes",
    "repair-in-incident",
    "rollback-race",
    "skewed-clocks",
    "stale-scheduler-and-drain",
    "tenure",
    "timeout-at-every-commit",
    "watches-expire",
    "work-ends-unheard",
    "zombie-returns",
    "zone-lost",
)
"""Scenarios that seeds draw from, by position. Any other scenario takes its own share of these seeds, so that a new
scenario leaves nearly all seeds unchanged, including the recorded seeds of past bugs."""
SEPARATE_FRACTIONS = {
    "failures-unheard": 0.02,
    "stale-failback": 0.02,
    "cron-and-region-loss": 0.02,
    "array-loses-region": 0.02,
    "maintenance-and-region-loss": 0.01,
}
"""Scenarios that exercise something rare, with their share of all seeds. Each has its own draw."""
NO_RESYNC_FRACTION = 0.1
"""Share of the other seeds without resync, in which a lost wakeup is never repaired and so becomes visible."""

CROWDED_FRACTION = 0.04
CROWDED_NODES = 4
"""Share of the other seeds with few nodes, so that work is preempted, reclaimed and pending."""


class SimulationSize(msgspec.Struct, frozen=True):
    """Size of a simulation, length of its fault phase, and time limit of convergence."""

    regions: tuple[str, ...] = ("east", "west")
    tenants: tuple[str, ...] = ("acme", "globex")
    nodes_per_region: int = 12
    faults_s: float = 150.0
    convergence_timeout_s: float = 600.0
    stable_s: float = 300.0
    profiles: tuple[str, ...] | None = None
    """Workload profiles (`sim/workload_profiles.py`); None draws them from the seed."""
    partition_mode: PartitionMode = PartitionMode.WAIT
    users_active: bool = True
    """Whether users change workloads during the fault phase."""
    watches_enabled: bool = True
    """Whether watches deliver events. Without them all changes are found by periodic lists."""
    resync_enabled: bool = True
    """Whether informers resync. Without resync no wakeup may be lost."""
    rebalances: bool = False
    maintenance: bool = False
    """Whether MaintenanceWindows take effect. Off unless a run has them: recorded seeds keep their histories."""
    """Whether regions move running replicas for a more even spread. Off: recorded seeds keep their histories."""
    crons: bool = False
    """Whether users have CronWorkloads. Only in scenarios."""


class DeclaredFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scheduled fault in a scenario file."""

    kind: FaultKind
    target: str
    at_s: float = 10.0
    for_s: float = 10.0
    amount: float = 0.5


class ServingExpectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At `by_s` after the start of the run, the workload must have at least `at_least` serving replicas."""

    workload: str
    at_least: int
    by_s: float


class ScenarioExpectations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run of the scenario must exercise, in addition to all invariants and convergence.

    Every declared fault must be injected, and at least one operation fault. `transitions` are stage transitions of
    replicas ("Serving → Unknown").
    """

    reasons: tuple[str, ...] = ()
    absent_reasons: tuple[str, ...] = ()
    transitions: tuple[str, ...] = ()
    serving: tuple[ServingExpectation, ...] = ()
    converges_within_s: float = 300.0
    """Limit of the time to converge, without the time in which only work ran that was rightly pending before."""
    recovers_within_s: float = 0.0
    """After each region loss, critical workloads must serve in another region within this time; 0: not checked."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first fault takes `durations_s`, `amounts` and `start_times_s` in turn. Long runs also use `long_run_values`
    and every whole amount up to `long_run_amounts_to`."""

    name: str
    description: str
    expects: ScenarioExpectations = msgspec.field(default_factory=ScenarioExpectations)
    size: SimulationSize = msgspec.field(default_factory=SimulationSize)
    faults: tuple[DeclaredFault, ...] = ()
    operation_faults: tuple[FaultKind, ...] = ()
    durations_s: tuple[float, ...] = ()
    amounts: tuple[float, ...] = ()
    start_times_s: tuple[float, ...] = ()
    long_run_values: tuple[float, ...] = ()
    long_run_amounts_to: int = 0
    mutation: str = ""
    """The mutation (`sim/mutations`) that this scenario catches, for documented examples."""

    def variants(self, *, every: bool = False) -> Iterator[tuple[str, tuple[ScheduledFault, ...]]]:
        """Title and faults of each variant. `every` adds the variants of long runs."""
        rows = self._rows()
        if not rows:
            yield self.name, ()
            return
        first, others = rows[0], rows[1:]
        swept = [("for_s", " s", self.durations_s), ("amount", "", self.amounts), ("at_s", " s in", self.start_times_s)]
        found = False
        for field, unit, values in swept:
            long = (*self.long_run_values, *range(1, self.long_run_amounts_to + 1)) if values and every else ()
            for value in dict.fromkeys((*values, *long)):
                found = True
                changed = msgspec.structs.replace(first, **{field: value})
                yield f"{self.name} ({value:g}{unit})", (changed, *others)
        if not found:
            yield self.name, (first, *others)

    def size_for(self, planned: tuple[ScheduledFault, ...]) -> SimulationSize:
        """The size with a fault phase that is long enough for the longest fault."""
        needed_s = max((t.at_s + t.for_s + FAULT_TAIL_S for t in planned), default=0.0)
        longer = self.durations_s and needed_s > self.size.faults_s
        return msgspec.structs.replace(self.size, faults_s=needed_s) if longer else self.size

    def _rows(self) -> list[ScheduledFault]:
        return [
            ScheduledFault(f"{row.kind}#s{number}", row.kind, row.at_s, row.target, row.for_s, row.amount)
            for number, row in enumerate(self.faults, 1)
        ]


@cache
def load_scenario(name: str) -> Scenario:
    text = (files("holdfast.sim") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")
    settings: dict[str, Any] = tomllib.loads(text)
    return msgspec.convert({"name": name, **settings}, Scenario)


def scenario_names() -> list[str]:
    folder = files("holdfast.sim") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


class ScenarioVariant(msgspec.Struct, frozen=True):
    """The scenario variant that a seed starts from."""

    title: str
    size: SimulationSize
    faults: tuple[ScheduledFault, ...]
    operation_faults: frozenset[FaultKind]


def base_scenario(seed: int) -> ScenarioVariant | None:
    rng = random_stream(seed, "base")
    own = next(
        (name for name, share in SEPARATE_FRACTIONS.items() if random_stream(seed, f"begins/{name}").random() < share),
        "",
    )
    if rng.random() >= SCENARIO_FRACTION and not own:
        return None
    scenario = load_scenario(own or _chosen(seed, rng.choice(DRAWN_SCENARIOS)))
    title, faults = rng.choice(list(scenario.variants()))
    return ScenarioVariant(title, scenario.size_for(faults), faults, frozenset(scenario.operation_faults))


def _chosen(seed: int, drawn: str) -> str:
    others = (name for name in scenario_names() if name not in DRAWN_SCENARIOS and name not in SEPARATE_FRACTIONS)
    return next(
        (name for name in others if random_stream(seed, f"base/{name}").random() < 1 / len(DRAWN_SCENARIOS)), drawn
    )


def drawn_size(seed: int) -> SimulationSize:
    """The size of a simulation that starts from no scenario."""
    size = SimulationSize(resync_enabled=random_stream(seed, "resyncing").random() >= NO_RESYNC_FRACTION)
    crowded = random_stream(seed, "crowded").random() < CROWDED_FRACTION
    return msgspec.structs.replace(size, nodes_per_region=CROWDED_NODES) if crowded else size
