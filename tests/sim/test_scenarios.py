"""The declared scenarios load, and go well; a failing world can be shrunk to the faults that matter."""

from __future__ import annotations

import pytest

from holdfast.sim import runs, scenario, story
from holdfast.sim.mutations import planted
from holdfast.sim.shrink import shrink
from holdfast.sim.world import Shape

SMALL = Shape(nodes_per_region=2, faults_s=60.0, stable_s=60.0)


@pytest.mark.parametrize("name", scenario.names())
def test_a_scenario_says_what_it_is(name: str) -> None:
    declared = scenario.load(name)
    assert declared.says.endswith(".")
    assert list(declared.variants())


@pytest.mark.slow
@pytest.mark.parametrize("name", scenario.names())
def test_a_scenario_goes_well(name: str) -> None:
    runs.quiet()
    for title, outcome in scenario.play(scenario.load(name), seed=1):
        assert outcome.ok, "\n".join([title, story.headline(outcome), *story.complaints(outcome)])


@pytest.mark.slow
def test_a_failing_world_shrinks_to_what_matters_and_tells_its_story() -> None:
    runs.quiet()
    with planted("quota-left-out"):
        found = shrink(1, SMALL)
    assert found is not None
    assert not found.faults, "this bug needs no fault at all"
    told = list(story.timeline(found.outcome, found.telling))
    assert any("/grantcopies/" in line for line in told)
    assert any(line.startswith("S3 broken") for line in story.complaints(found.outcome))
