"""Forecast of a region loss: nodes, preempted and pending replicas, and workloads without a recovery objective."""

from __future__ import annotations

import pytest
from tests.factories import assignment, batch_assignment, cache_of, priority, region, workload

from holdfast.fleet.recovery.backing import Loss
from holdfast.fleet.recovery.target_plan import plan_targets
from holdfast.insight.region_loss import has_work, loss_outcome, replica_rows
from holdfast.insight.what_if import PlannedPlacement
from holdfast.model.assignment import AssignmentStatus
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.region import HealthState

FITS = PlannedPlacement("west", "risk-west-r0", "west-1", ())
PREEMPTS = PlannedPlacement("west", "risk-west-r1", "west-2", ("spare/fill-west-3.1", "spare/fill-west-4.2"))
PENDING = PlannedPlacement(
    "west", "risk-west-r2", reason="PortsExhausted", message="no free port", to_fit="free a port"
)


def test_planned_placements_are_listed_by_outcome() -> None:
    rows = replica_rows([FITS, PREEMPTS, PENDING])
    assert [(p["replica"], p["node"]) for p in rows["places"]] == [
        ("risk-west-r0", "west-1"),
        ("risk-west-r1", "west-2"),
    ]
    assert [(e["tenant"], e["replica"], e["for"]) for e in rows["evicts"]] == [
        ("spare", "fill-west-3", "risk-west-r1"),
        ("spare", "fill-west-4", "risk-west-r1"),
    ]
    assert [(w["replica"], w["reason"], w["toFit"]) for w in rows["waits"]] == [
        ("risk-west-r2", "PortsExhausted", "free a port")
    ]


@pytest.mark.parametrize(
    ("rules", "state", "elsewhere"),
    [
        (PlacementRules(), HealthState.HEALTHY, True),
        (PlacementRules(), HealthState.LOST, False),
        (PlacementRules(regions=("west",)), HealthState.HEALTHY, False),
    ],
    ids=["healthy", "lost too", "not allowed"],
)
def test_replicas_start_elsewhere_only_if_a_healthy_region_may_run_them(
    rules: PlacementRules, state: HealthState, elsewhere: bool
) -> None:
    web = workload("web", placement=rules)
    view = cache_of(priority(), web, region("west"), region("east", state=state), assignment("web", "west"))
    (row,) = loss_outcome(plan_targets(Loss("west"), view, 0.0), view)["unprotected"]
    assert row["workload"] == "web" and row["canRunElsewhere"] is elsewhere


def test_completed_batch_has_no_work_to_recover() -> None:
    assert has_work(batch_assignment(4, 2, status=AssignmentStatus(succeeded=3)))
    assert not has_work(batch_assignment(4, 2, status=AssignmentStatus(succeeded=4)))
    assert has_work(assignment(replicas=1))
    assert not has_work(assignment(replicas=0))
