"""Queue order, active policy and retry delays."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.model.active_policy import BUILT_IN, active_policy
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.scheduler_policy import (
    DEFAULT_QUEUE,
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyRules,
    PromotionStage,
    QueueKey,
    validate_rules,
)
from holdfast.model.scheduling_request import RefusalCount, RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduler.request_queue import NEVER, RequestQueue
from holdfast.scheduling.queue_order import (
    EVENT_RETRY_PAUSE_MAX_S,
    dominant_share,
    min_retry_interval_s,
    order_requests,
    raised_priorities,
    retry_backoff_s,
)

ALL_KEYS = tuple(QueueKey)


def request(name: str, tenant: str = "acme", *, age: str = "2026-01-01T00:00:00Z", **spec: Any) -> SchedulingRequest:
    spec = {"workload": name, "assignment": "a", "revision": "1", "template": Template(), **spec}
    return SchedulingRequest(factories.meta(name, tenant, creation_timestamp=age), SchedulingRequestSpec(**spec))


def names(requests: list[SchedulingRequest], keys: tuple[QueueKey, ...] = ALL_KEYS, **more: Any) -> list[str]:
    given = {"shares": {}, "ranks": {}, **more}
    shuffled = random.Random(3).sample(requests, len(requests))
    return [r.metadata.name for r in order_requests(shuffled, keys, given["shares"], given["ranks"])]


def test_queue_order_is_priority_deadline_fairness_age() -> None:
    queued = [
        request("old", age="2025-01-01T00:00:00Z"),
        request("new", age="2026-06-01T00:00:00Z"),
        request("greedy", "rich", age="2024-01-01T00:00:00Z"),
        request("due", deadline="2026-02-01T00:00:00Z"),
        request("due-first", deadline="2026-01-15T00:00:00Z"),
        request("vip", priority=10, age="2026-07-01T00:00:00Z"),
    ]
    shares = {"rich": 900_000, "acme": 10}
    assert names(queued, shares=shares) == ["vip", "due-first", "due", "old", "new", "greedy"]
    assert names(queued, (QueueKey.AGE,), shares=shares)[0] == "greedy"
    assert names(queued, shares=shares, ranks={("rich", "greedy"): 99})[0] == "greedy"


def test_large_replicas_go_first_within_a_tenant_if_the_policy_says_so() -> None:
    def sized(name: str, tenant: str = "acme", **resources: str) -> SchedulingRequest:
        age = f"2026-01-0{len(resources) + 1}T00:00:00Z"
        return request(name, tenant, age=age, template=Template(resources={**resources}))

    queued = [
        sized("small", cpu="1"),
        sized("large", cpu="8", memory="1Gi"),
        sized("gpu", cpu="1", memory="1Gi", gpu="1"),
        sized("huge-of-rich", "rich", cpu="64"),
    ]
    shares = {"rich": 900_000, "acme": 10}
    assert names(queued, shares=shares) == ["gpu", "large", "small", "huge-of-rich"]
    assert names(queued, DEFAULT_QUEUE, shares=shares) == ["small", "large", "gpu", "huge-of-rich"]


def test_policy_with_size_before_fairness_is_refused() -> None:
    def causes(*queue: QueueKey) -> list[str]:
        return [cause.field for cause in validate_rules("spec.rules", PolicyRules(queue=queue))]

    assert causes(QueueKey.SIZE, QueueKey.FAIRNESS, QueueKey.AGE) == ["spec.rules.queue"]
    assert not causes(QueueKey.FAIRNESS, QueueKey.SIZE, QueueKey.AGE)
    assert not causes(QueueKey.SIZE, QueueKey.AGE)
    assert PolicyRules().queue == DEFAULT_QUEUE


def test_equal_requests_are_ordered_by_name() -> None:
    assert names([request(n) for n in "dbca"]) == list("abcd")


def test_dominant_share_is_largest_resource_share() -> None:
    assert dominant_share({"cpu": 10, "memory": 300}, {"cpu": 100, "memory": 1000}) == 300_000
    assert dominant_share({"gpu": 10}, {"cpu": 100}) == 0
    assert dominant_share({}, {}) == 0


def test_raise_priority_override_applies_until_expiry_in_its_region() -> None:
    spec = OverrideSpec(OverrideKind.RAISE_PRIORITY, OverrideScope(tenant="acme", workload="w"), "x", priority=50)
    item = Override(factories.meta("o"), spec, OverrideStatus(phase="Active", expires_at="2026-01-01T01:00:00Z"))
    assert raised_priorities([item], 1_767_225_600.0 + 10, "east") == {("acme", "w"): 50}
    assert raised_priorities([item], 1_767_225_600.0 + 4000, "east") == {}
    of_west = msgspec.structs.replace(spec, scope=OverrideScope(region="west", tenant="acme", workload="w"))
    assert raised_priorities([msgspec.structs.replace(item, spec=of_west)], 1_767_225_600.0 + 10, "east") == {}


def test_retry_backoff_doubles_and_is_bounded() -> None:
    assert [retry_backoff_s(n, 1.0) for n in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert retry_backoff_s(1000, 1.0) == 60
    assert retry_backoff_s(1, 0.0) == 0.5
    assert min_retry_interval_s(0) == min_retry_interval_s(1) == 0.05
    assert min_retry_interval_s(100) == 2.0


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([], BUILT_IN),
        ([("r1", 1, PromotionStage.ACTIVE, ())], "r1"),
        ([("r1", 1, PromotionStage.ACTIVE, ()), ("r2", 2, PromotionStage.ACTIVE, ())], "r2"),
        ([("r1", 1, PromotionStage.ACTIVE, ()), ("r2", 2, PromotionStage.SHADOW, ("here",))], "r1"),
        ([("r1", 1, PromotionStage.ACTIVE, ()), ("r2", 2, PromotionStage.CANARY, ("here",))], "r2"),
        ([("r1", 1, PromotionStage.ACTIVE, ()), ("r2", 2, PromotionStage.CANARY, ("there",))], "r1"),
        ([("r1", 1, PromotionStage.DRAFT, ())], BUILT_IN),
    ],
)
def test_active_policy_is_newest_revision_in_force(stages: list[Any], expected: str) -> None:
    revisions = [
        PolicyRevision(factories.meta(name), PolicyRevisionSpec("p", PolicyRules(), sequence, stage, regions))
        for name, sequence, stage, regions in stages
    ]
    assert active_policy(revisions, [], "here", 0.0).revision == expected


def test_pinned_policy_revision_is_active() -> None:
    revisions = [
        PolicyRevision(factories.meta(name), PolicyRevisionSpec("p", PolicyRules(), sequence))
        for name, sequence in (("r1", 1), ("r2", 2))
    ]
    acting = OverrideStatus(phase="Active", expires_at="2026-01-01T01:00:00Z")
    pin = Override(
        factories.meta("pin"), OverrideSpec(OverrideKind.PIN_POLICY, reason="x", policy_revision="r1"), acting
    )
    assert active_policy(revisions, [pin], "here", 0.0).revision == "r1"
    unknown = OverrideSpec(OverrideKind.PIN_POLICY, reason="x", policy_revision="r9")
    missing = Override(factories.meta("pin"), unknown, acting)
    assert active_policy(revisions, [missing], "here", 0.0).revision == "r2"


def test_pending_request_is_retried_by_backoff_event_and_resync() -> None:
    queue = RequestQueue(random.Random(1))
    item = request("w", members=(RequestMember("w-0", "u0"),))
    assert queue.put(item, 0.0)
    (waiting,) = queue.due(0.0)
    pause_s = queue.record_failure(waiting, (RefusalCount(reason="InsufficientCpu"),), 0.0, retry_on=("CapacityFreed",))
    assert not queue.due(pause_s - 0.01) and queue.due(pause_s)
    assert not queue.retry_on_events(["GrantChanged"], 0.01)
    assert queue.retry_on_events(["CapacityFreed"], 0.01)
    assert not queue.due(0.01) and queue.due(0.06), "events respect the minimum interval"
    waiting.due_at = NEVER
    queue.resync(9.0)
    assert queue.due(9.0), "a resync makes idle requests due"
    newer = factories.with_new_revision(item, spec=request("w", members=(RequestMember("w-1", "u1"),)).spec)
    waiting.due_at = NEVER
    assert queue.put(newer, 10.0) and queue.due(10.0)
    assert queue.find_by_member("u0") is None and queue.find_by_member("u1") is waiting
    queue.drop(newer, 10.0)
    assert len(queue) == 0 and queue.next_due() == NEVER and queue.find_by_member("u1") is None


@pytest.mark.parametrize(
    ("beaten", "cures", "woken"),
    [(True, "CapacityFreed", True), (False, "CapacityFreed", False), (True, "NodeAdded", False)],
    ids=["outcompeted for capacity", "not outcompeted", "capacity would not help"],
)
def test_outcompeted_request_is_requeued_when_proposals_are_rejected(beaten: bool, cures: str, woken: bool) -> None:
    queue = RequestQueue(random.Random(1))
    queue.put(request("w", members=(RequestMember("w-0", "u0"),)), 0.0)
    (waiting,) = queue.due(0.0)
    waiting.attempts = 9
    pause_s = queue.record_failure(
        waiting, (RefusalCount(reason="QuotaExceeded"),), 0.0, retry_on=(cures,), outcompeted=beaten
    )
    assert pause_s > EVENT_RETRY_PAUSE_MAX_S
    queue.requeue_outcompeted(0.1)
    assert not queue.due(0.1), "the minimum interval applies"
    assert bool(queue.due(EVENT_RETRY_PAUSE_MAX_S)) is woken
    queue.record_failure(waiting, (RefusalCount(reason="QuotaExceeded"),), 3.0, retry_on=(cures,))
    queue.requeue_outcompeted(3.1)
    assert not queue.due(3.1 + EVENT_RETRY_PAUSE_MAX_S), "only after an attempt that was outcompeted"


def test_attempt_hint_raises_attempt_and_never_lowers_it() -> None:
    queue = RequestQueue(random.Random(1))
    queue.put(request("w", members=(RequestMember("w-0", "u0", 3), RequestMember("w-1", "u1", 1))), 0.0)
    (waiting,) = queue.due(0.0)
    waiting.attempt_hints = {"u0": 2, "u1": 4}
    assert [m.attempt for m in waiting.members()] == [3, 4]
    waiting.absent_members["u0"] = None
    assert [m.uid for m in waiting.members()] == ["u1"]
