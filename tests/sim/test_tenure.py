"""Exclusive work of scope Global in worlds whose regions are cut off: it moves, and never runs in two at once."""

from __future__ import annotations

import os

import pytest

from holdfast.model.tenure import needs_tenure
from holdfast.sim import failure_report, parallel_runs, scenario_runs
from holdfast.sim.checkers.checker_set import CheckerSet
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.simulation import RunOutcome, Simulation

pytestmark = pytest.mark.slow
SHORT, LONG = 0, 3


def lived(variant: int, seed: int) -> tuple[RunOutcome, CheckerSet]:
    parallel_runs.silence_logs()
    declared = scenario_runs.load_scenario("tenure")
    _, planned = list(declared.variants())[variant]
    world = Simulation(seed, declared.size, enabled=declared.operation_faults, planned=planned)
    court = world.checkers
    return world.run(), court


@pytest.mark.parametrize("variant", [SHORT, LONG])
def test_no_ordinal_runs_twice_and_what_was_cut_off_is_run_elsewhere(variant: int) -> None:
    outcome, court = lived(variant, seed=1)
    broken = [v for v in outcome.violations if v.invariant.startswith("S")]
    assert not broken and not outcome.unconverged, "\n".join(failure_report.failure_lines(outcome))
    moves = [
        e for e in court.history.matching("/assignments/acme/")
        if e.cell == "global" and e.new is not None and e.old is not None and needs_tenure(e.new.spec.exclusive)
        and e.old.spec.ordinals and not e.new.spec.ordinals
    ]  # fmt: skip
    assert moves, "at least one region had its ordinals taken away"
    assert all(e.new.spec.withdrawal is not None for e in moves if not e.new.metadata.terminating)


@pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="a search over several worlds: make prove runs it")
@pytest.mark.parametrize("bug", ["tenure-wait-skipped", "tenure-ignored"])
def test_a_planted_mistake_is_seen(bug: str) -> None:
    for seed in range(1, 7):
        with applied_mutation(bug):
            outcome, _ = lived(LONG, seed)
        if any(v.invariant == "S7" for v in outcome.violations):
            return
    pytest.fail(f"{bug} was not seen")
