"""Cells of `kubectl get` tables that say more than one field."""

from __future__ import annotations

import msgspec
import pytest
from tests.factories import meta, region, with_new_revision

from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.region import HealthState, Region
from holdfast.model.scheduling_request import (
    RefusalCount,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.template import Template
from holdfast.server import tables


def with_nodes(live: int, nodes: int, state: HealthState = HealthState.HEALTHY) -> Region:
    made = region("east")
    assert made.status.report is not None
    report = msgspec.structs.replace(made.status.report, live_nodes=live, nodes=nodes)
    health = msgspec.structs.replace(made.status.health, state=state)
    return with_new_revision(made, status=msgspec.structs.replace(made.status, report=report, health=health))


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (with_nodes(2, 2), "Healthy"),
        (with_nodes(1, 2), "Healthy"),
        (with_nodes(0, 2), "NoLiveNodes"),
        (with_nodes(0, 0), "Healthy"),
        (with_nodes(0, 2, HealthState.LOST), "Lost"),
    ],
)
def test_region_without_live_nodes_is_not_shown_as_healthy(item: Region, text: str) -> None:
    row = dict(zip((c.name for c in tables.COLUMNS["Region"]), tables.cells("Region", item, 0.0)[1:], strict=False))
    assert row["Health"] == text


@pytest.mark.parametrize(
    ("state", "nodes"), [(HealthState.HEALTHY, "2/2"), (HealthState.SUSPECT, "2/2"), (HealthState.LOST, "<none>")]
)
def test_last_report_of_a_lost_region_is_not_shown_as_its_state(state: HealthState, nodes: str) -> None:
    item = with_nodes(2, 2, state)
    row = dict(zip((c.name for c in tables.COLUMNS["Region"]), tables.cells("Region", item, 0.0)[1:], strict=False))
    assert row["Nodes"] == nodes
    assert (row["CPU"] == "<none>") == (state is HealthState.LOST)


def test_reason_that_no_node_causes_is_shown_without_a_count() -> None:
    reasons = (RefusalCount(reason="QuotaExceeded"), RefusalCount(reason="InsufficientCpu", nodes=3))
    spec = SchedulingRequestSpec(
        workload="api", assignment="a", revision="r", template=Template(command=("x",)), members=()
    )
    item = SchedulingRequest(metadata=meta("r", "acme"), spec=spec, status=SchedulingRequestStatus(reasons=reasons))
    text = " ".join(str(cell) for cell in tables.cells("SchedulingRequest", item, 0.0))
    assert "QuotaExceeded,InsufficientCpu(3)" in text.replace(", ", ",") and "(0)" not in text
    decision = Decision(meta("d", "acme"), DecisionSpec(request="r", workload="api", refusals=reasons))
    text = " ".join(str(cell) for cell in tables.cells("Decision", decision, 0.0))
    assert "QuotaExceeded,InsufficientCpu(3)" in text and "(0)" not in text
