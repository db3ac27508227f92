"""The races that ship as examples (docs/races.md): each goes well as the code is, and fails with its bug planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.sim import runs, scenario, story
from holdfast.sim.declared import load, names
from holdfast.sim.mutations import MUTATIONS, planted

EXAMPLES = {"duplicate-reservation-race": "S1", "rollback-race": "S10"}
PAGE = Path(__file__).parents[2] / "docs" / "races.md"


def test_every_scenario_made_for_a_bug_is_an_example_and_is_told() -> None:
    made = {name: load(name).bug for name in names() if load(name).bug}
    assert set(made) == set(EXAMPLES)
    assert set(made.values()) <= {mutation.name for mutation in MUTATIONS}
    page = PAGE.read_text()
    for name, bug in made.items():
        assert f"python -m holdfast.sim --scenario {name} --plant {bug}" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_race_is_lost_only_with_its_bug_and_always_in_the_same_way(name: str) -> None:
    runs.quiet()
    declared = load(name)
    (well,) = scenario.play(declared, seed=1)
    assert well.ok, "\n".join(well.complaints())
    lost = []
    for _ in range(2):
        with planted(declared.bug):
            lost += scenario.play(declared, seed=1)
    assert [played.outcome.violations[0].promise for played in lost] == [EXAMPLES[name]] * 2
    assert len({played.outcome.digest for played in lost}) == 1, "a replay is the same to the byte"
    stories = {"\n".join(story.timeline(played.outcome, played.telling)) for played in lost}
    assert len(stories) == 1
    (again,) = scenario.play(declared, seed=1)
    assert again.outcome.digest == well.outcome.digest
