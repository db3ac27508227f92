"""Every benchmark runs at small size. Figures outside their bounds fail the run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import ModuleType

import pytest
from bench.calibration import REFERENCE, Calibration, calibrate
from bench.shapes import SHAPES

from bench import __main__ as harness
from bench import (
    api,
    authority,
    conflicts,
    fleet,
    gate,
    memory,
    openb,
    pipeline,
    planner,
    recovery,
    regions,
    steps,
    store,
)

SMALL = ("singles", "preemption", "arrival")
"""The shapes that differ most. Each starts its own cells."""
PAIRED = {"workloads", "backlog"}


def test_figures_outside_their_bounds_are_reported() -> None:
    bounds = {"gain": (2.0, None), "missing": (1.0, None), "lost": (None, 0)}
    wrong = harness.outside({"gain": 1.5, "lost": 3}, bounds)
    assert wrong == [
        "gain: too low (expected at least 2.0, found 1.5)",
        "missing: missing",
        "lost: too high (expected at most 0, found 3)",
    ]
    assert harness.outside({"gain": 2.0, "missing": 1, "lost": 0}, bounds) == []


def test_unknown_benchmark_is_refused_with_known_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.main(["no-such"]) == 2
    assert "pipeline" in capsys.readouterr().err


def test_figures_are_saved_with_name_and_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> dict[str, object]:
        return {"per_s": 12, "nested": {"ms": 3.5}}

    monkeypatch.setattr(harness, "OUT", tmp_path)
    monkeypatch.setattr(planner, "run", run)
    monkeypatch.setattr(planner, "BOUNDS", {"per_s": (20, None)}, raising=False)
    assert harness.main(["planner"]) == 1, "a violated bound fails the run"
    saved = json.loads((tmp_path / "planner.json").read_text())
    assert saved["name"] == "planner"
    assert saved["revision"]
    assert saved["figures"] == {"per_s": 12, "nested.ms": 3.5}
    assert "per_s: too low (expected at least 20, found 12)" in capsys.readouterr().err


def test_benchmark_without_data_is_skipped_with_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.main(["openb", "--data", str(tmp_path)]) == 0
    assert f"skipped: no trace in {tmp_path}" in capsys.readouterr().out


@pytest.mark.slow
async def test_component_benchmarks_run_at_small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SEQUENTIAL_COMMITS", 5),
        ("COMMITS_PER_WRITER", 2),
        ("BATCHES", 2),
        ("OBJECTS", 300),
        ("SUBSCRIBERS", 10),
        ("FAN_OUT_COMMITS", 3),
    ):
        monkeypatch.setattr(store, name, value)
    assert min((await store.run()).values()) >= 0
    sizes: tuple[tuple[ModuleType, str, object], ...] = (
        (authority, "NODES", 500),
        (authority, "BATCHES", 1),
        (planner, "NODES", (50, 100)),
        (planner, "LIKE_REPLICAS", 512),
        (planner, "DIFFERENT_REPLICAS", 50),
    )
    for module, name, size in sizes:
        monkeypatch.setattr(module, name, size)
    assert (await authority.run())["sqlite"]["bound_per_s"] > 0
    figures = await planner.run()
    assert min(figures[f"{kind}_per_s_{size}"] for kind in ("like", "different") for size in (50, 100)) > 0
    assert set(await planner.run(nodes=70)) >= {"like_per_s_70", "different_per_s_70"}


@pytest.mark.slow
async def test_conflicts_benchmark_counts_proposals_that_came_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "SCHEDULERS", (1, 4))
    figures = harness.flat(await conflicts.run(replicas=600))
    for load in conflicts.LOADS:
        assert figures[f"{load}.one.conflicts_per_1000"] == 0, "one scheduler never conflicts with itself"
        assert figures[f"{load}.four.bound_per_s"] > 0
    assert figures["free.four.conflicts_per_1000"] > 0, "four schedulers that plan the same requests do"


async def test_regions_benchmark_keeps_its_bounds_at_small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("WORLDS", 2), ("NODES_PER_REGION", (5, 25)), ("COST_WORLDS", 20), ("SEQUENCES", 6)):
        monkeypatch.setattr(regions, name, size)
    figures = harness.flat(await regions.run())
    assert set(regions.BOUNDS) <= set(figures)
    assert figures["after.hint_error_max"] == 1.0 < figures["before.hint_error_max"]
    assert figures["after.large_sent_where_full_pct"] == 0
    assert figures["after.cost_over_optimum_pct"] < 3 < figures["before.cost_over_optimum_pct"]
    assert figures["after.sequence_packing_placed_pct"] >= figures["before.sequence_packing_placed_pct"]


def test_exact_references_of_the_regions_benchmark_are_exact() -> None:
    assert regions.most_placed((3, 4), (1, 2, 2, 3)) == 3, "6 of 7 units fit only without the largest"
    assert regions.most_placed((4, 4), (1, 2, 2, 3)) == 4
    rooms, costs = {"a": 2, "b": 9, "c": 9}, {"a": 1, "b": 5, "c": 9}
    assert regions.optimum(rooms, costs, 4, 1) == {"b": 4}
    assert regions.optimum(rooms, costs, 4, 2) == {"a": 2, "b": 2}
    assert regions.optimum(rooms, costs, 6, 2) == {"b": 3, "c": 3}, "even shares come before cost"


@pytest.mark.e2e
@pytest.mark.waits
async def test_api_benchmark_runs_at_small_size() -> None:
    figures = await api.run(creates=150, batches=2, singles=20, watchers=12, events=5, nodes=20, beat_s=2.0)
    assert figures["fan_out_missing"] == 0
    assert figures["creates_per_s"] > 0
    assert figures["heartbeat_cpu_s_per_10s"] > 0
    assert set(api.BOUNDS) <= set(figures)


async def test_gate_benchmark_runs_at_small_size() -> None:
    figures = await gate.run(rounds=2, commits=5)
    assert set(figures) == {"create_us", "status_us", "assignment_us", "post_us"}
    assert all(value > 0 for value in figures.values())


@pytest.mark.e2e
@pytest.mark.waits
async def test_memory_benchmark_runs_at_small_size() -> None:
    figures = await memory.run(200)
    assert set(memory.BOUNDS) <= set(figures)
    assert figures["replica_bytes"] > figures["replica_decoded_bytes"] > 0
    assert figures["global_mb_per_10000_workloads"] > 0


@pytest.mark.e2e
@pytest.mark.waits
@pytest.mark.parametrize("shape", SMALL if not os.environ.get("HOLDFAST_PROVE") else sorted({*pipeline.NAMES} - PAIRED))
async def test_pipeline_benchmark_runs_every_shape_at_small_size(shape: str) -> None:
    replicas = 30 if shape == "arrival" else min(30, int(20 * SHAPES[shape].per_node))
    figures = await pipeline.run(nodes=20, replicas=replicas, shapes=(shape,))
    if shape == "arrival":
        assert 0 < figures["arrival_p50_ms"] <= figures["arrival_p99_ms"] <= figures["arrival_max_ms"]
        assert figures["arrival_with_global_p50_ms"] > figures["arrival_p50_ms"]
        return
    assert figures[f"{shape}_per_s"] > 0
    assert figures[f"{shape}_region_us_per_replica"] > 0
    assert "bound_per_s" not in figures, "the main figure belongs to one shape"


@pytest.mark.e2e
@pytest.mark.waits
async def test_backlog_cost_is_relative_to_the_run_without_backlog() -> None:
    figures = await pipeline.run(nodes=20, replicas=30, shapes=("backlog",))
    assert figures["bound_per_s"] == figures["workloads_per_s"] > 0
    assert 0 <= figures["backlog_cost_pct"] <= 100


def test_every_bound_belongs_to_a_figure_of_a_shape() -> None:
    for name in pipeline.BOUNDS:
        assert name == "bound_per_s" or name.startswith(tuple(f"{shape}_" for shape in pipeline.NAMES)), name


def test_partial_run_is_saved_separately_and_has_no_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(nodes: int = 5, shapes: tuple[str, ...] = ()) -> dict[str, object]:
        return {"spread_per_s": 1.0}

    monkeypatch.setattr(harness, "OUT", tmp_path)
    monkeypatch.setattr(pipeline, "run", run)
    assert harness.main(["pipeline", "--shape", "spread"]) == 1, "its own bound is checked"
    # The bound is 1,000 on the reference machine, and relative to the calibration of this run on any other.
    said = capsys.readouterr()
    factor = float(found[1]) if (found := re.search(r"([\d.]+) times the reference", said.out)) else 0.0
    bound = re.search(r"spread_per_s: too low \(expected at least ([\d,.]+), found 1.0\)", said.err)
    assert bound and float(bound[1].replace(",", "")) * factor == pytest.approx(1000, rel=0.01)
    assert (tmp_path / "pipeline-spread.json").exists() and not (tmp_path / "pipeline.json").exists()
    assert harness.main(["pipeline", "--shape", "spread", "--nodes", "7"]) == 0
    assert (tmp_path / "pipeline-spread-nodes7.json").exists()
    assert harness.main(["pipeline"]) == 1, "a full run checks all bounds"


def test_unknown_shape_or_trace_is_refused_with_known_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.main(["pipeline", "--shape", "no-such"]) == 2
    assert "anti-affinity" in capsys.readouterr().err


async def test_trace_protocol_runs_on_a_small_cluster() -> None:
    """One node with two GPUs: pods that fit are placed, others dropped; load counts on arrival."""
    nodes = [openb.TraceNode("n-0001", 8_000, 32_000, 2, "T4")]
    pods = {
        "half": openb.TracePod("half", 1_000, 1_000, 1, 500, ()),
        "whole": openb.TracePod("whole", 1_000, 1_000, 1, 1_000, ()),
        "other": openb.TracePod("other", 1_000, 1_000, 1, 1_000, ("V100",)),
    }
    for policy in openb.POLICIES:
        curve = openb.replay(nodes, pods, ["half", "other", "half", "whole", "whole"], {"n-0001": 0}, policy)
        assert [curve[load] for load in (25, 75, 100, 150, 200)] == [25.0, 25.0, 50.0, 100.0, 100.0], policy


@pytest.mark.e2e
@pytest.mark.waits
@pytest.mark.slow
async def test_recovery_benchmark_runs_at_small_size() -> None:
    figures = await recovery.run(nodes=40)
    assert figures["workloads"] == 20 and figures["lost_workloads"] > 0
    assert figures["short"] == 0 and figures["recovered_seconds"] < 90
    assert 0 < figures["writes_per_s_peak"] < 5_000
    assert all(isinstance(figures[name], float) for name in ("queue_keys_peak", "scheduler_due_peak"))
    assert figures["clock_serving_s"] >= figures["clock_bound_s"] >= figures["clock_detected_s"] > 0


def test_bounds_on_speed_follow_the_calibration_and_others_do_not() -> None:
    slow = Calibration(*(2 * part for part in REFERENCE))
    bounds = {"bound_per_s": (1_000.0, None), "region_us": (None, 300.0), "peak_mb": (None, 600.0)}
    relative = harness.relative(bounds, ("bound_per_s", "region_us"), slow)
    assert relative == {"bound_per_s": (500.0, None), "region_us": (None, 600.0), "peak_mb": (None, 600.0)}
    assert harness.relative(bounds, (), slow) == bounds
    busy = slow._replace(cpu_s=REFERENCE.cpu_s)
    assert harness.relative(bounds, ("region_us",), busy)["region_us"] == (None, 300.0), (
        "CPU time is judged by CPU time"
    )


def test_calibration_measures_each_part() -> None:
    measured = calibrate()
    assert min(measured) > 0
    assert measured.cpu_s <= measured.seconds * 1.5


def test_size_of_a_shape_is_done_or_refused() -> None:
    assert SHAPES["workloads"].size(0, 0) == (5_000, 10_000)
    assert SHAPES["workloads"].size(20_000, 40_000) == (20_000, 40_000)
    assert SHAPES["preemption"].size(2_000, 0) == (2_000, 1_000)
    with pytest.raises(harness.Unknown, match="hold at most 1000; raise --nodes"):
        SHAPES["preemption"].size(0, 1_001)


def test_size_option_of_another_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.main(["store", "--nodes", "20000"]) == 2
    assert "benchmark store: no option --nodes; its size is fixed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        harness.main(["pipeline", "--nodes", "-1"])


@pytest.mark.e2e
@pytest.mark.waits
async def test_fleet_benchmark_runs_at_small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "AT_REST_S", 1.0)
    figures = await fleet.run(regions=5, workloads=60)
    assert figures["short"] == 0 and figures["lost_workloads"] == figures["critical"] == 1
    assert figures["absorbed_per_s"] > 0
    assert set(fleet.BOUNDS) <= set(figures)


@pytest.mark.e2e
@pytest.mark.waits
async def test_steps_benchmark_counts_the_rows_of_one_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "AT_REST_S", 6.0)
    monkeypatch.setattr(steps, "WARM_UP", 2)
    figures = harness.flat(await steps.run(workloads=2))
    assert set(steps.BOUNDS) <= set(figures)
    assert 2 <= figures["global.rows_of.workloads"] <= 4
    assert figures["global.rows_of.assignments"] >= 2 and figures["region.rows_of.bindings"] == 1
    for cell in ("global", "region"):
        for step in ("encodes", "decodes", "validations", "wakeups", "events"):
            assert figures[f"{cell}.{step}"] > 0, f"{step} in the {cell} cell"
