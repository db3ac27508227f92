"""Partitions of a region that allows provisional placement: shorter and longer than its grant lease."""

from __future__ import annotations

import os

import pytest

from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.checkers.checker_set import CheckerSet
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.scenario_files import load_scenario
from holdfast.sim.simulation import RunOutcome, Simulation

pytestmark = pytest.mark.slow
SHORT, LONG = 0, 1
SEED = 1


def run_variant(variant: int, seed: int = SEED) -> tuple[RunOutcome, CheckerSet]:
    parallel_runs.silence_logs()
    declared = load_scenario("cut-off-provisional")
    _, planned = list(declared.variants())[variant]
    simulation = Simulation(seed, declared.size, enabled=declared.operation_faults, planned=planned)
    checkers = simulation.checkers
    return simulation.run(), checkers


def is_safe(outcome: RunOutcome) -> bool:
    """No safety invariant is violated and the run converged. Other invariants are checked by test_scenarios."""
    return not [v for v in outcome.violations if v.invariant.startswith("S")] and not outcome.unconverged


def test_partition_shorter_than_lease_creates_nothing_provisional() -> None:
    outcome, checkers = run_variant(SHORT, seed=3)
    assert is_safe(outcome), "\n".join(failure_report.failure_lines(outcome))
    made = [e for e in checkers.history.matching("/bindings/") if e.old is None and e.cell == "west"]
    assert not [e for e in made if e.new.spec.run_until]
    assert [e for e in made if 25 < e.at_s < 105], "the region keeps placing within its grant"


def test_long_partition_places_provisionally_and_confirms_afterwards() -> None:
    outcome, checkers = run_variant(LONG)
    assert is_safe(outcome), "\n".join(failure_report.failure_lines(outcome))
    bindings = checkers.history.matching("/bindings/")
    made = [e for e in bindings if e.old is None and e.new.spec.run_until]
    assert made and all(e.cell == "west" and 140 < e.at_s < 266 for e in made)
    ended = [e for e in bindings if e.old is not None and e.old.spec.run_until]
    settled = [e for e in ended if e.new is None or not e.new.spec.run_until]
    assert {e.key for e in made} == {e.key for e in settled}, "each was confirmed, withdrawn or expired"
    assert [e for e in settled if e.new is not None and e.at_s > 255], "one was confirmed after reconnection"
    waiting = [
        e
        for e in checkers.history.matching("/schedulingrequests/")
        if e.new is not None and any(r.reason == "NotAllowedWhilePartitioned" for r in e.new.status.reasons)
    ]
    assert waiting and all(e.cell == "west" for e in waiting), "other replicas wait with a reason"


@pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="searches several seeds; make prove runs it")
@pytest.mark.parametrize("mutation", ["grant-lease-renewed-from-cache", "provisional-share-ignored"])
def test_grant_lease_mutation_violates_s3(mutation: str) -> None:
    for seed in range(1, 5):
        with applied_mutation(mutation):
            outcome, _ = run_variant(LONG, seed)
        if outcome.violations:
            assert outcome.violations[0].invariant == "S3"
            return
    pytest.fail(f"{mutation} was not caught")
