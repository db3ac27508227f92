"""The races that ship as examples (docs/races.md): each goes well as the code is, and fails with its bug planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.sim import failure_report, parallel_runs, scenario_runs
from holdfast.sim.mutations import MUTATIONS, applied_mutation
from holdfast.sim.scenario_files import load_scenario, scenario_names

EXAMPLES = {"duplicate-reservation-race": "S1", "rollback-race": "S10"}
PAGE = Path(__file__).parents[2] / "docs" / "races.md"


def test_every_scenario_made_for_a_bug_is_an_example_and_is_told() -> None:
    made = {name: load_scenario(name).mutation for name in scenario_names() if load_scenario(name).mutation}
    assert set(made) == set(EXAMPLES)
    assert set(made.values()) <= {mutation.name for mutation in MUTATIONS}
    page = PAGE.read_text()
    for name, bug in made.items():
        assert f"python -m holdfast.sim --scenario {name} --mutation {bug}" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_race_is_lost_only_with_its_bug_and_always_in_the_same_way(name: str) -> None:
    parallel_runs.silence_logs()
    declared = load_scenario(name)
    (well,) = scenario_runs.run_variants(declared, seed=1)
    assert well.ok, "\n".join(well.failure_lines())
    lost = []
    for _ in range(2):
        with applied_mutation(declared.mutation):
            lost += scenario_runs.run_variants(declared, seed=1)
    assert [played.outcome.violations[0].promise for played in lost] == [EXAMPLES[name]] * 2
    assert len({played.outcome.digest for played in lost}) == 1, "a replay is the same to the byte"
    stories = {"\n".join(failure_report.timeline(played.outcome, played.telling)) for played in lost}
    assert len(stories) == 1
    (again,) = scenario_runs.run_variants(declared, seed=1)
    assert again.outcome.digest == well.outcome.digest
