"""`holdfast plan` and `holdfast why-not` count the tenant's quota with the predicates of the platform."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories
from tests.authority.cell import TENANT
from tests.rules.consumers import NOW, OTHER, REGION, WORKLOAD, Situation, StoredCell

from holdfast.client.sync_api import ApiRefusal
from holdfast.insight import what_if
from holdfast.insight.region_clients import RegionClient, RegionClients
from holdfast.insight.what_if import (
    ManifestWorkload,
    PlannedPlacement,
    explain_node,
    node_elsewhere,
    what_if_applied,
    what_if_drained,
)
from holdfast.model.assignment import AssignmentStatus
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Object
from holdfast.model.quantity import Amount
from holdfast.model.quota import Grant, GrantSpec, GrantStatus, Quota, QuotaSpec, grant_name
from holdfast.model.replica import Replica


def quota(cpu: str, **spec: Any) -> Quota:
    return Quota(factories.meta("quota", TENANT), QuotaSpec({"cpu": cpu, "memory": "64Gi"}, **spec))


def copy(cpu: str) -> GrantCopy:
    return GrantCopy(factories.meta("normal", TENANT), GrantCopySpec(limit={"cpu": cpu, "memory": "64Gi"}))


def grant(region: str, cpu: str, used: str = "0") -> Grant:
    """A Grant that its region enforces."""
    limit: dict[str, Amount] = {"cpu": cpu, "memory": "8Gi"}
    status = GrantStatus(acknowledged_epoch=1, limit=limit, used={"cpu": used})
    return Grant(factories.meta(grant_name(region), TENANT), GrantSpec(region, limit=limit), status)


def planned(
    *above: Object, inside: tuple[Object, ...] = (), replicas: int = 1, names: tuple[str, ...] = (WORKLOAD,)
) -> tuple[PlannedPlacement, ...]:
    """The placements of workloads of 1 cpu per replica in the region, which has a node of 8 cpu."""
    asked = Situation()
    over: Any = StoredCell(asked.tenant, factories.priority(), asked.region, *above)
    cell: Any = StoredCell(asked.node, asked.region, *inside)
    wanted = asked.workload(replicas=replicas)
    manifests = [
        ManifestWorkload(
            msgspec.structs.replace(wanted, metadata=msgspec.structs.replace(wanted.metadata, name=name)), {}
        )
        for name in names
    ]
    return what_if_applied(RegionClients(over, [RegionClient(cell, REGION)]), manifests).placings


def bound_replica() -> Replica:
    held = factories.assignment(WORKLOAD, REGION, namespace=TENANT, template=Situation().template)
    return factories.replica(of=held, status=factories.bound_status("n1"))


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "now_s", lambda: NOW)


def test_plan_of_a_workload_beyond_its_quota_waits_for_quota_with_the_numbers() -> None:
    first, second, third = planned(quota("2500m"), replicas=3)
    assert first.node and second.node
    assert (third.node, third.reason) == ("", "QuotaExceeded")
    assert "cpu: available 500m, requested 1" in third.message
    assert third.to_fit == (
        f"ask for at most 833m cpu instead of 1; or: raise the Quota of tenant {TENANT} by 500m cpu, to 3 cpu: "
        "it then covers all 3 waiting replicas of the tenant"
    )


def test_plan_without_a_quota_waits_for_a_grant() -> None:
    (placing,) = planned()
    assert (placing.node, placing.reason) == ("", "NoGrant")
    assert placing.to_fit.startswith(f"create a Quota for tenant {TENANT}")


def test_plan_places_what_a_grant_that_follows_the_demand_will_cover() -> None:
    """The region's present limit is too low; the global cell would raise it."""
    (placing,) = planned(quota("4"), grant(REGION, "500m"), inside=(copy("500m"),))
    assert placing.node


def test_plan_uses_quota_that_another_region_gives_back() -> None:
    unused, used = grant(OTHER, "4"), grant(OTHER, "4", used="4")
    (placing,) = planned(quota("4"), factories.region(OTHER), unused)
    assert placing.node
    held = factories.assignment(
        "other",
        OTHER,
        namespace=TENANT,
        replicas=4,
        template=Situation().template,
        status=AssignmentStatus(observed_epoch=1, replicas=4, bound=4),
    )
    (placing,) = planned(quota("4"), factories.region(OTHER), used, held)
    assert (placing.node, placing.reason) == ("", "QuotaExceeded")


def test_plan_of_a_second_workload_counts_the_first() -> None:
    placings = planned(quota("1"), names=("first", "second"))
    assert [(p.workload, bool(p.node), p.reason) for p in placings] == [
        ("first", True, ""),
        ("second", False, "QuotaExceeded"),
    ]


def test_plan_respects_the_cap_of_a_region() -> None:
    caps: dict[str, dict[str, Amount]] = {REGION: {"cpu": "1"}}
    assert [p.reason for p in planned(quota("8", region_caps=caps), replicas=2)] == ["", "QuotaExceeded"]


def test_drain_counts_the_quota_that_the_drained_replica_returns() -> None:
    replica = bound_replica()
    binding = factories.binding(replica, resources={"cpu": "1"})
    other = factories.node("n2")
    for limit, node in (("1", "n2"), ("500m", "")):
        cell: Any = StoredCell(Situation().node, other, replica, binding, copy(limit))
        (placing,) = what_if_drained(RegionClient(cell, REGION), "n1")
        assert placing.node == node


def test_why_not_names_the_quota_and_not_a_rank() -> None:
    replica = bound_replica()
    cell: Any = StoredCell(Situation().node, Situation().region, replica, copy("500m"))
    found = explain_node(RegionClient(cell, REGION), replica, "n1")
    assert found is not None and not found.feasible
    (blocker,) = found.blockers
    assert blocker.reason == "QuotaExceeded" and "available 500m, requested 1" in blocker.message


def test_why_not_says_which_region_has_the_node_and_why_the_replica_is_in_another() -> None:
    replica = bound_replica()
    held = factories.assignment(WORKLOAD, REGION, namespace=TENANT, reason="1 of 1")
    here: Any = StoredCell(Situation().node, replica, held)
    there: Any = StoredCell(factories.node("n9"))
    region, other = RegionClient(here, REGION), RegionClient(there, OTHER)
    said = node_elsewhere([region, other], region, replica, "n9")
    assert said.startswith(f"node n9 is in region {OTHER}; the replica is assigned to region {REGION}")
    assert node_elsewhere([region, other], region, replica, "n7") == ""


class WithoutTenant(StoredCell):
    def apply(self, document: dict[str, Any], plural: str, *, manager: str, dry_run: bool) -> None:
        raise ApiRefusal("apply", status=404, reason="NotFound", why=f'namespaces "{TENANT}" not found')


def test_tenant_and_quota_of_the_same_manifest_count_as_if_they_were_applied() -> None:
    asked = Situation()
    above: Any = WithoutTenant(factories.priority(), asked.region)
    inside: Any = StoredCell(asked.node, asked.region)
    manifest = ManifestWorkload(asked.workload(replicas=3), {})
    regions = RegionClients(above, [RegionClient(inside, REGION)])
    assert what_if_applied(regions, [manifest]).refused
    found = what_if_applied(regions, [manifest], given=[asked.tenant, quota("2")])
    assert not found.refused
    assert [(bool(p.node), p.reason) for p in found.placings] == [(True, ""), (True, ""), (False, "QuotaExceeded")]


def test_quota_of_the_manifest_replaces_the_stored_one() -> None:
    asked = Situation()
    above: Any = StoredCell(asked.tenant, factories.priority(), asked.region, quota("1"))
    inside: Any = StoredCell(asked.node, asked.region)
    manifest = ManifestWorkload(asked.workload(replicas=3), {})
    for given, placed in (([], 1), ([quota("3")], 3)):
        found = what_if_applied(RegionClients(above, [RegionClient(inside, REGION)]), [manifest], given=given)
        assert sum(bool(p.node) for p in found.placings) == placed
