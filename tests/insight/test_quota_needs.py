"""The raise of a Quota that `to fit` names covers everything of the tenant that waits for quota alone."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests import factories
from tests.authority.cell import TENANT
from tests.insight.test_what_if_quota import planned, quota
from tests.rules.consumers import NOW, OTHER, REGION, Situation

from holdfast.controllers.cache import Cache
from holdfast.fleet.grant_demand import demand_by_region, quota_demand
from holdfast.insight import what_if
from holdfast.insight.planned_quota import planned_grants, put_planned
from holdfast.insight.quota_needs import QuotaNeed, quota_need
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.quantity import Amount, Amounts, amounts, amounts_text
from holdfast.model.quota import Quota, QuotaSpec


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "now_s", lambda: NOW)


def assignment(name: str, region: str, replicas: int, cpu: str, *, bound: int = 0) -> Assignment:
    status = AssignmentStatus(observed_epoch=1, replicas=replicas, bound=bound, updated=replicas)
    template = msgspec.structs.replace(Situation().template, resources={"cpu": cpu, "memory": "64Mi"})
    return factories.assignment(name, region, namespace=TENANT, replicas=replicas, template=template, status=status)


def tenant_view(quota_: Quota, *objects: Any) -> Cache:
    found: Cache = factories.cache_of(factories.region(REGION), factories.region(OTHER), quota_, *objects)
    return found


def with_raise(view: Cache, need: QuotaNeed) -> None:
    """Applies the named change."""
    old = view.get(Quota, "quota", TENANT)
    assert old is not None
    caps = {region: dict(values) for region, values in old.spec.region_caps.items()}
    for region, values in need.caps.items():
        caps[region] |= amounts_text(values)
    spec = msgspec.structs.replace(old.spec, hard={**old.spec.hard, **amounts_text(need.hard)}, region_caps=caps)
    put_planned(view, msgspec.structs.replace(old, spec=spec))


def uncovered(view: Cache) -> dict[str, Amounts]:
    """What the tenant's regions lack after the grants have settled."""
    limits = {g.spec.region: amounts(g.spec.limit) for g in planned_grants(view, TENANT, NOW)}
    wanted = demand_by_region(view.total(Assignment, TENANT, quota_demand), Purpose.NORMAL)
    short = {
        region: {
            n: a - limits.get(region, {}).get(n, 0) for n, a in values.items() if a > limits.get(region, {}).get(n, 0)
        }
        for region, values in wanted.items()
    }
    return {region: values for region, values in short.items() if values}


def test_raise_counts_all_waiting_replicas_of_the_tenant_in_all_regions() -> None:
    view = tenant_view(
        quota("2"),
        assignment("web", REGION, 4, "500m", bound=3),
        assignment("web", OTHER, 2, "500m", bound=1),
        assignment("api", OTHER, 3, "300m"),
    )
    need = quota_need(view, TENANT, NOW)
    assert need is not None
    assert need.raise_text() == (
        f"raise the Quota of tenant {TENANT} by 1900m cpu, to 3900m cpu: "
        "it then covers all 5 waiting replicas of the tenant"
    )
    assert uncovered(view)
    with_raise(view, need)
    assert not uncovered(view)


def test_a_cap_of_a_region_is_named_with_the_value_that_is_sufficient() -> None:
    view = tenant_view(quota("8", region_caps={REGION: {"cpu": "1"}}), assignment("web", REGION, 3, "500m"))
    need = quota_need(view, TENANT, NOW)
    assert need is not None and uncovered(view)
    assert need.raise_text().startswith(
        f"raise regionCaps.{REGION} to 1500m cpu in the Quota of tenant {TENANT}: it then"
    )
    with_raise(view, need)
    assert not uncovered(view)


def test_a_quota_that_covers_everything_needs_no_raise() -> None:
    need = quota_need(tenant_view(quota("8"), assignment("web", REGION, 3, "500m")), TENANT, NOW)
    assert need is not None and need.raise_text() == ""
    assert quota_need(Cache(), TENANT, NOW) is None


@pytest.mark.parametrize("seed", range(60))
def test_after_the_named_raise_everything_that_waited_for_quota_is_covered(seed: int) -> None:
    chance = random.Random(seed)
    items = []
    for number in range(chance.randint(1, 5)):
        for region in chance.sample([REGION, OTHER], chance.randint(1, 2)):
            replicas = chance.randint(1, 6)
            cpu = chance.choice(["100m", "300m", "500m", "1", "7"])
            items.append(assignment(f"w{number}", region, replicas, cpu, bound=chance.choice([0, 0, replicas // 2])))
    caps: dict[str, dict[str, Amount]] = {REGION: {"cpu": chance.choice(["1", "3"])}} if chance.random() < 0.3 else {}
    hard = {"cpu": chance.choice(["1", "2500m", "5"]), "memory": chance.choice(["64Mi", "1Gi"])}
    if chance.random() < 0.2:
        del hard["memory"]
    view = tenant_view(Quota(factories.meta("quota", TENANT), QuotaSpec(dict(hard), region_caps=caps)), *items)
    planned_grants(view, TENANT, NOW)
    need = quota_need(view, TENANT, NOW)
    assert need is not None
    assert bool(need.raise_text()) == bool(uncovered(view))
    with_raise(view, need)
    assert not uncovered(view)


def test_replicas_beyond_the_quota_are_placed_after_the_named_raise() -> None:
    found = planned(quota("2500m"), replicas=5)
    assert [bool(p.node) for p in found] == [True, True, False, False, False]
    assert f"raise the Quota of tenant {TENANT} by 2500m cpu, to 5 cpu" in found[-1].to_fit
    assert all(p.node for p in planned(quota("5"), replicas=5))


def test_a_smaller_request_is_named_that_the_quota_covers_for_every_replica() -> None:
    view = tenant_view(quota("2"), assignment("old", REGION, 1, "500m", bound=1), assignment("web", REGION, 4, "1"))
    need = quota_need(view, TENANT, NOW)
    assert need is not None and need.shares == {"web": {"cpu": 375, "memory": need.shares["web"]["memory"]}}
    shrunk = tenant_view(
        quota("2"), assignment("old", REGION, 1, "500m", bound=1), assignment("web", REGION, 4, "375m")
    )
    assert not uncovered(shrunk)
