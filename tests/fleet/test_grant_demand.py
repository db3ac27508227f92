"""Quota demand of one Assignment: what its replicas, its gang and its rollout need."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factories import assignment

from holdfast.fleet.grant_demand import QuotaUnit, provisional_demand, quota_demand, quota_units, rollout_surge_demand
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.template import Template
from holdfast.model.workload import Batch, Exclusivity, Gang, Rollout, WorkloadType

UNIT = Template(command=("x",), resources={"cpu": "1"})


def item(replicas: int = 3, *, bound: int = 0, **more: Any) -> Assignment:
    settled = {"observed_epoch": 1, "replicas": replicas, "updated": replicas, "bound": bound}
    status = AssignmentStatus(**{**settled, **more.pop("status", {})})
    return assignment(where="a", replicas=replicas, template=UNIT, status=status, **more)


def cpu(found: dict[Any, int]) -> int:
    return sum(found.values())


def units(of: Assignment) -> dict[str, int]:
    """Members by the state of their unit."""

    def name(unit: QuotaUnit) -> str:
        return "bound" if unit.bound else "surge" if unit.surge else f"waiting in {unit.members}s"

    return {name(unit): count for unit, count in quota_units(of).items()}


@pytest.mark.parametrize(
    ("status", "left"),
    [
        ({}, 3),
        ({"succeeded": 8}, 2),
        ({"succeeded": 10}, 0),
        ({"succeeded": 12}, 0),
        ({"failed": 2}, 3),
        ({"failed": 3}, 0),
    ],
    ids=["new", "two are left", "complete", "more than complete", "retries left", "failed"],
)
def test_batch_needs_quota_for_the_tasks_that_are_left(status: dict[str, int], left: int) -> None:
    job = item(3, type=WorkloadType.BATCH, batch=Batch(completions=10, parallelism=3, backoff_limit=2), status=status)
    assert cpu(quota_demand(job)) == 1000 * left
    assert units(job) == ({"waiting in 1s": left} if left else {})


def test_bound_replicas_beyond_the_desired_number_count_until_they_end() -> None:
    assert cpu(quota_demand(item(2, bound=5))) == 5000
    assert units(item(2, bound=5)) == {"bound": 5}


@pytest.mark.parametrize(
    ("bound", "minimum", "found"),
    [
        (0, 3, {"waiting in 3s": 1}),
        (1, 3, {"bound": 1, "waiting in 2s": 1}),
        (2, 3, {"bound": 2, "waiting in 1s": 3}),
        (4, 3, {"bound": 4, "waiting in 1s": 1}),
        (5, 3, {"bound": 5}),
        (0, 9, {"waiting in 5s": 1}),
    ],
)
def test_gang_needs_quota_for_the_members_that_it_lacks_together(
    bound: int, minimum: int, found: dict[str, int]
) -> None:
    gang = item(5, bound=bound, gang=Gang(min_available=minimum), rollout=Rollout(max_surge=0, max_unavailable=1))
    assert units(gang) == found
    optional = [unit.optional for unit in quota_units(gang) if unit.members > 1]
    assert optional == ([5 - bound - max(1, min(5, minimum) - bound)] if optional else [])


def test_running_rollout_needs_its_surge_and_the_next_one_only_unneeded_quota() -> None:
    rollout = Rollout(max_surge=2, max_unavailable=1)
    settled, running = item(3, bound=3, rollout=rollout), item(3, bound=3, rollout=rollout, status={"updated": 1})
    assert (cpu(quota_demand(settled)), cpu(rollout_surge_demand(settled))) == (3000, 2000)
    assert (cpu(quota_demand(running)), cpu(rollout_surge_demand(running))) == (5000, 0)
    assert units(running) == {"bound": 3, "surge": 2}
    begun = item(3, bound=4, rollout=rollout, status={"updated": 1, "replicas": 4})
    assert (cpu(quota_demand(begun)), units(begun)) == (5000, {"bound": 4, "surge": 1}), "surge that runs counts once"
    paused = item(3, bound=3, rollout=Rollout(max_surge=2, max_unavailable=1, paused=True), status={"updated": 1})
    assert cpu(quota_demand(paused)) == 3000


@pytest.mark.parametrize(
    "spec",
    [{"exclusive": Exclusivity()}, {"type": WorkloadType.BATCH, "batch": Batch(completions=3, parallelism=3)}],
    ids=["exclusive", "batch"],
)
def test_work_that_is_never_doubled_gets_no_surge(spec: dict[str, Any]) -> None:
    rollout = Rollout(max_surge=2, max_unavailable=1)
    running = item(3, bound=3, rollout=rollout, status={"updated": 1}, **spec)
    assert cpu(quota_demand(running)) == 3000 and cpu(rollout_surge_demand(running)) == 0


def test_recovery_replicas_get_surge_only_as_a_floor() -> None:
    running = item(3, bound=3, purpose=Purpose.RECOVERY, rollout=Rollout(max_surge=2), status={"updated": 1})
    assert (cpu(quota_demand(running)), cpu(rollout_surge_demand(running))) == (3000, 2000)
    assert units(running) == {"bound": 3}


@pytest.mark.parametrize(
    ("spec", "eligible"),
    [
        ({"reclaimable": True}, True),
        ({}, False),
        ({"reclaimable": True, "exclusive": Exclusivity()}, False),
        ({"reclaimable": True, "gang": Gang(min_available=2)}, False),
        ({"reclaimable": True, "placement": PlacementRules(residency=("eu",))}, False),
        ({"reclaimable": True, "purpose": Purpose.RECOVERY}, False),
    ],
)
def test_only_plain_reclaimable_work_may_be_provisional(spec: dict[str, Any], *, eligible: bool) -> None:
    assert bool(provisional_demand(item(3, **spec))) is eligible


@pytest.mark.parametrize(("replicas", "surge"), [(0, 0), (1, 1), (2, 1)])
def test_surge_is_for_work_that_has_replicas(replicas: int, surge: int) -> None:
    assert cpu(rollout_surge_demand(item(replicas, rollout=Rollout(max_surge=1)))) == surge * 1000
