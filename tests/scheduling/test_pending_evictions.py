"""Pending evictions: serving replicas that must be evicted and are not released yet."""

from __future__ import annotations

import msgspec
import pytest
from tests.factories import assignment, binding, cache_of, meta, node, replica, serving_status, with_new_revision

from holdfast.controllers.cache import Cache
from holdfast.link.report import assignment_writes
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import Intent, Reservation, ReservationPhase, ReservationSpec, ReservationStatus
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec, GrantCopyStatus
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_rules import Taint, TaintEffect
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.replica import ReleaseBlock, Replica
from holdfast.model.times import parse_time
from holdfast.model.workload import Batch, Disruption, WorkloadType
from holdfast.model.writes import SetStatus
from holdfast.scheduling import disruption_budget
from holdfast.scheduling.eviction import release
from holdfast.scheduling.eviction.pending_evictions import pending_evictions


def serving(ordinal: int, of: Assignment, where: str = "n1", *, revision: str = "") -> Replica:
    made = replica(ordinal, of, revision=revision)
    return with_new_revision(made, status=serving_status(where, name=made.metadata.name))


def count_pending(cache: Cache, of: Assignment) -> int:
    return pending_evictions(of, cache.by(Replica, "assignment", str(of.key)), cache)


def test_pending_evictions_count_serving_replicas_that_do_not_tolerate_a_taint() -> None:
    desired = assignment(replicas=2, disruption_share=0)
    web = [serving(0, desired), serving(1, desired, "n2")]
    tainted = node(taints=(Taint(key="dirty", effect=TaintEffect.NO_EXECUTE),))
    cache = cache_of(desired, *web, tainted, node("n2"))
    assert count_pending(cache, desired) == 1
    assert disruption_budget.blocked_node_evictions(web, cache) == 1


@pytest.mark.parametrize("share", [0, 1])
def test_pending_evictions_count_serving_replicas_on_draining_node(share: int) -> None:
    desired = assignment(replicas=3, disruption_share=share)
    web = [serving(0, desired), serving(1, desired), serving(2, desired, "n2")]
    cache = cache_of(desired, *web, node(drain=True), node("n2"))
    assert count_pending(cache, desired) == 2
    assert disruption_budget.blocked_node_evictions(web, cache) == (0 if share else 2), (
        "blocked evictions are counted separately"
    )
    let_go = with_new_revision(
        web[0], status=serving_status(name=web[0].metadata.name, release=ReleaseBlock(reason="Drained", attempt=1))
    )
    assert count_pending(cache_of(desired, let_go, *web[1:], node(drain=True), node("n2")), desired) == 1
    assert count_pending(cache_of(desired, *web, node(), node("n2")), desired) == 0
    idle = with_new_revision(web[0], status=serving_status(name=web[0].metadata.name, serving=False))
    assert count_pending(cache_of(desired, idle, *web[1:], node(drain=True), node("n2")), desired) == 1


def test_pending_evictions_count_nominated_victims() -> None:
    desired = assignment(replicas=2, disruption_share=0)
    web = [serving(0, desired), serving(1, desired)]
    intent = Intent(replica_uid="hi", template_hash="h", attempt=1)
    victims = (f"acme/{web[0].status.placement.binding}",)
    spec = ReservationSpec(replica="hi", intent=intent, node="n1", victims=victims, priority=9)
    item = Reservation(meta("hi.1", "acme"), spec, ReservationStatus(phase=ReservationPhase.NOMINATED))
    assert count_pending(cache_of(desired, *web, node(), item), desired) == 1
    firm = with_new_revision(item, status=ReservationStatus(phase=ReservationPhase.FIRM))
    assert count_pending(cache_of(desired, *web, node(), firm), desired) == 0


def test_over_quota_replica_is_pending_and_released_with_share() -> None:
    desired = assignment(replicas=2, disruption_share=0)
    web = [serving(0, desired), serving(1, desired)]
    cpu = web[0].spec.template.resources["cpu"]
    used = GrantCopyStatus(used={"cpu": "100"})
    copies = [
        GrantCopy(meta("normal", "acme"), GrantCopySpec(limit={"cpu": "100"}), used),
        GrantCopy(meta("emergency", "acme"), GrantCopySpec(grant_class=GrantClass.EMERGENCY)),
    ]
    assert count_pending(cache_of(desired, *web, node(), *copies), desired) == 0
    over = with_new_revision(copies[0], status=GrantCopyStatus(used={"cpu": f"{100_000 + 1}m"}))
    cache = cache_of(desired, *web, *(binding(r) for r in web), node(), over, copies[1])
    assert cpu and count_pending(cache, desired) == 1
    assert not release.decide(web[1].key, cache, 1.0).writes
    given = with_new_revision(desired, spec=assignment(replicas=2, disruption_share=1).spec)
    cache.put(given)
    (write,) = release.decide(web[1].key, cache, 1.0).writes
    assert isinstance(write, SetStatus) and write.blocks["release"].reason == Reason.OVER_QUOTA


def over_quota_world(share: int, *waiting: Replica) -> tuple[Cache, Replica]:
    """Two serving replicas, of which the quota covers one; the emergency quota ended at 08:00 with 60 s to drain."""
    desired = assignment(replicas=2 + len(waiting), disruption_share=share, disruption=Disruption(max_unavailable=1))
    web = [serving(0, desired), serving(1, desired)]
    copies = [
        GrantCopy(
            meta("normal", "acme"),
            GrantCopySpec(limit={"cpu": "100"}),
            GrantCopyStatus(used={"cpu": f"{100_000 + 1}m"}),
        ),
        GrantCopy(meta("emergency", "acme"), GrantCopySpec(grant_class=GrantClass.EMERGENCY)),
    ]
    spec = OverrideSpec(
        kind=OverrideKind.EMERGENCY_QUOTA, scope=OverrideScope(tenant="acme"), quota={"cpu": "1"}, drain_seconds=60.0
    )
    ended = Override(meta("more"), spec, OverrideStatus(phase="Expired", expires_at="2027-01-15T08:00:00Z"))
    return cache_of(desired, *web, *waiting, *(binding(r) for r in web), node(), *copies, ended), web[1]


def queued(ordinal: int, evicted_for: str = "") -> Replica:
    made = replica(ordinal, assignment(replicas=3))
    release = ReleaseBlock(reason=evicted_for, attempt=1) if evicted_for else None
    return with_new_revision(made, status=msgspec.structs.replace(made.status, release=release))


@pytest.mark.parametrize(
    ("evicted_for", "leaves"), [("", True), (Reason.OVER_QUOTA, True), (Reason.DRAINED, False)], ids=str
)
def test_replica_waiting_for_quota_uses_no_budget_of_an_over_quota_eviction(evicted_for: str, leaves: bool) -> None:
    """A replica that was drained still counts: it was made unavailable by choice and may come back."""
    cache, victim = over_quota_world(1, queued(2, evicted_for))
    assert bool(release.decide(victim.key, cache, parse_time("2027-01-15T08:00:10Z")).writes) is leaves


@pytest.mark.parametrize(("at", "leaves"), [("2027-01-15T08:00:59Z", False), ("2027-01-15T08:01:00Z", True)])
def test_over_quota_eviction_ignores_the_budget_after_its_deadline(at: str, leaves: bool) -> None:
    cache, victim = over_quota_world(0)
    outcome = release.decide(victim.key, cache, parse_time(at))
    assert bool(outcome.writes) is leaves
    if leaves:
        (write,) = outcome.writes
        assert isinstance(write, SetStatus) and "drain deadline has passed" in write.blocks["release"].message
    else:
        assert outcome.requeue_after_s, "checked again, whatever wakes it"


@pytest.mark.parametrize("purpose", Purpose)
def test_pending_evictions_count_recovery_replicas_replaced_in_place(purpose: Purpose) -> None:
    desired = assignment(replicas=2, disruption_share=0, purpose=purpose)
    old = [serving(n, desired, revision="old") for n in range(2)]
    cache = cache_of(desired, *old, replica(2, desired), node())
    assert count_pending(cache, desired) == (2 if purpose is Purpose.RECOVERY else 0)
    assert count_pending(cache_of(desired, *old, node()), desired) == 0, "no surge replica is pending"


def test_batch_replicas_on_draining_node_are_not_counted_as_pending_evictions() -> None:
    shape = Batch(completions=1, parallelism=1)
    desired = assignment(replicas=1, type=WorkloadType.BATCH, batch=shape)
    assert count_pending(cache_of(desired, serving(0, desired), node(drain=True)), desired) == 0


def test_region_reports_pending_and_blocked_evictions() -> None:
    desired = assignment(replicas=2, disruption_share=1)
    web = [serving(0, desired), serving(1, desired, "n2")]
    here = cache_of(desired, *web, node(drain=True), node("n2"))
    (write,) = assignment_writes(desired.key, cache_of(desired), here)
    assert isinstance(write, SetStatus)
    assert (write.blocks["pendingEvictions"], write.blocks["evictionsBlocked"]) == (1, 0)
    assert write.blocks["revision"] == desired.spec.revision
