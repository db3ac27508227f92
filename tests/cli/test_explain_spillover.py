"""`holdfast explain` shows replicas pending in a full region and replicas moved out of one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.insight.explain import spillover_lines
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.workload import AvoidedRegion, RegionWait, SpilloverStatus, Workload


def workload(*waits: RegionWait, left: tuple[AvoidedRegion, ...] = (), **rules: Any) -> Workload:
    made = factories.workload(placement=PlacementRules(**rules))
    status = msgspec.structs.replace(made.status, spillover=SpilloverStatus(pending=waits, avoided_regions=left))
    return msgspec.structs.replace(made, status=status)


def full(region: str = "east") -> Assignment:
    pending = (PendingReason(reason="InsufficientCpu", count=1),)
    status = AssignmentStatus(observed_epoch=1, replicas=2, bound=1, queued=1, pending=pending)
    return factories.assignment("web", region, replicas=2, status=status)


def test_spillover_wait_and_move_have_reason_and_time() -> None:
    wait = RegionWait(region="east", reason="InsufficientCpu", since="2026-01-01T00:00:00Z", to="west")
    left = AvoidedRegion(
        region="north",
        to="west",
        replicas=2,
        reason="NoNodes",
        message="none at all",
        at="2026-01-01T00:00:00Z",
        avoid_until="2026-01-01T00:10:00Z",
    )
    waits, moved = spillover_lines(workload(wait, left=(left,)), [full()])
    assert "east" in waits and "InsufficientCpu" in waits and "region west has room" in waits and "60 s" in waits
    assert "2 replicas moved from north to west" in moved and "NoNodes: none at all" in moved
    assert "north is avoided until 2026-01-01T00:10:00Z" in moved
    assert spillover_lines(workload(), []) == []


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"spread_regions": 1}, "spreadRegions is 1, and replicas are in east"),
        ({"regions": ("east",)}, "no other region that spec.placement allows (regions east) has room"),
        ({"excluded_regions": ("west",)}, "(excludedRegions west)"),
        ({"residency": ("eu",)}, "(residency eu)"),
        ({}, "no other region has room and quota for them now"),
    ],
)
def test_forbidden_spillover_is_not_promised_and_names_the_rule(rules: dict[str, Any], says: str) -> None:
    (line,) = spillover_lines(workload(**rules), [full()])
    assert "none from full region east" in line and says in line
    wait = RegionWait(region="east", reason="InsufficientCpu", since="2026-01-01T00:00:00Z")
    (line,) = spillover_lines(workload(wait, **rules), [full()])
    assert "replicas stay there" in line and says in line and "move" not in line
