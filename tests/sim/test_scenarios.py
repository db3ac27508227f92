"""The declared scenarios load, say what they expect, and go well; a failing world shrinks to a story that says why."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.lifecycle import TRANSITIONS
from holdfast.model.reasons import Reason
from holdfast.sim import failure_report, parallel_runs, scenario_files, scenario_runs, single_run
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.scenario_files import (
    Scenario,
    ScenarioExpectations,
    ServingExpectation,
    WorldSize,
    load_scenario,
    scenario_names,
)
from holdfast.sim.shrink import RunSpec, shrink

# What they say is shown by all of their variants, not by one.
SWEPT = ("leader-dies-at-awaits", "timeout-at-every-commit")
STEPS = {f"{t.source} → {t.target}" for t in TRANSITIONS}


@pytest.mark.parametrize("name", scenario_names())
def test_a_scenario_says_what_it_is_and_what_it_expects(name: str) -> None:
    declared = load_scenario(name)
    expects = declared.expects
    assert declared.description.endswith(".")
    assert list(declared.variants())
    assert expects.reasons or expects.transitions or expects.serving, "a scenario that expects nothing cannot fail"
    assert {*expects.reasons, *expects.absent_reasons} <= {reason.value for reason in Reason}
    assert set(expects.transitions) <= STEPS


@pytest.mark.slow
@pytest.mark.parametrize("name", scenario_names())
def test_a_scenario_goes_well(name: str) -> None:
    """Its first variant at every change, or all that it lists; those of long runs in make prove."""
    parallel_runs.silence_logs()
    for played in scenario_runs.run_variants(load_scenario(name), seed=1):
        assert played.ok, "\n".join([played.title, failure_report.headline(played.outcome), *played.failure_lines()])
        if name not in SWEPT:
            break


@pytest.mark.slow
def test_one_more_scenario_leaves_nearly_all_seeds_the_worlds_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def bases() -> dict[int, str]:
        return {seed: base.title for seed in range(1, 1500) if (base := scenario_files.base_scenario(seed)) is not None}

    assert set(scenario_files.DRAWN_SCENARIOS) <= set(scenario_files.scenario_names())
    before, known, load = bases(), scenario_files.scenario_names(), scenario_files.load_scenario
    monkeypatch.setattr(scenario_files, "scenario_names", lambda: [*known, "newest"])
    monkeypatch.setattr(scenario_files, "load_scenario", lambda name: load("zone-lost" if name == "newest" else name))
    after = bases()
    assert before.keys() == after.keys()
    moved = {seed for seed in before if before[seed] != after[seed]}
    assert moved and len(moved) < len(before) / 10
    assert {after[seed] for seed in moved} == {"zone-lost"}


@pytest.mark.slow
@pytest.mark.parametrize("name", scenario_files.SEPARATE_FRACTIONS)
def test_what_hardly_any_world_shows_has_a_share_of_all_seeds(name: str) -> None:
    seeds = range(1, 1500)
    begun = [seed for seed in seeds if (base := scenario_files.base_scenario(seed)) is not None and base.title == name]
    assert name in scenario_files.scenario_names() and name not in scenario_files.DRAWN_SCENARIOS
    assert (
        scenario_files.SEPARATE_FRACTIONS[name] / 2
        < len(begun) / len(seeds)
        < scenario_files.SEPARATE_FRACTIONS[name] * 2
    )


def test_a_scenario_that_does_not_show_what_it_should_fails() -> None:
    parallel_runs.silence_logs()
    quiet = Scenario("quiet", "Nothing happens.", ScenarioExpectations())
    hopes = ScenarioExpectations(
        reasons=("RegionLost",), absent_reasons=("Assigned",), transitions=("Serving → Unknown",),
        serving=(ServingExpectation("acme/api", 99, 30.0),), converges_within_s=-1.0,
    )  # fmt: skip
    shape = WorldSize(nodes_per_region=2, faults_s=20.0, stable_s=10.0, profiles=("service", "batch"))
    (played,) = scenario_runs.run_variants(msgspec.structs.replace(quiet, expects=hopes, size=shape), seed=1)
    assert played.outcome.ok and not played.ok
    assert len(played.unmet) == 5, played.unmet


def race() -> RunSpec:
    """A small world that fails with `proposal-applied-twice` planted."""
    declared = load_scenario("duplicate-reservation-race")
    ((_, planned),) = declared.variants()
    return RunSpec(1, declared.size_for(planned), declared.operation_faults, planned)


@pytest.mark.slow
def test_a_failing_world_shrinks_to_what_matters_and_tells_its_story() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("proposal-applied-twice"):
        found = shrink(race())
    assert found is not None
    assert len(found.faults) == 1 and found.faults[0].startswith("call delivered twice@")
    assert 1 <= len(found.user_actions) <= 4, "and only little work"
    told = list(failure_report.timeline(found.outcome, found.recording))
    assert any(": created, for replica " in line for line in told)
    assert told[-1].startswith("! ") and len(told) < 20
    assert any(line.startswith("S1 broken") for line in failure_report.failure_lines(found.outcome))


@pytest.mark.slow
def test_a_search_for_a_smaller_story_is_bounded_and_says_so() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("proposal-applied-twice"):
        found = shrink(race(), time_max_s=0.0)
    assert found is not None
    assert found.runs == 1 and "there may be a smaller story" in found.cut_short


@pytest.mark.slow
def test_a_failing_seed_tells_how_to_see_it_again() -> None:
    parallel_runs.silence_logs()
    said: list[str] = []
    assert (
        single_run.run_seed(single_run.SingleRunOptions(1, mutation="quota-check-skipped", shrink_s=20.0), said.append)
        == 1
    )
    text = "\n".join(said)
    assert "The smallest story" in text and "what it takes " in text
    assert "python -m holdfast.sim --seed 1 --mutation quota-check-skipped --whole" in text
