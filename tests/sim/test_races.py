"""The example races (docs/races.md): each passes with the current code and fails with its mutation."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.sim import failure_report, parallel_runs, scenario_runs
from holdfast.sim.mutations import MUTATIONS, applied_mutation
from holdfast.sim.scenario_files import load_scenario, scenario_names

EXAMPLES = {"duplicate-reservation-race": "S1", "rollback-race": "S10"}
PAGE = Path(__file__).parents[2] / "docs" / "races.md"


def test_every_mutation_scenario_is_a_documented_race() -> None:
    made = {name: load_scenario(name).mutation for name in scenario_names() if load_scenario(name).mutation}
    assert set(made) == set(EXAMPLES)
    assert set(made.values()) <= {mutation.name for mutation in MUTATIONS}
    page = PAGE.read_text()
    for name, mutation in made.items():
        assert f"python -m holdfast.sim --scenario {name} --mutation {mutation}" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_race_fails_only_with_its_mutation_and_deterministically(name: str) -> None:
    parallel_runs.silence_logs()
    declared = load_scenario(name)
    (plain,) = scenario_runs.run_variants(declared, seed=1)
    assert plain.ok, "\n".join(plain.failure_lines())
    failed: list[scenario_runs.ScenarioRun] = []
    for _ in range(2):
        with applied_mutation(declared.mutation):
            failed += scenario_runs.run_variants(declared, seed=1)
    assert [played.outcome.violations[0].invariant for played in failed] == [EXAMPLES[name]] * 2
    assert len({played.outcome.digest for played in failed}) == 1, "a replay is identical"
    timelines = {"\n".join(failure_report.timeline(played.outcome, played.recording)) for played in failed}
    assert len(timelines) == 1
    (again,) = scenario_runs.run_variants(declared, seed=1)
    assert again.outcome.digest == plain.outcome.digest
