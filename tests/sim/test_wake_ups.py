"""Simulations without resync: a missing wakeup shows as a run that does not converge."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

import holdfast.cell.cell
from holdfast.cell.controller_table import regional_controllers
from holdfast.controllers.controller import Controller
from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.scenario_files import NO_RESYNC_FRACTION, SimulationSize, drawn_size
from holdfast.sim.simulation import Simulation

SMALL = SimulationSize(
    nodes_per_region=2, faults_s=30.0, convergence_timeout_s=200.0, stable_s=30.0, resync_enabled=False
)


def _controllers_without_wakeups(name: str) -> object:
    """The controllers of a region, one of them without wakeups."""

    def controllers(region: str) -> tuple[Controller, ...]:
        return tuple(
            dataclasses.replace(c, wakes={kind: lambda new, old, view: () for kind in c.wakes}) if c.name == name else c
            for c in regional_controllers(region)
        )

    return controllers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serve", "replicate"])
def test_lost_wakeup_is_repaired_by_resync_and_detected_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parallel_runs.silence_logs()
    assert Simulation(1, SMALL, enabled=()).run().ok
    monkeypatch.setattr(holdfast.cell.cell, "regional_controllers", _controllers_without_wakeups(name))
    assert Simulation(1, msgspec.structs.replace(SMALL, resync_enabled=True), enabled=()).run().ok
    outcome = Simulation(1, SMALL, enabled=()).run()
    assert outcome.unconverged, f"{name} had no wakeup, but the run converged"


def test_fraction_of_seeds_runs_without_resync() -> None:
    without = sum(not drawn_size(seed).resync_enabled for seed in range(1, 601))
    assert 0.5 * NO_RESYNC_FRACTION < without / 600 < 1.5 * NO_RESYNC_FRACTION


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_simulation_without_resync_converges(seed: int) -> None:
    parallel_runs.silence_logs()
    outcome = Simulation(seed, SimulationSize(resync_enabled=False)).run()
    assert outcome.ok, "\n".join([failure_report.headline(outcome), *failure_report.failure_lines(outcome)])
