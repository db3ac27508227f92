"""Groups of equivalent pending requests: fewer scheduling attempts, and every request is still retried."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests import factories
from tests.controllers.virtual import until
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.foundation import metrics
from holdfast.model.assignment import Purpose
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_rules import AffinityRule, PlacementRules, SpreadRule
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RefusalCount, RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.model.workload import Gang
from holdfast.scheduler.request_queue import GROUP_MEMBER_RETRY_S, PendingRequest, RequestQueue
from holdfast.scheduling.equivalence import equivalence_key
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.snapshot.builder import build_snapshot

SHORT = (RefusalCount(reason="InsufficientCpu"),)
FREED = ("CapacityFreed",)
BIG = Template(command=("serve",), resources={"cpu": "20", "memory": "1Gi"})


def request(name: str, *, template: Template = BIG, namespace: str = "acme", **spec: Any) -> SchedulingRequest:
    spec.setdefault("members", (RequestMember(f"{name}-0", f"uid-{name}"),))
    return SchedulingRequest(
        factories.meta(name, namespace),
        SchedulingRequestSpec(workload=name, assignment=name, revision="1", template=template, **spec),
    )


class FailedGroup:
    """A queue of equivalent requests whose first attempts all failed."""

    def __init__(self, count: int) -> None:
        self.queue = RequestQueue(random.Random(1))
        for number in range(count):
            self.queue.put(request(f"w{number:03}"), 0.0)
        for waiting in self.queue.due(0.0):
            self.fail_attempt(waiting, 0.0)

    def fail_attempt(self, waiting: PendingRequest, now: float) -> None:
        self.queue.record_failure(waiting, SHORT, now, retry_on=FREED, equivalence=equivalence_key(waiting.request))

    def due(self, now: float) -> list[str]:
        return sorted(waiting.key.name for waiting in self.queue.due(now))

    def place_due(self, now: float) -> None:
        """All due requests are placed."""
        for waiting in self.queue.due(now):
            self.queue.set_idle(waiting, now)


def test_group_after_backoff_or_event_retries_only_its_leader() -> None:
    group = FailedGroup(100)
    assert group.due(2.0) == ["w000"], "only the leader's backoff applies"
    group.fail_attempt(group.queue.due(2.0)[0], 2.0)
    assert not group.due(2.1)
    assert not group.queue.retry_on_events(["GrantChanged"], 2.2)
    assert group.queue.retry_on_events(FREED, 2.2)
    assert group.due(2.2) == ["w000"]


def test_group_after_placements_tries_members_in_doubling_numbers() -> None:
    group = FailedGroup(100)
    group.queue.retry_on_events(FREED, 10.0)
    sizes = []
    for _ in range(40):
        found = group.due(10.0)
        if not found:
            break
        sizes.append(len(found))
        group.place_due(10.0)
    assert sum(sizes) == 100, "all of them were tried"
    assert sizes[:2] == [1, 1] and max(sizes) >= 16 and len(sizes) < 30


def test_group_after_failed_attempt_stops_trying_members() -> None:
    group = FailedGroup(20)
    group.queue.retry_on_events(FREED, 10.0)
    group.place_due(10.0)
    (second,) = group.queue.due(10.0)
    group.fail_attempt(second, 10.0)
    assert not group.due(10.0)
    group.queue.retry_on_events(FREED, 20.0)
    assert group.due(20.0) == ["w001"]


def test_every_group_member_is_retried_within_group_member_interval() -> None:
    group = FailedGroup(5)
    seen: set[str] = set()
    now = 0.0
    while now < GROUP_MEMBER_RETRY_S:
        now += 1.0
        for waiting in group.queue.due(now):
            seen.add(waiting.key.name)
            group.fail_attempt(waiting, now)
    assert seen == {f"w{number:03}" for number in range(5)}


@pytest.mark.parametrize("how", ["deleted", "changed", "recreated"])
def test_group_without_its_leader_tries_the_next_member(how: str) -> None:
    group = FailedGroup(3)
    first = request("w000")
    match how:
        case "deleted":
            group.queue.drop(first, 5.0)
        case "changed":
            old = next(w for w in group.queue.all() if w.key.name == "w000").request
            group.queue.put(factories.with_new_revision(old, spec=request("w000", priority=7).spec), 5.0)
        case "recreated":
            other = factories.with_new_revision(first)
            meta = factories.meta("w000", "acme", uid="another")
            group.queue.put(SchedulingRequest(meta, other.spec), 5.0)
    assert "w001" in group.due(5.0)


def test_override_event_retries_all_group_members() -> None:
    group = FailedGroup(4)
    for waiting in group.queue.all():
        group.queue.record_failure(
            waiting, SHORT, 0.0, retry_on=("OverrideChanged",), equivalence=equivalence_key(waiting.request)
        )
    group.queue.retry_on_events(["OverrideChanged"], 20.0)
    assert len(group.due(20.0)) == 4


@pytest.mark.parametrize(
    "other",
    [
        request("w", template=Template(command=("serve",), resources={"cpu": "21", "memory": "1Gi"})),
        request("w", namespace="other"),
        request("w", priority=3),
        request("w", reclaimable=True),
        request("w", placement=PlacementRules(zones=("a",))),
    ],
)
def test_requests_with_different_requirements_have_different_keys(other: SchedulingRequest) -> None:
    one = equivalence_key(request("x"))
    assert one and one == equivalence_key(request("y", template=Template(command=("other",), resources=BIG.resources)))
    assert equivalence_key(other) != one


@pytest.mark.parametrize(
    "spec",
    [
        {"gang": Gang(min_available=1)},
        {"may_preempt": True},
        {"purpose": Purpose.RECOVERY},
        {"deadline": "2026-01-01T01:00:00Z"},
        {"placement": PlacementRules(spread=(SpreadRule(topology="zone", max_skew=1),))},
        {"placement": PlacementRules(affinity=(AffinityRule(workload_labels={"a": "b"}, topology="node"),))},
    ],
)
def test_request_with_gang_spread_deadline_or_preemption_has_no_key(spec: dict[str, Any]) -> None:
    assert equivalence_key(request("x", **spec)) == b""


def test_plan_of_equivalent_requests_equals_separate_plans() -> None:
    nodes = [factories.node(f"n{n}", zone="ab"[n % 2], capacity={"cpu": "8", "memory": "8Gi"}) for n in range(6)]
    scope = OverrideScope(region="here", zone="a", workload="kept", tenant="acme")
    acting = OverrideStatus(phase="Active", expires_at="2027-01-01T00:00:00Z")
    avoid = Override(factories.meta("avoid"), OverrideSpec(OverrideKind.AVOID_ZONE, scope, "smoke"), acting)
    snapshot = build_snapshot("here", [*nodes, avoid])
    fits = request("fits", template=Template(command=("serve",), resources={"cpu": "5", "memory": "1Gi"}))
    group = [request("one"), request("two"), request("kept"), fits, request("three"), request("one-more")]
    asks = [requirements_of(item) for item in group]
    together = plan(snapshot, asks, PolicyRules(), 1_767_225_610.0, seed=7).request_plans
    for at, found in enumerate(together):
        alone = [asks[3], asks[at]] if at > 3 else [asks[at]]
        looked = plan(snapshot, alone, PolicyRules(), 1_767_225_610.0, seed=7).request_plans[-1]
        assert found == looked
    assert together[0].refusals == together[1].refusals != together[2].refusals


def unplaced() -> float:
    return float(metrics.SCHEDULER_PLANNED.labels("Unplaced")._value.get())


def test_200_unschedulable_requests_cost_few_attempts_and_are_placed_on_new_nodes() -> None:
    async def test(region: Region) -> None:
        await region.cell.grant(limit={"cpu": "10000", "memory": "10000Gi"})
        for number in range(200):
            replica = await region.cell.replica(f"w{number:03}-0", template={"resources": {"cpu": "20"}})
            await region.request(f"w{number:03}", [replica])
        names = [f"w{number:03}" for number in range(200)]
        await until(lambda: all(region.stored(name).status.pending for name in names))
        revisions = {name: region.stored(name).revision for name in names}
        before = unplaced()
        await asyncio.sleep(60.0)
        assert unplaced() - before < 40, "without events, only the leader is retried"
        written = sum(region.stored(name).revision != revisions[name] for name in names)
        assert written < 10, "the status of the others is not written"
        for number in range(4):
            await region.cell.node(f"big{number}", zone="z0", capacity={"cpu": "1000", "memory": "1000Gi"})
        await until(lambda: len(region.bound()) == 200, within_s=15)

    in_region(test)
