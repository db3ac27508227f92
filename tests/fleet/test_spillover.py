"""Spillover: which replicas move, how many, where, when, and when not."""

from __future__ import annotations

import msgspec
import pytest
from tests.factories import cache_of, meta, priority, region, tenant, with_new_revision, workload

from holdfast.fleet import assign, spillover
from holdfast.fleet.grant_demand import quota_demand
from holdfast.fleet.spillover import SPILLOVER_CHECK_EVERY_S
from holdfast.model import limits
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.meta import Key
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.workload import Batch, Exclusivity, Gang, SpilloverStatus, Workload, WorkloadType
from holdfast.model.writes import Create, Delete, SetStatus, Update

KEY = Key("acme", "api")
T0 = 1_767_225_600.0
NAMES = ("east", "north", "west")


class Fleet:
    """Repeats assign with regions that place a limited number of replicas and report why others are pending."""

    def __init__(self, *more, cpu="16", **spec) -> None:
        self.now = T0
        spec.setdefault("placement", PlacementRules(spread_regions=2))
        self.cache = cache_of(tenant(), priority(), *(region(name, cpu=cpu) for name in NAMES), *more)
        self.cache.put(workload(**{"replicas": 4, **spec}))
        self.room = dict.fromkeys(NAMES, 100)
        self.placed = dict.fromkeys(NAMES, 0)
        self.reason = Reason.INSUFFICIENT_CPU
        self.seen: list[dict[str, int]] = []

    @property
    def moves(self) -> SpilloverStatus:
        return self.cache.get(Workload, "api", "acme").status.spillover or SpilloverStatus()

    def shares(self) -> dict[str, int]:
        return {
            a.spec.region: spillover.assigned_units(a)
            for a in self.cache.list(Assignment)
            if spillover.assigned_units(a)
        }

    def decide(self):
        outcome = assign.decide(KEY, self.cache, self.now)
        for write in outcome.writes:
            match write:
                case Create():
                    self.cache.put(with_new_revision(write.object, metadata=meta(write.object.metadata.name, "acme")))
                case Update() if isinstance(write.object, Assignment):
                    self.cache.put(with_new_revision(write.object))
                case Delete():
                    self.cache.remove(Assignment, write.key, int(meta("gone").resource_version))
                case SetStatus():
                    item = self.cache.get(Workload, "api", "acme")
                    status = msgspec.structs.replace(item.status, spillover=write.blocks["spillover"])
                    self.cache.put(with_new_revision(item, status=status))
        return outcome

    def report(self) -> None:
        for item in self.cache.list(Assignment):
            name, wanted = item.spec.region, item.spec.replicas
            self.placed[name] = placed = min(wanted, self.room[name])
            waits = wanted - placed
            pending = (PendingReason(reason=self.reason, count=waits, message="of 3 nodes"),) if waits else ()
            status = AssignmentStatus(
                observed_epoch=item.spec.epoch, replicas=wanted, queued=waits, bound=placed, ready=placed,
                serving=placed, updated=wanted, updated_serving=placed, pending=pending,
            )  # fmt: skip
            if status != item.status:
                self.cache.put(with_new_revision(item, status=status))

    def run_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            outcome = self.decide()
            self.report()
            if not self.seen or self.seen[-1] != self.shares():
                self.seen.append(self.shares())
            self.now += min(5.0, outcome.requeue_after_s or 5.0)


def full_region(name: str = "east", room: int = 0, **given) -> Fleet:
    fleet = Fleet(**given)
    fleet.decide()
    fleet.report()
    fleet.room[name] = room
    fleet.report()
    return fleet


def test_spillover_moves_pending_replicas_and_keeps_running_ones():
    fleet = full_region(room=1)
    assert fleet.shares() == {"east": 2, "north": 2}
    fleet.run_for(limits.SPILLOVER_AFTER_S - 5)
    assert fleet.shares() == {"east": 2, "north": 2} and fleet.moves.pending[0].region == "east"
    fleet.run_for(20)
    assert fleet.shares() == {"east": 1, "north": 3} and fleet.placed == {"east": 1, "north": 3, "west": 0}
    (row,) = fleet.moves.avoided_regions
    assert (row.region, row.to, row.replicas, row.reason) == ("east", "north", 1, Reason.INSUFFICIENT_CPU)
    said = {a.spec.region: a.spec.reason for a in fleet.cache.list(Assignment)}
    assert "moved from east to north" in said["north"] and "moved to north" in said["east"]
    before = list(fleet.seen)
    fleet.run_for(6000)
    assert fleet.seen == before and not fleet.moves.avoided_regions, "the record stays, and expires in time"


def test_spillover_is_reported_and_rechecked():
    fleet = full_region(room=1)
    outcome = fleet.decide()
    assert outcome.requeue_after_s is not None and outcome.requeue_after_s <= SPILLOVER_CHECK_EVERY_S
    fleet.now += limits.SPILLOVER_AFTER_S
    (notice,) = [n for n in fleet.decide().notices if n.reason == Reason.SPILLED_OVER]
    assert "east" in notice.message and "north" in notice.message


def test_pending_time_restarts_after_placement():
    fleet = full_region(room=1)
    fleet.run_for(30)
    assert fleet.moves.pending
    fleet.room["east"] = 9
    fleet.report()
    fleet.run_for(10)
    assert fleet.moves == SpilloverStatus()
    fleet.room["east"] = 1
    fleet.report()
    fleet.run_for(40)
    assert fleet.shares() == {"east": 2, "north": 2}, "its pending time restarts"


def test_spillover_needs_room_in_the_target():
    fleet = full_region(room=1)
    for name in ("north", "west"):
        item = fleet.cache.get(Region, name)
        report = msgspec.structs.replace(item.status.report, used={"cpu": "16"})
        fleet.cache.put(with_new_revision(item, status=msgspec.structs.replace(item.status, report=report)))
    fleet.run_for(300)
    assert fleet.shares() == {"east": 2, "north": 2} and fleet.moves == SpilloverStatus()


def test_spillover_moves_no_more_replicas_than_fit():
    fleet = full_region(replicas=8, placement=PlacementRules(regions=("east", "west")))
    item = fleet.cache.get(Region, "west")
    report = msgspec.structs.replace(item.status.report, used={"cpu": "14500m"})
    fleet.cache.put(with_new_revision(item, status=msgspec.structs.replace(item.status, report=report)))
    fits = spillover.region_headroom(
        fleet.cache.get(Region, "west"), fleet.cache.get(Workload, "api", "acme"), fleet.cache
    ).fits
    assert 0 < fits < 4
    fleet.now += 0
    fleet.decide()
    fleet.now += limits.SPILLOVER_AFTER_S
    fleet.decide()
    assert fleet.shares() == {"east": 4 - fits, "west": 4 + fits}


def test_spillover_of_many_pending_replicas_moves_only_those_that_fit():
    """Each decision counts the earlier ones, so that the target is not overfilled."""
    cache = cache_of(tenant(), priority(), region("east"), region("west", cpu="4"))
    for n in range(20):
        cache.put(workload(f"w{n}", replicas=1, placement=PlacementRules(spread_regions=1)))
        item = workload(f"w{n}", replicas=1)
        made = assign.assignment_spec(cache.get(Workload, f"w{n}", "acme"), "east", 1, cache)
        waits = AssignmentStatus(
            observed_epoch=1, replicas=1, queued=1, updated=1,
            pending=(PendingReason(reason=Reason.INSUFFICIENT_CPU, count=1),),
        )  # fmt: skip
        name = f"{item.metadata.name}.east.normal"
        cache.put(Assignment(metadata=meta(name, "acme"), spec=made, status=waits))
    for now in (T0, T0 + limits.SPILLOVER_AFTER_S):
        for n in range(20):
            for write in assign.decide(Key("acme", f"w{n}"), cache, now).writes:
                match write:
                    case Create():
                        cache.put(with_new_revision(write.object, metadata=meta(write.object.metadata.name, "acme")))
                    case Update():
                        cache.put(with_new_revision(write.object))
                    case SetStatus():
                        stored = cache.get(Workload, f"w{n}", "acme")
                        status = msgspec.structs.replace(stored.status, spillover=write.blocks["spillover"])
                        cache.put(with_new_revision(stored, status=status))
    went = sum(a.spec.replicas for a in cache.list(Assignment) if a.spec.region == "west")
    fits = {n: v for (p, where, n), v in quota_demand(cache.list(Assignment)[0]).items()}
    assert 0 < went <= 4000 // max(1, fits["cpu"] // 2), "the other region is full and gets nothing"


def test_spillover_does_not_oscillate_between_full_regions():
    fleet = full_region(room=1, replicas=6, placement=PlacementRules())
    fleet.room = dict.fromkeys(NAMES, 1)
    fleet.report()
    fleet.run_for(4 * 3600)
    flips = sum(a == c and a != b for a, b, c in zip(fleet.seen, fleet.seen[1:], fleet.seen[2:], strict=False))
    assert flips <= 3 and len(fleet.seen) < 30, fleet.seen


def test_avoided_region_is_used_only_as_the_last_choice():
    fleet = full_region(room=1)
    fleet.run_for(90)
    item = fleet.cache.get(Workload, "api", "acme")
    fleet.cache.put(with_new_revision(item, spec=msgspec.structs.replace(item.spec, replicas=6)))
    fleet.decide()
    assert fleet.shares() == {"east": 1, "north": 5}
    for name in ("north", "west"):
        gone = fleet.cache.get(Region, name)
        health = msgspec.structs.replace(gone.status.health, state=HealthState.SUSPECT)
        fleet.cache.put(with_new_revision(gone, status=msgspec.structs.replace(gone.status, health=health)))
    fleet.report()
    item = fleet.cache.get(Workload, "api", "acme")
    fleet.cache.put(with_new_revision(item, spec=msgspec.structs.replace(item.spec, replicas=7)))
    fleet.decide()
    assert fleet.shares() == {"east": 2, "north": 5}


@pytest.mark.parametrize(
    ("spec", "room", "expected"),
    [
        ({"placement": PlacementRules(spread_regions=1)}, 1, {"east": 4}),
        ({"placement": PlacementRules(spread_regions=1)}, 0, {"north": 4}),
        ({"placement": PlacementRules(regions=("east",))}, 1, {"east": 4}),
        ({"placement": PlacementRules(residency=("eu",))}, 0, {}),
        ({"exclusive": Exclusivity(), "placement": PlacementRules(spread_regions=1)}, 1, {"east": 4}),
        ({"exclusive": Exclusivity(), "placement": PlacementRules(spread_regions=1)}, 0, {"north": 4}),
        ({"gang": Gang(min_available=4), "placement": PlacementRules(spread_regions=1)}, 2, {"east": 4}),
        ({"gang": Gang(min_available=4), "placement": PlacementRules(spread_regions=1)}, 0, {"north": 4}),
    ],
    ids=[
        "spreadRegions is respected", "whole share may move", "allowed regions", "residency", "exclusive in part",
        "exclusive as a whole", "gang in part", "gang as a whole",
    ],
)  # fmt: skip
def test_spillover_respects_placement_rules(spec, room, expected):
    fleet = full_region(room=room, **spec)
    fleet.run_for(200)
    assert fleet.shares() == expected


def test_exclusive_ordinal_spills_over_only_after_release():
    fleet = full_region(exclusive=Exclusivity(), placement=PlacementRules(spread_regions=1))
    fleet.decide()
    fleet.now += limits.SPILLOVER_AFTER_S
    fleet.decide()
    assert {a.spec.region: a.spec.ordinals for a in fleet.cache.list(Assignment)} == {"east": ()}
    fleet.decide()
    assert {a.spec.region: a.spec.ordinals for a in fleet.cache.list(Assignment)} == {"east": ()}, "not released yet"
    fleet.run_for(20)
    assert {a.spec.region: a.spec.ordinals for a in fleet.cache.list(Assignment)} == {"north": (0, 1, 2, 3)}


def test_batch_spills_over_whole_and_only_before_it_starts():
    shape = Batch(completions=6, parallelism=2)
    fleet = full_region(type=WorkloadType.BATCH, batch=shape, placement=PlacementRules())
    fleet.run_for(100)
    assert fleet.shares() == {"north": 6}
    begun = full_region(room=1, type=WorkloadType.BATCH, batch=shape, placement=PlacementRules())
    begun.run_for(200)
    assert begun.shares() == {"east": 6}


def quota(**caps: str) -> Quota:
    spec = QuotaSpec(hard={"cpu": "100", "memory": "100Gi"}, region_caps={r: {"cpu": cpu} for r, cpu in caps.items()})
    return Quota(metadata=meta("quota", "acme"), spec=spec)


@pytest.mark.parametrize(
    ("reason", "quotas", "moves"),
    [
        (Reason.QUOTA_EXCEEDED, quota(east="1"), True),
        (Reason.QUOTA_EXCEEDED, quota(), False),
        (Reason.QUOTA_EXCEEDED, quota(east="1", north="1", west="1"), False),
        (Reason.INSUFFICIENT_CPU, quota(north="1", west="1"), False),
        (Reason.GRANT_EXPIRED, quota(east="1"), False),
        (Reason.LABELS_DO_NOT_MATCH, quota(), False),
        (Reason.NO_NODES, quota(), True),
    ],
    ids=["region cap", "total quota", "all regions capped", "targets capped", "partitioned", "labels", "no nodes"],
)
def test_spillover_for_quota_needs_a_region_cap_and_respects_caps(reason, quotas, moves):
    fleet = Fleet(quotas)
    fleet.reason = reason
    fleet.decide()
    fleet.room["east"] = 1
    fleet.report()
    fleet.run_for(200)
    assert (fleet.shares() != {"east": 2, "north": 2}) is moves


def test_rollout_surge_does_not_spill_over():
    fleet = full_region(room=2)
    item = next(a for a in fleet.cache.list(Assignment) if a.spec.region == "east")
    beside = msgspec.structs.replace(
        item.status, replicas=3, queued=1, pending=(PendingReason(reason=Reason.INSUFFICIENT_CPU, count=1),)
    )
    fleet.cache.put(with_new_revision(item, status=beside))
    assert not spillover.waits_for_room(with_new_revision(item, status=beside))
    for _ in range(4):
        fleet.decide()
        fleet.now += limits.SPILLOVER_AFTER_S
    assert fleet.shares() == {"east": 2, "north": 2}


def test_region_out_of_contact_does_not_spill_over():
    fleet = full_region(room=1)
    item = fleet.cache.get(Region, "east")
    health = msgspec.structs.replace(item.status.health, state=HealthState.SUSPECT)
    fleet.cache.put(with_new_revision(item, status=msgspec.structs.replace(item.status, health=health)))
    fleet.run_for(200)
    assert fleet.shares() == {"east": 2, "north": 2}
