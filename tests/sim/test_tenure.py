"""Exclusive workloads of scope Global in partitioned regions move, and never run in two regions at once."""

from __future__ import annotations

import os

import pytest

from holdfast.model.tenure import needs_tenure
from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.checkers.checker_set import CheckerSet
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.scenario_files import load_scenario
from holdfast.sim.simulation import RunOutcome, Simulation

pytestmark = pytest.mark.slow
SHORT, LONG = 0, 3


def run_variant(variant: int, seed: int) -> tuple[RunOutcome, CheckerSet]:
    parallel_runs.silence_logs()
    declared = load_scenario("tenure")
    _, planned = list(declared.variants())[variant]
    simulation = Simulation(seed, declared.size, enabled=declared.operation_faults, planned=planned)
    checkers = simulation.checkers
    return simulation.run(), checkers


@pytest.mark.parametrize("variant", [SHORT, LONG])
def test_partitioned_ordinal_runs_in_another_region_and_never_twice(variant: int) -> None:
    outcome, checkers = run_variant(variant, seed=1)
    violated = [v for v in outcome.violations if v.invariant.startswith("S")]
    assert not violated and not outcome.unconverged, "\n".join(failure_report.failure_lines(outcome))
    moves = [
        e
        for e in checkers.history.matching("/assignments/acme/")
        if e.cell == "global"
        and e.new is not None
        and e.old is not None
        and needs_tenure(e.new.spec.exclusive)
        and e.old.spec.ordinals
        and not e.new.spec.ordinals
    ]
    assert moves, "at least one region lost its ordinals"
    assert all(e.new.spec.withdrawal is not None for e in moves if not e.new.metadata.terminating)


@pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="searches several seeds; make prove runs it")
@pytest.mark.parametrize("mutation", ["tenure-wait-skipped", "tenure-ignored"])
def test_tenure_mutation_violates_s7(mutation: str) -> None:
    for seed in range(1, 7):
        with applied_mutation(mutation):
            outcome, _ = run_variant(LONG, seed)
        if any(v.invariant == "S7" for v in outcome.violations):
            return
    pytest.fail(f"{mutation} was not caught")
