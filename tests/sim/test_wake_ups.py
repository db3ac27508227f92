"""Worlds without any resync: no wake-up may be missing, and one that is missing is seen as work that is never done."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

import holdfast.cell
from holdfast.controllers import regional_controllers
from holdfast.runtime.controller import Controller
from holdfast.sim import runs, story
from holdfast.sim.declared import SHARE_UNSYNCED, Shape, shape_of
from holdfast.sim.world import World

SMALL = Shape(nodes_per_region=2, faults_s=30.0, settle_s=200.0, stable_s=30.0, resyncing=False)


def _deaf(name: str) -> object:
    """The controllers of a region, of which one is woken by nothing."""

    def made(region: str) -> tuple[Controller, ...]:
        return tuple(
            dataclasses.replace(c, wakes={kind: lambda new, old, view: () for kind in c.wakes}) if c.name == name else c
            for c in regional_controllers(region)
        )

    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serve", "replicate"])
def test_a_lost_wake_up_costs_time_with_resyncs_and_is_seen_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.quiet()
    assert World(1, SMALL, enabled=()).run().ok
    monkeypatch.setattr(holdfast.cell, "regional_controllers", _deaf(name))
    assert World(1, msgspec.structs.replace(SMALL, resyncing=True), enabled=()).run().ok
    deaf = World(1, SMALL, enabled=()).run()
    assert deaf.unsettled, f"nothing woke {name}, and nobody noticed"


def test_a_share_of_the_seeds_runs_without_resyncs() -> None:
    without = sum(not shape_of(seed).resyncing for seed in range(1, 601))
    assert 0.5 * SHARE_UNSYNCED < without / 600 < 1.5 * SHARE_UNSYNCED


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_no_wake_up_is_missing(seed: int) -> None:
    runs.quiet()
    outcome = World(seed, Shape(resyncing=False)).run()
    assert outcome.ok, "\n".join([story.headline(outcome), *story.complaints(outcome)])
