"""Autoscale: rate limits, stabilization windows, and no scale-up that cannot help."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expected import present
from tests.factories import assignment, cache_of, meta, with_new_revision, workload

from holdfast.controllers.cache import Cache
from holdfast.fleet import autoscale
from holdfast.fleet.autoscale import LOAD_MAX_AGE_S
from holdfast.model import kinds
from holdfast.model.assignment import AssignmentStatus, PendingReason
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.times import micro_text, parse_time
from holdfast.model.workload import (
    Autoscale,
    LoadBlock,
    LoadMetric,
    ScaleBlock,
    ScaleLimits,
    Workload,
    WorkloadStatus,
    WorkloadType,
    validate_workload,
    wanted_replicas,
)
from holdfast.model.writes import SetStatus
from holdfast.platform.sample_manifests import load_manifests

NOW = 1_800_000_000.0
FAST = ScaleLimits(replicas_per_minute=1000, percent_per_minute=1000)
RULES = Autoscale(max_replicas=20, min_replicas=2, scale_up=FAST, scale_down=FAST)


class World:
    def __init__(self, rules: Autoscale = RULES, *, replicas: int = 4, spec: int = 4) -> None:
        self.now = NOW
        block = ScaleBlock(replicas=replicas)
        made = workload(replicas=spec, autoscale=rules)
        self.cache: Cache = cache_of(msgspec.structs.replace(made, status=WorkloadStatus(scale=block)))
        self.regions(ready=replicas)

    @property
    def workload(self) -> Workload:
        found = self.cache.get(Workload, "api", "acme")
        assert found is not None
        return found

    def regions(self, *, ready: int, queued: int = 0, reason: str = "") -> None:
        pending = (PendingReason(reason=reason, count=queued),) if reason else ()
        self.cache.put(
            assignment(replicas=ready + queued, status=AssignmentStatus(ready=ready, queued=queued, pending=pending))
        )

    def push(self, value: float, *, name: str = "cpuPercent", age_s: float = 0.0) -> None:
        load = LoadBlock(metrics=(LoadMetric(name, value, micro_text(self.now - age_s)),))
        status = msgspec.structs.replace(self.workload.status, load=load)
        self.cache.put(with_new_revision(self.workload, status=status))

    def run_controller(self, after_s: float = 0.0) -> ScaleBlock:
        self.now += after_s
        for write in autoscale.decide(self.workload.key, self.cache, self.now).writes:
            assert isinstance(write, SetStatus)
            status = msgspec.structs.replace(self.workload.status, scale=write.blocks["scale"])
            self.cache.put(with_new_revision(self.workload, status=status))
        block = self.workload.status.scale
        assert block is not None
        return block


@pytest.mark.parametrize(
    ("load", "replicas", "reason"),
    [
        (140, 8, "ScaledByLoad"),
        (71, 4, "LoadWithinTarget"),
        (35, 2, "ScaledByLoad"),
        (1, 2, "ScaledByLoad"),
        (7000, 20, "ScaledByLoad"),
        (0, 2, "ScaledByLoad"),
    ],
)
def test_autoscale_moves_load_to_its_target(load: float, replicas: int, reason: str) -> None:
    world = World()
    world.push(load)
    block = world.run_controller()
    assert (block.replicas, block.reason) == (replicas, reason)
    assert wanted_replicas(world.workload) == replicas


def test_autoscale_follows_a_custom_metric() -> None:
    rules = msgspec.structs.replace(RULES, metric="queueLength", target=5.0)
    world = World(rules)
    world.push(500, name="cpuPercent")
    assert world.run_controller().reason == "LoadUnknown"
    world.push(10, name="queueLength")
    assert world.run_controller().replicas == 8


@pytest.mark.parametrize("age_s", [LOAD_MAX_AGE_S + 1, -LOAD_MAX_AGE_S - 1])
def test_stale_or_future_load_changes_nothing(age_s: float) -> None:
    world = World()
    world.push(900, age_s=age_s)
    assert (world.run_controller().replicas, world.run_controller().reason) == (4, "LoadUnknown")


@pytest.mark.parametrize("value", [math.nan, math.inf, -5.0])
def test_non_finite_load_changes_nothing(value: float) -> None:
    world = World()
    world.push(value)
    assert world.run_controller().replicas == 4


@pytest.mark.parametrize("reason", ["InsufficientCpu", "SpreadViolated", "ResidencyViolated", "QuotaExceeded"])
def test_pending_replicas_block_scale_up(reason: str) -> None:
    world = World(replicas=8)
    world.regions(ready=5, queued=3, reason=reason)
    world.push(140)
    block = world.run_controller()
    assert (block.replicas, block.reason) == (8, "ScaleUpBlocked")
    assert f"3 of 8 replicas are pending ({reason})" in block.message
    world.push(20)
    assert world.run_controller().replicas < 8, "scaling down is always possible"


def test_unready_replicas_block_scale_up() -> None:
    world = World(replicas=8)
    world.regions(ready=3)
    world.push(300)
    block = world.run_controller()
    assert (block.replicas, block.reason) == (8, "ScaleUpBlocked") and "only 3 of 8 replicas are ready" in block.message
    world.regions(ready=8)
    assert world.run_controller(after_s=15).replicas == 20


def test_scale_down_waits_for_the_stabilization_window() -> None:
    down = msgspec.structs.replace(FAST, stabilization_seconds=60.0)
    world = World(msgspec.structs.replace(RULES, scale_down=down), replicas=8)
    world.push(70)
    world.run_controller()
    for _ in range(4):
        world.now += 15
        world.push(10)
        assert world.run_controller().replicas == 8
    world.now += 15
    world.push(10)
    assert world.run_controller().replicas == 2


def test_scale_up_waits_for_the_stabilization_window() -> None:
    up = msgspec.structs.replace(FAST, stabilization_seconds=30.0)
    world = World(msgspec.structs.replace(RULES, scale_up=up))
    world.push(70)
    world.run_controller()
    world.now += 15
    world.push(700)
    assert (world.run_controller().replicas, world.run_controller().reason) == (4, "ScaleLimited")


def test_steady_load_writes_nothing_and_keeps_the_window() -> None:
    world = World(msgspec.structs.replace(RULES, scale_down=ScaleLimits(1000, 1000, stabilization_seconds=120)))
    written = 0
    for _ in range(20):  # five minutes of checks with the same load
        before = world.workload.status.scale
        world.push(70.0)
        written += world.run_controller(15.0) != before
    assert written <= 2
    for _ in range(7):
        world.push(10.0)
        assert world.run_controller(15.0).replicas == 4, "the recommendation valid at the start of the window counts"
    world.push(10.0)
    assert world.run_controller(35.0).replicas < 4


def test_pause_override_keeps_the_replica_count() -> None:
    world = World()
    spec = OverrideSpec(kind=OverrideKind.PAUSE_AUTOSCALER, scope=OverrideScope(tenant="acme"), reason="incident")
    status = OverrideStatus(phase="Active", expires_at=micro_text(NOW + 100))
    world.cache.put(Override(metadata=meta("hold-still"), spec=spec, status=status))
    world.push(700)
    assert (world.run_controller().replicas, world.run_controller().reason) == (4, "AutoscalerPaused")
    world.push(700)
    assert world.run_controller(after_s=101).replicas == 20, "it ends without a message"


def test_removing_autoscale_restores_spec_replicas() -> None:
    world = World()
    spec = msgspec.structs.replace(world.workload.spec, autoscale=None)
    world.cache.put(with_new_revision(world.workload, spec=spec))
    (write,) = autoscale.decide(world.workload.key, world.cache, NOW).writes
    assert isinstance(write, SetStatus) and write.blocks == {"scale": None}
    assert wanted_replicas(world.workload) == 4


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"metric": ""}, "spec.autoscale.metric"),
        ({"target": -1.0}, "spec.autoscale.target"),
        ({"min_replicas": 5, "max_replicas": 2}, "spec.autoscale.maxReplicas"),
        ({"scale_up": ScaleLimits(replicas_per_minute=-1)}, "spec.autoscale.scaleUp.replicasPerMinute"),
    ],
)
def test_invalid_autoscale_rules_are_refused(rules: dict[str, Any], field: str) -> None:
    made = workload(autoscale=Autoscale(**{"max_replicas": 5, **rules}))
    assert field in {cause.field for cause in validate_workload(made, None)}


def test_autoscale_of_a_batch_is_refused() -> None:
    made = workload(type=WorkloadType.BATCH, autoscale=Autoscale(max_replicas=5))
    assert any(c.field == "spec.autoscale" for c in validate_workload(made, None))


looks = st.lists(st.tuples(st.floats(0, 500), st.integers(1, 40), st.integers(0, 3), st.booleans()), max_size=40)


@settings(max_examples=150, deadline=None)
@given(looks, st.integers(1, 12), st.integers(0, 100), st.integers(0, 90))
def test_scaling_respects_rate_limits_and_bounds(
    story: list[tuple[float, int, int, bool]], per_minute: int, percent: int, window_s: int
) -> None:
    side = ScaleLimits(replicas_per_minute=per_minute, percent_per_minute=percent, stabilization_seconds=window_s)
    rules = Autoscale(max_replicas=30, min_replicas=2, scale_up=side, scale_down=side)
    world = World(rules)
    moves: list[tuple[float, int, int]] = []
    for load, passed_s, missing, waits in story:
        world.now += passed_s
        before = present(world.workload.status.scale).replicas
        world.regions(ready=max(0, before - missing), queued=missing if waits else 0, reason="NoNodes" if waits else "")
        world.push(load)
        block = world.run_controller()
        assert 2 <= block.replicas <= 30
        if missing and waits:
            assert block.replicas <= before, "no replica is added while others are pending"
        if block.replicas != before:
            moves.append((world.now, before, block.replicas))
            assert parse_time(block.scaled_at) == pytest.approx(world.now, abs=1e-5)
        recent = [m for m in moves if world.now - m[0] < 60]
        most = max(max(per_minute, m[1] * percent // 100, 1) for m in recent) if recent else 0
        assert sum(abs(after - was) for _, was, after in recent) <= max(most, 1) + most // 4 + 1


@pytest.mark.parametrize("name", ["workload.yaml", "node-pool.yaml"])
def test_autoscale_examples_are_valid(name: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "autoscaling"
    for manifest in load_manifests(folder / name):
        kind = kinds.BY_NAME[manifest["kind"]]
        assert not list(kind.validate(msgspec.convert(manifest, kind.type), None))
