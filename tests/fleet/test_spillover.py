"""Spillover: which replicas move, how many, where, when, and when not."""

from __future__ import annotations

import msgspec
import pytest
from tests.expected import present
from tests.factories import assignment, cache_of, meta, priority, region, tenant, with_new_revision, workload
from tests.fleet.test_scripts import Fleet, decide, shares_text

from holdfast.fleet import assign, spillover
from holdfast.fleet.grant_demand import quota_demand
from holdfast.fleet.spillover import SPILLOVER_CHECK_EVERY_S
from holdfast.model import limits
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.meta import Key
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.reasons import Reason
from holdfast.model.workload import Workload

T0 = 1_767_225_600.0


def test_spillover_of_many_pending_replicas_moves_only_those_that_fit() -> None:
    """Each decision counts the earlier ones, so that the target is not overfilled."""
    cache = cache_of(tenant(), priority(), region("east"), region("west", cpu="4"))
    for n in range(20):
        cache.put(workload(f"w{n}", replicas=1, placement=PlacementRules(spread_regions=1)))
        item = workload(f"w{n}", replicas=1)
        made = present(assign.assignment_spec(present(cache.get(Workload, f"w{n}", "acme")), "east", 1, cache))
        waits = AssignmentStatus(
            observed_epoch=1,
            replicas=1,
            queued=1,
            updated=1,
            pending=(PendingReason(reason=Reason.INSUFFICIENT_CPU, count=1),),
        )
        name = f"{item.metadata.name}.east.normal"
        cache.put(Assignment(metadata=meta(name, "acme"), spec=made, status=waits))
    for now in (T0, T0 + limits.SPILLOVER_AFTER_S):
        for n in range(20):
            decide(Key("acme", f"w{n}"), cache, now)
    went = sum(a.spec.replicas for a in cache.list(Assignment) if a.spec.region == "west")
    fits = {n: v for (p, where, n), v in quota_demand(cache.list(Assignment)[0]).items()}
    assert 0 < went <= 4000 // max(1, fits["cpu"] // 2), "the other region is full and gets nothing"


def full_region(*more: str, reason: str = "InsufficientCpu", room: int = 1) -> Fleet:
    """Four replicas in two of three regions, of which east has room for some."""
    fleet = Fleet()
    fleet.fleet([], ["region east,north,west", "workload api replicas=4 placement={spreadRegions: 2}", *more])
    fleet.run(["5"], [])
    fleet.set_room([f"east={room}", f"reason={reason}"], [])
    return fleet


def test_spillover_is_rechecked_while_replicas_are_pending() -> None:
    fleet = full_region()
    outcome = assign.decide(Key("acme", "api"), fleet.cache, fleet.now)
    assert outcome.requeue_after_s is not None and outcome.requeue_after_s <= SPILLOVER_CHECK_EVERY_S


def test_reason_of_a_wait_follows_the_report() -> None:
    """The replicas go on waiting, so their time continues, but for another reason."""
    fleet = full_region()
    fleet.run(["5"], [])
    (before,) = present(present(fleet.cache.get(Workload, "api", "acme")).status.spillover).pending
    fleet.set_room(["east=1", "reason=InsufficientMemory"], [])
    fleet.run(["5"], [])
    (after,) = present(present(fleet.cache.get(Workload, "api", "acme")).status.spillover).pending
    assert (before.reason, after.reason) == ("InsufficientCpu", "InsufficientMemory")
    assert after.since == before.since


@pytest.mark.parametrize(
    ("reason", "region_caps", "moves"),
    [
        (Reason.QUOTA_EXCEEDED, "{east: {cpu: 500m}}", True),
        (Reason.QUOTA_EXCEEDED, "{}", False),
        (Reason.QUOTA_EXCEEDED, "{east: {cpu: 500m}, north: {cpu: 1}, west: {cpu: 1}}", False),
        (Reason.INSUFFICIENT_CPU, "{north: {cpu: 1}, west: {cpu: 1}}", False),
        (Reason.GRANT_EXPIRED, "{east: {cpu: 500m}}", False),
        (Reason.SPREAD_VIOLATED, "{}", False),
        (Reason.LABELS_DO_NOT_MATCH, "{}", True),
        (Reason.LABELS_DO_NOT_MATCH, "{north: {cpu: 1}}", False),
        (Reason.NO_NODES, "{}", True),
    ],
    ids=[
        "capped here",
        "short as a whole",
        "capped everywhere",
        "others capped",
        "partitioned",
        "never",
        "no match",
        "no match, the other is capped",
        "no nodes",
    ],
)
def test_spillover_for_quota_needs_a_region_cap_and_respects_caps(
    reason: Reason, region_caps: str, moves: bool
) -> None:
    quota = f"quota quota hard={{cpu: 100, memory: 100Gi}} regionCaps={region_caps}"
    fleet = full_region(quota, reason=reason)
    assert ("SpilledOver" in fleet.run(["200", "notices"], [])) is moves


@pytest.mark.parametrize(
    ("kind", "moves"),
    [("", True), ("type=Batch batch={completions: 8, parallelism: 4}", False), ("gang={minAvailable: 2}", False)],
    ids=["service", "batch", "gang"],
)
def test_part_of_a_batch_or_gang_does_not_spill_over(kind: str, *, moves: bool) -> None:
    """Also if it may use several regions: one replica is placed, so that the rest stays with it."""
    fleet = Fleet()
    fleet.fleet(
        [], ["region east,north,west", f"workload api replicas=4 placement={{spreadRegions: 2}} {kind}".strip()]
    )
    fleet.run(["5"], [])
    fleet.set_room(["east=1", "reason=InsufficientCpu"], [])
    assert ("SpilledOver" in fleet.run(["200", "notices"], [])) is moves


def test_rollout_surge_does_not_spill_over() -> None:
    fleet = full_region(room=2)
    item = next(a for a in fleet.cache.list(Assignment) if a.spec.region == "east")
    surge = msgspec.structs.replace(
        item.status, replicas=3, queued=1, pending=(PendingReason(reason=Reason.INSUFFICIENT_CPU, count=1),)
    )
    fleet.cache.put(with_new_revision(item, status=surge))
    assert not spillover.waits_for_room(with_new_revision(item, status=surge))
    for _ in range(4):
        decide(Key("acme", "api"), fleet.cache, fleet.now)
        fleet.now += limits.SPILLOVER_AFTER_S
    assert shares_text(fleet.cache, "api") == "east 2 (1 pending), north 2"


@pytest.mark.parametrize(
    ("replicas", "queued", "reason", "waits"),
    [
        (3, 1, Reason.INSUFFICIENT_CPU, True),
        (3, 1, Reason.QUOTA_EXCEEDED, True),
        (3, 1, Reason.NO_GRANT, True),
        (3, 1, Reason.WAITING_FOR_GANG, False),
        (3, 1, None, False),
        (3, 0, Reason.INSUFFICIENT_CPU, False),
        (4, 1, Reason.INSUFFICIENT_CPU, False),
        (5, 2, Reason.INSUFFICIENT_CPU, False),
    ],
)
def test_assignment_waits_for_room_if_desired_replicas_are_pending_for_it(
    replicas: int, queued: int, reason: Reason | None, *, waits: bool
) -> None:
    """Three replicas are desired. Replicas beyond them are about to be removed."""
    pending = (PendingReason("Other", 1), PendingReason(reason, 1)) if reason is not None else ()
    status = AssignmentStatus(replicas=replicas, queued=queued, pending=pending)
    assert spillover.waits_for_room(assignment(replicas=3, status=status)) is waits


@pytest.mark.parametrize(
    "rules", [PlacementRules(spread_regions=1), PlacementRules(regions=("east",))], ids=["spreadRegions", "regions"]
)
def test_wait_names_the_target_only_while_the_rules_allow_it(rules: PlacementRules) -> None:
    fleet = Fleet()
    fleet.fleet([], ["region east", "workload api replicas=2"])
    fleet.set_room(["east=1", "reason=InsufficientCpu"], [])
    fleet.run(["5"], [])
    fleet.fleet(["more"], ["region north"])
    fleet.run(["5"], [])
    item = fleet.cache.list(Workload)[0]
    assert [(w.region, w.to) for w in present(item.status.spillover).pending] == [("east", "north")]
    fleet.cache.put(with_new_revision(item, spec=msgspec.structs.replace(item.spec, placement=rules)))
    decide(item.key, fleet.cache, fleet.now)
    item = fleet.cache.list(Workload)[0]
    assert [(w.region, w.to) for w in present(item.status.spillover).pending] == [("east", "")]
