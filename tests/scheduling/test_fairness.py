"""Fairness between tenants within one slice, no starvation, and deadline conditions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import factories
from tests.authority.cell import TENANT
from tests.controllers.virtual import until
from tests.scheduling.test_preemption import waiting
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.model.binding import CapacityClass
from holdfast.model.meta import ObjectMeta
from holdfast.model.quantity import amounts
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import QueueKey
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.model.times import parse_time
from holdfast.model.workload import Gang
from holdfast.scheduling.queue_order import (
    FAIR_QUEUE_SLICE,
    QueueSlice,
    deadline_reason,
    dominant_share,
    dominant_shares,
    fair_slices,
    order_requests,
)
from holdfast.scheduling.snapshot import SnapshotBuilder

KEYS = tuple(QueueKey)
TOTAL = amounts({"cpu": "1000", "memory": "4000Gi"})


def request(tenant: str, name: str, count: int, *, cpu: str = "1", priority: int = 0, **spec: Any) -> SchedulingRequest:
    template = Template(command=("x",), resources={"cpu": cpu, "memory": "1Gi"})
    members = tuple(RequestMember(f"{name}-{i}", f"{tenant}-{name}-{i}") for i in range(count))
    return SchedulingRequest(
        factories.meta(name, tenant),
        SchedulingRequestSpec(
            workload=name, assignment=name, revision="1", template=template, members=members, priority=priority, **spec
        ),
    )


def slices_of(requests: list[SchedulingRequest], shares: dict[str, int] | None = None) -> list[QueueSlice]:
    ordered = order_requests(requests, KEYS, shares or {}, {})
    counts = {r.key: len(r.spec.members) for r in ordered}
    return list(fair_slices(ordered, counts, KEYS, shares or {}, TOTAL))


def test_tenant_with_recovery_replicas_yields_in_the_queue_until_they_are_returned() -> None:
    """The fairness window of a disaster: recovery use counts in the dominant share, although no quota pays for it."""
    borrowed = factories.replica(0, factories.assignment("risk", "us-east", namespace="pay"))
    borrowed = msgspec.structs.replace(borrowed, status=factories.bound_status("n1", name="risk-0"))
    claim = factories.binding(borrowed, resources={"cpu": "4", "memory": "1Gi"}, capacity_class=CapacityClass.RECOVERY)
    builder = SnapshotBuilder("us-east")
    builder.upsert(factories.node())
    builder.upsert(claim)
    older, newer = request("pay", "web", 1), request("shop", "web", 1)

    def first() -> str:
        shares = dominant_shares(builder.tenant_use(), builder.total_capacity())
        return order_requests([older, newer], KEYS, shares, {})[0].metadata.namespace

    assert builder.ordinary_use("pay") == {}, "it costs no ordinary quota"
    assert first() == "shop", "the tenant with recovery replicas goes second"
    builder.delete(claim)
    assert first() == "pay", "after the return the order is as before"


demand = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 300), st.sampled_from(["500m", "1", "4"]))


@settings(max_examples=100, deadline=None)
@given(st.lists(demand, min_size=1, max_size=12))
def test_fair_slices_cover_all_members_within_one_slice_of_fairness(drawn: list[tuple[str, int, str]]) -> None:
    requests = [request(tenant, f"r{i}", count, cpu=cpu) for i, (tenant, count, cpu) in enumerate(drawn)]
    given_out = slices_of(requests)
    counts: dict[str, int] = {}
    for turn in given_out:
        counts[turn.request.metadata.name] = counts.get(turn.request.metadata.name, 0) + turn.members
    assert counts == {f"r{i}": count for i, (_, count, _) in enumerate(drawn)}, "each member exactly once"
    left = {t: sum(c for tenant, c, _ in drawn if tenant == t) for t, _, _ in drawn}
    shares = dict.fromkeys(left, 0)
    slice_share = dominant_share(amounts({"cpu": "4", "memory": "1Gi"}), TOTAL) * FAIR_QUEUE_SLICE
    for turn in given_out:
        tenant = turn.request.metadata.namespace
        waiting_still = [t for t, count in left.items() if count and t != tenant]
        assert all(shares[tenant] <= shares[t] for t in waiting_still), "the smallest share goes next"
        one = dominant_share(amounts(turn.request.spec.template.resources), TOTAL)
        shares[tenant] += one * turn.members
        left[tenant] -= turn.members
        if waiting_still:
            assert shares[tenant] - min(shares[t] for t in waiting_still) <= slice_share, "at most a slice ahead"


def test_large_tenant_delays_small_tenant_by_at_most_one_slice() -> None:
    given_out = slices_of([request("greedy", f"r{i}", 500) for i in range(10)] + [request("small", "s", 10)])
    before = 0
    for turn in given_out:
        if turn.request.metadata.namespace == "small":
            break
        before += turn.members
    assert before <= FAIR_QUEUE_SLICE


def test_higher_priority_is_planned_first_despite_larger_share() -> None:
    given_out = slices_of([request("a", "low", 3), request("b", "high", 3, priority=9)], {"b": 900_000})
    assert [t.request.metadata.name for t in given_out] == ["high", "low"]


def test_gang_is_one_slice() -> None:
    gang = request("a", "ring", 200)
    spec = msgspec.structs.replace(gang.spec, gang=gang_status())
    given_out = slices_of([msgspec.structs.replace(gang, spec=spec), request("b", "other", 100)])
    assert [t.members for t in given_out if t.request.metadata.name == "ring"] == [200]


def gang_status() -> Gang:
    return Gang(min_available=200)


def test_deadline_reason_is_at_risk_before_missed() -> None:
    late = request("a", "batch", 1, deadline="2026-01-01T01:00:00Z")
    assert deadline_reason(late, parse_time("2026-01-01T00:30:00Z")) is None
    assert deadline_reason(late, parse_time("2026-01-01T00:45:00Z")) is Reason.DEADLINE_AT_RISK
    assert deadline_reason(late, parse_time("2026-01-01T01:00:00Z")) is Reason.DEADLINE_MISSED
    assert deadline_reason(request("a", "other", 1), 9e9) is None


def test_low_priority_under_higher_priority_stream_is_placed() -> None:
    """Higher priorities keep arriving and leave enough capacity for the low one."""

    async def test(region: Region) -> None:
        await waiting(region, "low", 2, cpu="1", priority=0)
        for number in range(20):
            await waiting(region, f"hi{number}", 1, cpu="1", priority=9)
            await asyncio.sleep(0.05)
        await until(lambda: {"low-0", "low-1"} <= set(region.bound()))

    in_region(test)


def test_pending_request_past_deadline_has_deadline_conditions() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        made = await cell.replica("late-0", template={"resources": {"cpu": "100"}})
        meta = ObjectMeta(name="late", namespace=TENANT, generation=1, creation_timestamp="2023-11-14T22:13:20Z")
        spec = SchedulingRequestSpec(
            workload="late",
            assignment="late",
            revision="1",
            template=made.spec.template,
            members=(RequestMember("late-0", made.uid),),
            deadline="2023-11-14T22:14:20.000000Z",
        )
        await cell.put(SchedulingRequest(meta, spec))

        def true_now() -> list[str]:
            return [c.type for c in region.stored("late").status.conditions if c.status == "True"]

        await until(lambda: true_now() == ["DeadlineAtRisk"])
        await until(lambda: true_now() == ["DeadlineMissed"])

    in_region(test)
