"""Every benchmark runs, small, and says what it found; bounds that are not met fail the run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench import __main__ as harness  # noqa: E402 - the tree's top is no package of ours
from bench import api, authority, openb, pipeline, planner, store  # noqa: E402


def test_figures_outside_their_bounds_are_named() -> None:
    bounds = {"gain": (2.0, None), "missing": (1.0, None), "lost": (None, 0)}
    wrong = harness.outside({"gain": 1.5, "lost": 3}, bounds)
    assert wrong == [
        "gain is 1.5; at least 2.0 is asked for",
        "missing is missing",
        "lost is 3; at most 0 is asked for",
    ]
    assert harness.outside({"gain": 2.0, "missing": 1, "lost": 0}, bounds) == []


def test_an_unknown_name_is_refused_and_the_known_ones_are_told(capsys) -> None:
    assert harness.main(["no-such"]) == 2
    assert "pipeline" in capsys.readouterr().err


def test_figures_are_kept_with_name_and_revision(tmp_path, monkeypatch, capsys) -> None:
    async def run() -> dict[str, object]:
        return {"per_s": 12, "nested": {"ms": 3.5}}

    monkeypatch.setattr(harness, "OUT", tmp_path)
    monkeypatch.setattr(planner, "run", run)
    monkeypatch.setattr(planner, "BOUNDS", {"per_s": (20, None)}, raising=False)
    assert harness.main(["planner"]) == 1, "a bound that is not met fails the run"
    kept = json.loads((tmp_path / "planner.json").read_text())
    assert kept["name"] == "planner"
    assert kept["revision"]
    assert kept["figures"] == {"per_s": 12, "nested.ms": 3.5}
    assert "per_s is 12; at least 20 is asked for" in capsys.readouterr().err


def test_a_benchmark_without_its_data_says_so(tmp_path, capsys) -> None:
    assert harness.main(["openb", "--data", str(tmp_path)]) == 0
    assert f"skipped: no trace in {tmp_path}" in capsys.readouterr().out


@pytest.mark.slow
async def test_the_parts_run_small(monkeypatch) -> None:
    for name, value in (("SEQUENTIAL_COMMITS", 5), ("COMMITS_PER_WRITER", 2), ("BATCHES", 2), ("OBJECTS", 300),
                        ("SUBSCRIBERS", 10), ("FAN_OUT_COMMITS", 3)):  # fmt: skip
        monkeypatch.setattr(store, name, value)
    assert min((await store.run()).values()) >= 0
    for module, name, value in ((authority, "NODES", 500), (authority, "BATCHES", 1), (planner, "NODES", 50),
                                (planner, "LIKE_REPLICAS", 512), (planner, "DIFFERENT_REPLICAS", 50)):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    assert (await authority.run())["sqlite"]["bound_per_s"] > 0
    assert (await planner.run())["like_per_s"] > 0


@pytest.mark.e2e
async def test_the_api_benchmark_runs_small() -> None:
    figures = await api.run(
        creates=150, batches=2, singles=20, watchers=12, events=5, objects=100, nodes=20, beat_s=2.0
    )  # fmt: skip
    assert figures["fan_out_missing"] == 0
    assert figures["creates_per_s"] > 0
    assert figures["heartbeat_cpu_s_per_10s"] > 0
    assert set(api.BOUNDS) <= set(figures)


@pytest.mark.e2e
async def test_the_pipeline_runs_small_in_every_shape() -> None:
    figures = await pipeline.run(nodes=20, replicas=40)
    assert figures["bound_per_s"] > 0
    assert figures["ready_per_s"] > 0
    assert figures["singles_per_s"] > 0
    assert figures["workloads_region_us_per_replica"] > 0


async def test_the_trace_protocol_on_a_small_cluster() -> None:
    """One node with two GPUs: what fits is placed, what does not is dropped, and load is counted on arrival."""
    nodes = [openb.TraceNode("n-0001", 8_000, 32_000, 2, "T4")]
    pods = {
        "half": openb.TracePod("half", 1_000, 1_000, 1, 500, ()),
        "whole": openb.TracePod("whole", 1_000, 1_000, 1, 1_000, ()),
        "other": openb.TracePod("other", 1_000, 1_000, 1, 1_000, ("V100",)),
    }
    for policy in openb.POLICIES:
        curve = openb.replay(nodes, pods, ["half", "other", "half", "whole", "whole"], {"n-0001": 0}, policy)
        assert [curve[load] for load in (25, 75, 100, 150, 200)] == [25.0, 25.0, 50.0, 100.0, 100.0], policy
