"""Worlds without any resync: no wake-up may be missing, and one that is missing is seen as work that is never done."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

import holdfast.cell.cell
from holdfast.cell.controller_table import regional_controllers
from holdfast.controllers.controller import Controller
from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.scenario_files import NO_RESYNC_FRACTION, WorldSize, drawn_size
from holdfast.sim.simulation import Simulation

SMALL = WorldSize(nodes_per_region=2, faults_s=30.0, convergence_timeout_s=200.0, stable_s=30.0, resync_enabled=False)


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
    parallel_runs.silence_logs()
    assert Simulation(1, SMALL, enabled=()).run().ok
    monkeypatch.setattr(holdfast.cell.cell, "regional_controllers", _deaf(name))
    assert Simulation(1, msgspec.structs.replace(SMALL, resync_enabled=True), enabled=()).run().ok
    deaf = Simulation(1, SMALL, enabled=()).run()
    assert deaf.unconverged, f"nothing woke {name}, and nobody noticed"


def test_a_share_of_the_seeds_runs_without_resyncs() -> None:
    without = sum(not drawn_size(seed).resync_enabled for seed in range(1, 601))
    assert 0.5 * NO_RESYNC_FRACTION < without / 600 < 1.5 * NO_RESYNC_FRACTION


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_no_wake_up_is_missing(seed: int) -> None:
    parallel_runs.silence_logs()
    outcome = Simulation(seed, WorldSize(resync_enabled=False)).run()
    assert outcome.ok, "\n".join([failure_report.headline(outcome), *failure_report.failure_lines(outcome)])
