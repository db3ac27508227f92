"""`holdfast explain` of replicas that wait for quota names one sufficient raise in every region, from all cells."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories
from tests.authority.cell import TENANT
from tests.insight.test_quota_needs import assignment
from tests.insight.test_what_if_quota import copy, quota
from tests.rules.consumers import NOW, OTHER, REGION, StoredCell

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.insight import explain, region_clients
from holdfast.insight.explain import explanation_of
from holdfast.insight.region_clients import RegionClient, RegionClients
from holdfast.model.assignment import Assignment
from holdfast.model.meta import Key, Object
from holdfast.model.reasons import Reason
from holdfast.model.scheduling_request import (
    RefusalCount,
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "now_s", lambda: NOW)
    monkeypatch.setattr(region_clients, "now_s", lambda: NOW)


def waiting(item: Assignment, reason: Reason) -> SchedulingRequest:
    spec = item.spec
    members = tuple(RequestMember(f"{spec.workload}-{i}", f"{spec.region}-{i}") for i in range(spec.replicas))
    wanted = SchedulingRequestSpec(
        workload=spec.workload, assignment=item.metadata.name, revision="1", template=spec.template, members=members
    )
    status = SchedulingRequestStatus(pending=len(members), reasons=(RefusalCount(reason=reason, message="too much"),))
    return SchedulingRequest(factories.meta(spec.workload, TENANT), wanted, status)


def explained(*items: Assignment, reason: Reason = Reason.QUOTA_EXCEEDED, cpu: str = "500m") -> list[str]:
    """The suggested fixes; each region has one node of 8 cpu, and a grant of so much cpu."""
    above: list[Object] = [factories.region(REGION), factories.region(OTHER), quota("1"), *items]
    workload = factories.workload("web", TENANT)
    regions = []
    for number, name in enumerate((REGION, OTHER)):
        node = factories.node(f"n{number}", capacity={"cpu": str(8 - 4 * number), "memory": "32Gi"})
        inside = [waiting(a, reason) for a in items if a.spec.region == name]
        cell: Any = StoredCell(node, copy(cpu), *inside)
        regions.append(RegionClient(cell, name))
    over: Any = StoredCell(workload, *above)
    found = explanation_of(RegionClients(over, regions), Key(TENANT, "web"))
    return [timeline.suggested_fix for timeline in found.timelines]


def test_every_region_names_the_raise_that_covers_all_waiting_replicas() -> None:
    items = (assignment("web", REGION, 2, "600m"), assignment("web", OTHER, 1, "600m"))
    fixes = explained(*items, assignment("api", OTHER, 2, "100m", bound=2))
    assert len(fixes) == 2
    for fix in fixes:
        assert "ask for at most 266m cpu instead of 600m" in fix
        assert f"raise the Quota of tenant {TENANT} by 1 cpu, to 2 cpu: it then covers all 3 waiting replicas" in fix


def test_every_region_names_the_smaller_request_that_fits_in_all_of_them() -> None:
    items = (assignment("web", REGION, 2, "64"), assignment("web", OTHER, 2, "64"))
    fixes = explained(*items, reason=Reason.INSUFFICIENT_CPU, cpu="1000")
    assert [fix.partition(" cpu")[0] for fix in fixes] == ["ask for at most 2"] * 2


def test_without_the_global_cell_no_amount_is_named() -> None:
    class Silent(StoredCell):
        def request(self, method: str, path: str, *, query: dict[str, str]) -> dict[str, Any]:
            raise CommandError("connection refused", code=ExitCode.UNREACHABLE)

    item = assignment("web", REGION, 2, "600m")
    over: Any = Silent()
    cell: Any = StoredCell(factories.node("n1"), copy("500m"), item, waiting(item, Reason.QUOTA_EXCEEDED))
    found = explanation_of(RegionClients(over, [RegionClient(cell, REGION)]), Key(TENANT, "web"))
    assert found.timelines[0].suggested_fix == (
        f"stop other workloads of tenant {TENANT}; or: raise the Quota of tenant {TENANT}"
    )
    assert msgspec.to_builtins(found)["summary"][0].startswith("the global cell does not answer")
