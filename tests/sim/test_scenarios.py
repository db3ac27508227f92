"""The declared scenarios load, say what they expect, and go well; a failing world shrinks to a story that says why."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.lifecycle import TRANSITIONS
from holdfast.model.reasons import Reason
from holdfast.sim import declared, runs, scenario, single, story
from holdfast.sim.declared import Expected, Scenario, Serves, Shape, load, names
from holdfast.sim.mutations import planted
from holdfast.sim.shrink import Subject, shrink

# What they say is shown by all of their variants, not by one.
SWEPT = ("leader-dies-at-awaits", "timeout-at-every-commit")
STEPS = {f"{t.source} → {t.target}" for t in TRANSITIONS}


@pytest.mark.parametrize("name", names())
def test_a_scenario_says_what_it_is_and_what_it_expects(name: str) -> None:
    declared = load(name)
    expects = declared.expects
    assert declared.says.endswith(".")
    assert list(declared.variants())
    assert expects.sees or expects.passes or expects.serves, "a scenario that expects nothing cannot fail"
    assert {*expects.sees, *expects.never_sees} <= {reason.value for reason in Reason}
    assert set(expects.passes) <= STEPS


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_scenario_goes_well(name: str) -> None:
    """Its first variant at every change, or all that it lists; those of long runs in make prove."""
    runs.quiet()
    for played in scenario.play(load(name), seed=1):
        assert played.ok, "\n".join([played.title, story.headline(played.outcome), *played.complaints()])
        if name not in SWEPT:
            break


@pytest.mark.slow
def test_one_more_scenario_leaves_nearly_all_seeds_the_worlds_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def bases() -> dict[int, str]:
        return {seed: base.title for seed in range(1, 1500) if (base := declared.base_of(seed)) is not None}

    assert set(declared.FIRST) <= set(declared.names())
    before, known, load = bases(), declared.names(), declared.load
    monkeypatch.setattr(declared, "names", lambda: [*known, "newest"])
    monkeypatch.setattr(declared, "load", lambda name: load("zone-lost" if name == "newest" else name))
    after = bases()
    assert before.keys() == after.keys()
    moved = {seed for seed in before if before[seed] != after[seed]}
    assert moved and len(moved) < len(before) / 10
    assert {after[seed] for seed in moved} == {"zone-lost"}


@pytest.mark.slow
@pytest.mark.parametrize("name", declared.SHARES)
def test_what_hardly_any_world_shows_has_a_share_of_all_seeds(name: str) -> None:
    seeds = range(1, 1500)
    begun = [seed for seed in seeds if (base := declared.base_of(seed)) is not None and base.title == name]
    assert name in declared.names() and name not in declared.FIRST
    assert declared.SHARES[name] / 2 < len(begun) / len(seeds) < declared.SHARES[name] * 2


def test_a_scenario_that_does_not_show_what_it_should_fails() -> None:
    runs.quiet()
    quiet = Scenario("quiet", "Nothing happens.", Expected())
    hopes = Expected(
        sees=("RegionLost",), never_sees=("Assigned",), passes=("Serving → Unknown",),
        serves=(Serves("acme/api", 99, 30.0),), settles_in_s=-1.0,
    )  # fmt: skip
    shape = Shape(nodes_per_region=2, faults_s=20.0, stable_s=10.0, sorts=("service", "batch"))
    (played,) = scenario.play(msgspec.structs.replace(quiet, expects=hopes, shape=shape), seed=1)
    assert played.outcome.ok and not played.ok
    assert len(played.missed) == 5, played.missed


def race() -> Subject:
    """A small world that fails with `claimed-twice` planted."""
    declared = load("duplicate-reservation-race")
    ((_, planned),) = declared.variants()
    return Subject(1, declared.shape_for(planned), declared.riding, planned)


@pytest.mark.slow
def test_a_failing_world_shrinks_to_what_matters_and_tells_its_story() -> None:
    runs.quiet()
    with planted("claimed-twice"):
        found = shrink(race())
    assert found is not None
    assert len(found.faults) == 1 and found.faults[0].startswith("call delivered twice@")
    assert 1 <= len(found.acts) <= 4, "and only little work"
    told = list(story.timeline(found.outcome, found.telling))
    assert any(": created, for replica " in line for line in told)
    assert told[-1].startswith("! ") and len(told) < 20
    assert any(line.startswith("S1 broken") for line in story.complaints(found.outcome))


@pytest.mark.slow
def test_a_search_for_a_smaller_story_is_bounded_and_says_so() -> None:
    runs.quiet()
    with planted("claimed-twice"):
        found = shrink(race(), time_max_s=0.0)
    assert found is not None
    assert found.runs == 1 and "there may be a smaller story" in found.cut_short


@pytest.mark.slow
def test_a_failing_seed_tells_how_to_see_it_again() -> None:
    runs.quiet()
    said: list[str] = []
    assert single.tell(single.Asked(1, bug="quota-left-out", shrink_s=20.0), said.append) == 1
    text = "\n".join(said)
    assert "The smallest story" in text and "what it takes " in text
    assert "python -m holdfast.sim --seed 1 --plant quota-left-out --whole" in text
