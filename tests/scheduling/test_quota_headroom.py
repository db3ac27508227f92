"""Quota headroom in the planner: requests beyond quota are refused at once and block no other request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests import factories
from tests.controllers.virtual import until
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.model.assignment import Purpose
from holdfast.model.binding import CapacityClass
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.quantity import Amount
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling.plan import RequestPlan, plan, requirements_of
from holdfast.scheduling.plan.decision_record import decision_inputs
from holdfast.scheduling.quota_headroom import headroom_of, recorded_headroom
from holdfast.scheduling.snapshot import SnapshotBuilder
from holdfast.scheduling.snapshot.builder import build_snapshot

NOW = 1_767_225_600.0
LATER, BEFORE = "2026-01-01T01:00:00Z", "2025-12-31T23:00:00Z"
ENOUGH = {"cpu": 8_000, "memory": 2**40}


def copy(limit: dict[str, Amount], kind: GrantClass = GrantClass.NORMAL, **spec: Any) -> GrantCopy:
    return GrantCopy(factories.meta(kind.value.lower(), "acme"), GrantCopySpec(kind, limit, **spec))


@pytest.mark.parametrize(
    ("copies", "used", "headroom"),
    [
        ([], {}, {}),
        ([copy({"cpu": "4"})], {}, {"cpu": 4_000}),
        ([copy({"cpu": "4"})], {"cpu": 1_500}, {"cpu": 2_500}),
        ([copy({"cpu": "4"})], {"cpu": 9_000}, {"cpu": 0}),
        ([copy({"memory": "1Ki"})], {}, {"cpu": 0, "memory": 1_024}),
        ([copy({"cpu": "4"}), copy({"cpu": "2"}, GrantClass.EMERGENCY)], {"cpu": 5_000}, {"cpu": 1_000}),
        ([copy({"cpu": "4"}, GrantClass.RECOVERY)], {}, {}),
        ([copy({"cpu": "4"}, provisional={"cpu": "1"})], {}, {"cpu": 3_000}),
        ([copy({"cpu": "4"}, lease_expires_at=LATER)], {}, {"cpu": 4_000}),
        ([copy({"cpu": "4"}, lease_expires_at=BEFORE)], {}, None),
        ([copy({"cpu": "4"}), copy({"cpu": "2"}, GrantClass.EMERGENCY, lease_expires_at=BEFORE)], {}, None),
        ([copy({}, GrantClass.EMERGENCY, lease_expires_at=BEFORE), copy({"cpu": "4"})], {"cpu": 1_000}, {"cpu": 3_000}),
        (
            [copy({"cpu": "0"}, GrantClass.EMERGENCY, lease_expires_at=BEFORE), copy({"memory": "1Ki"})],
            {"cpu": 500},
            {"cpu": 0, "memory": 1_024},
        ),
        ([copy({}, lease_expires_at=BEFORE)], {}, None),
    ],
)
def test_headroom_is_grants_minus_usage(
    copies: list[GrantCopy], used: dict[str, int], headroom: dict[str, int] | None
) -> None:
    assert headroom_of(copies, used, NOW) == headroom


def request(name: str, count: int, *, cpu: str = "1", namespace: str = "acme", **spec: Any) -> SchedulingRequest:
    members = tuple(RequestMember(f"{name}-{n}", f"{name}{n}") for n in range(count))
    template = Template(command=("serve",), resources={"cpu": cpu, "memory": "1Gi"})
    spec = {"workload": name, "assignment": name, "revision": "1", "template": template, "members": members, **spec}
    return SchedulingRequest(factories.meta(name, namespace), SchedulingRequestSpec(**spec))


def planned(*requests: tuple[SchedulingRequest, dict[str, int] | None], cpus: str = "8") -> tuple[RequestPlan, ...]:
    snapshot = build_snapshot("here", [factories.node("n0", capacity={"cpu": cpus, "memory": "64Gi"})])
    return plan(
        snapshot, [requirements_of(item, quota_headroom=headroom) for item, headroom in requests], PolicyRules(), NOW, 1
    ).request_plans


def test_equivalent_requests_beyond_quota_record_actual_headroom() -> None:
    headroom = {"cpu": 3_000, "memory": 2**40}
    made = planned(
        (request("a", 2), headroom), (request("b", 1, cpu="2"), headroom), (request("c", 1, cpu="2"), headroom)
    )
    assert [len(outcome.proposals) for outcome in made] == [2, 0, 0]
    assert (
        made[1].requirements.quota_headroom
        == made[2].requirements.quota_headroom
        == {"cpu": 1_000, "memory": 2**40 - 2 * 2**30}
    )


@pytest.mark.parametrize("headroom", [None, {}, {"cpu": 0}, {"cpu": 0, "memory": 2**30}, ENOUGH])
def test_recorded_headroom_gives_same_plan(headroom: dict[str, int] | None) -> None:
    item = request("w", 3)
    (made,) = planned((item, headroom))
    again = recorded_headroom(decision_inputs(made.requirements))
    assert (again is None, bool(again)) == (headroom is None, bool(headroom))
    (repeated,) = planned((item, again))
    assert (repeated.proposals, repeated.unplaced, repeated.refusals) == (made.proposals, made.unplaced, made.refusals)


def test_recovery_requirements_have_no_headroom_limit() -> None:
    item = request("w", 1, purpose=Purpose.RECOVERY)
    assert requirements_of(item, quota_headroom={}).quota_headroom is None
    made = requirements_of(request("x", 1), quota_headroom=ENOUGH)
    assert (
        made.claim("n0", made.members[0], ()).ordinary
        and not requirements_of(item).claim("n0", made.members[0], ()).ordinary
    )


def test_ordinary_usage_excludes_recovery_and_provisional_claims() -> None:
    builder = SnapshotBuilder("here")
    for name, more in (
        ("a", {}),
        ("b", {"capacity_class": CapacityClass.RECLAIMABLE}),
        ("c", {"capacity_class": CapacityClass.RECOVERY}),
        ("d", {"run_until": LATER}),
        ("e", {"quota_released": True}),
    ):
        item = factories.binding(factories.replica(), resources={"cpu": "1"}, **more)
        builder.upsert(factories.with_new_revision(item, metadata=factories.meta(f"{name}.1", "acme")))
    assert builder.ordinary_use("acme") == {"cpu": 2_000}


def test_scheduler_reports_quota_exceeded_without_proposing() -> None:
    async def test(region: Region) -> None:
        await region.cell.grant(limit={"cpu": "2", "memory": "1000Gi"})
        await until(lambda: bool(region.informers.cache.list(GrantCopy)))
        await asyncio.sleep(1.0)
        await region.request("web", await region.replicas(5))
        await until(lambda: region.stored().status.pending == 3)
        status = region.stored().status
        assert [r.reason for r in status.reasons] == [Reason.QUOTA_EXCEEDED]
        assert sum(len(sent.items) for sent in region.scheduler_client.proposed) == 2, (
            "nothing beyond quota was proposed"
        )
        await region.cell.grant()
        await until(lambda: len(region.bound()) == 5, within_s=5)

    in_region(test)


@pytest.mark.parametrize("first", [1, 2])
def test_cached_refusals_do_not_include_quota_of_other_request(first: int) -> None:
    """Two equivalent infeasible requests, one within quota: each gets the refusals it would get alone."""
    headroom = {"cpu": 4000, "memory": 64 * 2**30}
    asked = [(request("a", first, cpu="4"), headroom), (request("b", 3 - first, cpu="4"), headroom)]
    together = planned(*asked, cpus="2")
    for one, made in zip(asked, together, strict=True):
        (alone,) = planned(one, cpus="2")
        assert made.refusals == alone.refusals
        paid = len(one[0].spec.members) == 1
        assert (Reason.QUOTA_EXCEEDED in [r.reason for r in made.refusals]) is not paid
