"""The scenarios load, state expectations and meet them. A failing run shrinks to a short failure report."""

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
    SimulationSize,
    load_scenario,
    scenario_names,
)
from holdfast.sim.shrink import RunSpec, shrink

# Scenarios whose expectations need all of their variants.
SWEPT = ("leader-dies-at-awaits", "timeout-at-every-commit")
SEEDS = (1, 2, 3)
"""A scenario whose expectations hold with one seed only describes that seed."""
RUNS = [(name, seed) for number, name in enumerate(scenario_names()) for seed in (SEEDS[0], SEEDS[1 + number % 2])]
"""Two seeds of each scenario: all three would take five minutes of processor time more."""
STEPS = {f"{t.source} → {t.target}" for t in TRANSITIONS}


@pytest.mark.parametrize("name", scenario_names())
def test_scenario_has_description_and_expectations(name: str) -> None:
    declared = load_scenario(name)
    expects = declared.expects
    assert declared.description.endswith(".")
    assert list(declared.variants())
    assert expects.reasons or expects.transitions or expects.serving, "a scenario that expects nothing cannot fail"
    assert {*expects.reasons, *expects.absent_reasons} <= {reason.value for reason in Reason}
    assert set(expects.transitions) <= STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), RUNS)
def test_scenario_meets_its_expectations(name: str, seed: int) -> None:
    """Runs one variant, another with each seed, and with the first seed all variants of SWEPT. `make prove` runs all
    variants with all seeds."""
    parallel_runs.silence_logs()
    scenario = load_scenario(name)
    variants = [title for title, _ in scenario.variants()]
    sweeps = name in SWEPT and seed == SEEDS[0]
    chosen = variants if sweeps else [variants[SEEDS.index(seed) % len(variants)]]
    for played in scenario_runs.run_variants(scenario, seed, titles=chosen):
        if name in SWEPT and not sweeps:
            assert played.outcome.ok, "\n".join([played.title, *played.failure_lines()])
        else:
            headline = failure_report.headline(played.outcome)
            assert played.ok, "\n".join([played.title, headline, *played.failure_lines()])


def test_every_run_of_all_scenarios_uses_several_seeds() -> None:
    assert scenario_runs.SEEDS_PER_SCENARIO >= len(SEEDS) >= 3


@pytest.mark.slow
def test_new_scenario_changes_few_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_rare_scenario_gets_its_fraction_of_seeds(name: str) -> None:
    seeds = range(1, 1500)
    based = [seed for seed in seeds if (base := scenario_files.base_scenario(seed)) is not None and base.title == name]
    assert name in scenario_files.scenario_names() and name not in scenario_files.DRAWN_SCENARIOS
    assert (
        scenario_files.SEPARATE_FRACTIONS[name] / 2
        < len(based) / len(seeds)
        < scenario_files.SEPARATE_FRACTIONS[name] * 2
    )


def test_scenario_with_unmet_expectations_fails() -> None:
    parallel_runs.silence_logs()
    quiet = Scenario("quiet", "Nothing happens.", ScenarioExpectations())
    hopes = ScenarioExpectations(
        reasons=("RegionLost",),
        absent_reasons=("Assigned",),
        transitions=("Serving → Unknown",),
        serving=(ServingExpectation("acme/api", 99, 30.0),),
        converges_within_s=-1.0,
    )
    shape = SimulationSize(nodes_per_region=2, faults_s=20.0, stable_s=10.0, profiles=("service", "batch"))
    (played,) = scenario_runs.run_variants(msgspec.structs.replace(quiet, expects=hopes, size=shape), seed=1)
    assert played.outcome.ok and not played.ok
    assert len(played.unmet) == 5, played.unmet


def failing_run() -> RunSpec:
    """A small run that fails with the mutation `proposal-applied-twice`."""
    declared = load_scenario("duplicate-reservation-race")
    ((_, planned),) = declared.variants()
    return RunSpec(1, declared.size_for(planned), declared.operation_faults, planned)


@pytest.mark.slow
def test_failing_simulation_shrinks_to_a_short_timeline() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("proposal-applied-twice"):
        found = shrink(failing_run())
    assert found is not None
    assert [name for name in found.faults if name.startswith("call delivered twice@")]
    assert len(found.faults) <= 2 and len((*found.faults, *found.user_actions)) <= 4, "little is needed"
    lines = list(failure_report.timeline(found.outcome, found.recording))
    assert any(": created, for replica " in line for line in lines)
    assert lines[-1].startswith("! ") and len(lines) < 20
    assert any(line.startswith("S1 violated") for line in failure_report.failure_lines(found.outcome))


@pytest.mark.slow
def test_shrinking_stops_at_its_time_limit() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("proposal-applied-twice"):
        found = shrink(failing_run(), time_max_s=0.0)
    assert found is not None
    assert found.runs == 1 and "a smaller reproduction may exist" in found.cut_short


@pytest.mark.slow
def test_failing_seed_prints_its_reproduction_command() -> None:
    parallel_runs.silence_logs()
    output: list[str] = []
    assert (
        single_run.run_seed(
            single_run.SingleRunOptions(1, mutation="quota-check-skipped", shrink_s=20.0), output.append
        )
        == 1
    )
    text = "\n".join(output)
    assert "Smallest reproduction" in text and "needed " in text
    assert "python -m holdfast.sim --seed 1 --mutation quota-check-skipped --whole" in text
