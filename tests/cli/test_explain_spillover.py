"""`holdfast explain` shows replicas pending in a full region and replicas moved out of one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.insight.explain import match_lines, pending_requests, spillover_lines
from holdfast.insight.region_clients import RegionClient
from holdfast.insight.replay import SNAPSHOT_KINDS
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.meta import Key
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.reasons import Reason
from holdfast.model.scheduling_request import (
    RefusalCount,
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.workload import AvoidedRegion, RegionWait, SpilloverStatus, Workload


def workload(*waits: RegionWait, left: tuple[AvoidedRegion, ...] = (), **rules: Any) -> Workload:
    made = factories.workload(placement=PlacementRules(**rules))
    status = msgspec.structs.replace(made.status, spillover=SpilloverStatus(pending=waits, avoided_regions=left))
    return msgspec.structs.replace(made, status=status)


def full(region: str = "east", reason: str = "InsufficientCpu") -> Assignment:
    pending = (PendingReason(reason=reason, count=1),)
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


def test_region_without_matching_nodes_is_not_called_full() -> None:
    wait = RegionWait(region="east", reason="LabelsDoNotMatch", since="2026-01-01T00:00:00Z", to="west")
    (line,) = spillover_lines(workload(wait), [full(reason="LabelsDoNotMatch")])
    assert "pending in region east (no node matches) since" in line
    assert "region west has placed all its replicas of the workload, replicas move there after 60 s" in line
    (line,) = spillover_lines(workload(), [full(reason="LabelsDoNotMatch")])
    assert "none from region east (no node matches): no other region has placed all its replicas" in line


def test_region_without_quota_is_not_called_full() -> None:
    (line,) = spillover_lines(workload(), [full(reason="QuotaExceeded")])
    assert line.startswith("spillover: none from region east (no quota left): no other region has room and quota")


def test_regions_with_matching_nodes_are_named_for_replicas_that_no_node_matches() -> None:
    rules = PlacementRules(node_selector={"disk": "ssd"})
    spec = SchedulingRequestSpec(
        workload="web",
        assignment="web",
        revision="1",
        template=factories.TEMPLATE,
        placement=rules,
        members=(RequestMember("web-0", "u0"),),
    )
    refused = (
        RefusalCount(reason=Reason.LABELS_DO_NOT_MATCH, nodes=1),
        RefusalCount(reason=Reason.TENANCY_VIOLATED, nodes=1),
    )
    status = SchedulingRequestStatus(pending=1, reasons=refused)
    request = SchedulingRequest(factories.meta("web", "acme"), spec, status)
    ssd = factories.node("n2")
    ssd = msgspec.structs.replace(ssd, metadata=msgspec.structs.replace(ssd.metadata, labels={"disk": "ssd"}))
    kinds = [kind for kind in (*SNAPSHOT_KINDS, "SchedulingRequest", "GrantCopy", "PolicyRevision", "Override")]
    empty: dict[str, list[Any]] = {kind: [] for kind in kinds}
    east = RegionClient.holding("east", {**empty, "Node": [factories.node("n1")], "SchedulingRequest": [request]})
    west = RegionClient.holding("west", {**empty, "Node": [ssd]})
    waits = pending_requests(east, Key("acme", "web"))
    (line,) = match_lines(waits, [east, west])
    assert line == (
        "no node of region east matches the workload: nodes of west do; next: set spec.placement.regions: [west]"
    )
    other_tenant = msgspec.structs.replace(ssd, spec=msgspec.structs.replace(ssd.spec, tenant="bank"))
    dedicated = RegionClient.holding("west", {**empty, "Node": [other_tenant]})
    (line,) = match_lines(waits, [east, dedicated])
    assert line.endswith("nor does one of another region")
