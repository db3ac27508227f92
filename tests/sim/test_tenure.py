"""Exclusive work of scope Global in worlds whose regions are cut off: it moves, and never runs in two at once."""

from __future__ import annotations

import os

import pytest

from holdfast.model.tenure import needs_tenure
from holdfast.sim import runs, scenario, story
from holdfast.sim.checkers.court import Court
from holdfast.sim.mutations import planted
from holdfast.sim.world import Outcome, World

pytestmark = pytest.mark.slow
SHORT, LONG = 0, 3


def lived(variant: int, seed: int) -> tuple[Outcome, Court]:
    runs.quiet()
    declared = scenario.load("tenure")
    _, planned = list(declared.variants())[variant]
    world = World(seed, declared.shape, enabled=declared.riding, planned=planned)
    court = world.court
    return world.run(), court


@pytest.mark.parametrize("variant", [SHORT, LONG])
def test_no_ordinal_runs_twice_and_what_was_cut_off_is_run_elsewhere(variant: int) -> None:
    outcome, court = lived(variant, seed=1)
    broken = [v for v in outcome.violations if v.promise.startswith("S")]
    assert not broken and not outcome.unsettled, "\n".join(story.complaints(outcome))
    moves = [
        e for e in court.history.matching("/assignments/acme/")
        if e.cell == "global" and e.new is not None and e.old is not None and needs_tenure(e.new.spec.exclusive)
        and e.old.spec.ordinals and not e.new.spec.ordinals
    ]  # fmt: skip
    assert moves, "at least one region had its ordinals taken away"
    assert all(e.new.spec.withdrawal is not None for e in moves if not e.new.metadata.terminating)


@pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="a search over several worlds: make prove runs it")
@pytest.mark.parametrize("bug", ["tenure-not-waited-for", "tenure-ignored"])
def test_a_planted_mistake_is_seen(bug: str) -> None:
    for seed in range(1, 7):
        with planted(bug):
            outcome, _ = lived(LONG, seed)
        if any(v.promise == "S7" for v in outcome.violations):
            return
    pytest.fail(f"{bug} was not seen")
