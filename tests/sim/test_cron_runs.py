"""CronWorkloads under drawn leader changes, clock faults and lost regions: one run per tick, no tick silently missed.

The checker of every simulation (`sim/checkers/cron_runs.py`) compares each commit with its own count of the ticks.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from holdfast.model.cron_workload import CronWorkload
from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.fault_injection import FaultKind
from holdfast.sim.fault_schedule import ScheduledFault
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.scenario_files import load_scenario
from holdfast.sim.shrink import RunSpec, run_to_result
from holdfast.sim.simulation import RunOutcome, RunRecording

pytestmark = pytest.mark.slow

GLOBAL = "global"
FAULTS_S = 420.0
SEEDS = range(1, 7)
OPERATIONS = (
    FaultKind.CRASH_BEFORE,
    FaultKind.CRASH_AFTER,
    FaultKind.PAUSE_BEFORE,
    FaultKind.PAUSE_AFTER,
    FaultKind.LATE_COMMIT,
    FaultKind.TIMEOUT_AFTER,
    FaultKind.CONFLICT,
    FaultKind.WATCH_DELAY,
    FaultKind.WATCH_DUPLICATE,
)
LEADER = (FaultKind.CELL_CRASH, FaultKind.CELL_PAUSE, FaultKind.CRASH_AT_AWAIT, FaultKind.STORE_DOWN)
STEPS_S = (-150.0, -61.0, -5.0, 5.0, 61.0, 150.0)


def drawn_faults(seed: int) -> tuple[ScheduledFault, ...]:
    """The leader of the global cell changes at each tick (one a minute), its clock steps, and a region is lost."""
    rng = random.Random(seed)
    region = rng.choice(("east", "west"))
    found = [(FaultKind.REGION_LOSS, region, rng.uniform(50.0, 200.0), rng.uniform(60.0, 200.0), 0.0)]
    for tick in range(60, 420, 60):
        steps = float(rng.randrange(1, 200))
        at_s = tick + rng.uniform(-3.0, 1.0)
        found.append((rng.choice(LEADER), GLOBAL, at_s, rng.choice((2.0, 15.0, 75.0)), steps))
    found += [
        (FaultKind.CLOCK_STEP, GLOBAL, float(at_s), 0.0, rng.choice(STEPS_S)) for at_s in rng.sample(range(50, 400), 3)
    ]
    return tuple(
        ScheduledFault(f"{kind}#c{number}", kind, at_s, target, for_s, amount)
        for number, (kind, target, at_s, for_s, amount) in enumerate(found, 1)
    )


def played(seed: int) -> tuple[RunOutcome, RunRecording]:
    size = msgspec.structs.replace(load_scenario("cron-and-region-loss").size, faults_s=FAULTS_S)
    return run_to_result(RunSpec(seed, size, OPERATIONS, drawn_faults(seed)).simulation())


def runs_elsewhere(seed: int, recording: RunRecording) -> int:
    """Tasks of runs that were created in the other region while one was lost."""
    lost = drawn_faults(seed)[0]
    began = next(fault.at_s for fault in recording.injected if fault.name == lost.name)
    return sum(
        event.old is None and event.cell != lost.target and began < event.at_s < began + lost.for_s
        for event in recording.history.matching("/replicas/acme/cron-")
    )


def leaders(recording: RunRecording) -> int:
    leases = recording.history.matching("/leases/holdfast-system/controllers")
    return len({event.new.spec.lease_transitions for event in leases if event.cell == GLOBAL and event.new is not None})


def missed(recording: RunRecording) -> int:
    counts: dict[str, int] = {}
    for event in recording.history.matching("/cronworkloads/"):
        if isinstance(event.new, CronWorkload) and event.new.status.missed is not None:
            counts[event.key] = event.new.status.missed.count
    return sum(counts.values())


def test_every_tick_has_one_run_or_a_counted_miss_whatever_fails() -> None:
    parallel_runs.silence_logs()
    elsewhere = ticks_missed = 0
    for seed in SEEDS:
        outcome, recording = played(seed)
        assert outcome.ok, "\n".join([f"seed {seed}", *failure_report.failure_lines(outcome)])
        assert leaders(recording) > 3, f"seed {seed}: the leader of the global cell hardly changed"
        started = [e for e in recording.history.matching("/workloads/acme/cron-") if e.old is None]
        assert started, f"seed {seed}: no tick had a run"
        elsewhere += runs_elsewhere(seed, recording)
        ticks_missed += missed(recording)
    assert elsewhere >= len(SEEDS) and ticks_missed >= len(SEEDS), (elsewhere, ticks_missed)


@pytest.mark.parametrize("mutation", ["cron-decided-by-clock", "cron-miss-unsaid", "cron-tick-after-run"])
def test_broken_schedule_is_found_under_these_faults(mutation: str) -> None:
    parallel_runs.silence_logs()
    with applied_mutation(mutation):
        found = (violation.invariant for seed in SEEDS for violation in played(seed)[0].violations)
        assert "ticks" in found
