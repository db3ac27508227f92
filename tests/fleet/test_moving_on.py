"""What waits in a full region goes to one with room: who, how many, where to, when, and when not."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.fleet import assign, moving_on
from holdfast.fleet.grant_needs import need
from holdfast.model import limits
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.meta import Key
from holdfast.model.placement_rules import Placement
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.workload import Batch, Exclusivity, Gang, MovesBlock, Workload, WorkloadType
from holdfast.model.writes import Create, Delete, SetStatus, Update
from making import again, meta, priority, region, tenant, view, workload

KEY = Key("acme", "api")
T0 = 1_767_225_600.0
NAMES = ("east", "north", "west")


class Fleet:
    """assign over and over, on regions that place so many of what they are given, and say what keeps the others."""

    def __init__(self, *more, cpu="16", **spec) -> None:
        self.now = T0
        spec.setdefault("placement", Placement(spread_regions=2))
        self.cache = view(tenant(), priority(), *(region(name, cpu=cpu) for name in NAMES), *more)
        self.cache.put(workload(**{"replicas": 4, **spec}))
        self.room = dict.fromkeys(NAMES, 100)
        self.placed = dict.fromkeys(NAMES, 0)
        self.reason = Reason.INSUFFICIENT_CPU
        self.seen: list[dict[str, int]] = []

    @property
    def moves(self) -> MovesBlock:
        return self.cache.get(Workload, "api", "acme").status.moves or MovesBlock()

    def shares(self) -> dict[str, int]:
        return {a.spec.region: moving_on.held(a) for a in self.cache.list(Assignment) if moving_on.held(a)}

    def decide(self):
        outcome = assign.decide(KEY, self.cache, self.now)
        for write in outcome.writes:
            match write:
                case Create():
                    self.cache.put(again(write.object, metadata=meta(write.object.metadata.name, "acme")))
                case Update() if isinstance(write.object, Assignment):
                    self.cache.put(again(write.object))
                case Delete():
                    self.cache.remove(Assignment, write.key, int(meta("gone").resource_version))
                case SetStatus():
                    item = self.cache.get(Workload, "api", "acme")
                    status = msgspec.structs.replace(item.status, moves=write.blocks["moves"])
                    self.cache.put(again(item, status=status))
        return outcome

    def say(self) -> None:
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
                self.cache.put(again(item, status=status))

    def live(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            outcome = self.decide()
            self.say()
            if not self.seen or self.seen[-1] != self.shares():
                self.seen.append(self.shares())
            self.now += min(5.0, outcome.again_in_s or 5.0)


def full(name: str = "east", room: int = 0, **given) -> Fleet:
    fleet = Fleet(**given)
    fleet.decide()
    fleet.say()
    fleet.room[name] = room
    fleet.say()
    return fleet


def test_what_waits_too_long_moves_on_and_what_runs_stays():
    fleet = full(room=1)
    assert fleet.shares() == {"east": 2, "north": 2}
    fleet.live(limits.MOVE_ON_AFTER_S - 5)
    assert fleet.shares() == {"east": 2, "north": 2} and fleet.moves.waits[0].region == "east"
    fleet.live(20)
    assert fleet.shares() == {"east": 1, "north": 3} and fleet.placed == {"east": 1, "north": 3, "west": 0}
    (row,) = fleet.moves.left
    assert (row.region, row.to, row.count, row.reason) == ("east", "north", 1, Reason.INSUFFICIENT_CPU)
    said = {a.spec.region: a.spec.reason for a in fleet.cache.list(Assignment)}
    assert "moved on from east" in said["north"] and "moved on to north" in said["east"]
    before = list(fleet.seen)
    fleet.live(6000)
    assert fleet.seen == before and not fleet.moves.left, "it stays, and in time is forgotten"


def test_it_is_told_and_looked_at_again():
    fleet = full(room=1)
    outcome = fleet.decide()
    assert outcome.again_in_s is not None and outcome.again_in_s <= limits.MOVE_ON_LOOK_S
    fleet.now += limits.MOVE_ON_AFTER_S
    (notice,) = [n for n in fleet.decide().notices if n.reason == Reason.MOVED_ON]
    assert "east" in notice.message and "north" in notice.message


def test_a_wait_that_ends_is_forgotten():
    fleet = full(room=1)
    fleet.live(30)
    assert fleet.moves.waits
    fleet.room["east"] = 9
    fleet.say()
    fleet.live(10)
    assert fleet.moves == MovesBlock()
    fleet.room["east"] = 1
    fleet.say()
    fleet.live(40)
    assert fleet.shares() == {"east": 2, "north": 2}, "its time counts from when it waited again"


def test_nothing_moves_to_where_there_is_no_room():
    fleet = full(room=1)
    for name in ("north", "west"):
        item = fleet.cache.get(Region, name)
        report = msgspec.structs.replace(item.status.report, used={"cpu": "16"})
        fleet.cache.put(again(item, status=msgspec.structs.replace(item.status, report=report)))
    fleet.live(300)
    assert fleet.shares() == {"east": 2, "north": 2} and fleet.moves == MovesBlock()


def test_no_more_move_than_there_is_room_for():
    fleet = full(replicas=8, placement=Placement(regions=("east", "west")))
    item = fleet.cache.get(Region, "west")
    report = msgspec.structs.replace(item.status.report, used={"cpu": "14500m"})
    fleet.cache.put(again(item, status=msgspec.structs.replace(item.status, report=report)))
    fits = moving_on.room_of(
        fleet.cache.get(Region, "west"), fleet.cache.get(Workload, "api", "acme"), fleet.cache
    ).fits
    assert 0 < fits < 4
    fleet.now += 0
    fleet.decide()
    fleet.now += limits.MOVE_ON_AFTER_S
    fleet.decide()
    assert fleet.shares() == {"east": 4 - fits, "west": 4 + fits}


def test_of_many_that_wait_only_as_many_go_as_fit():
    """Each counts what went before it, as the decisions of a pass do: no herd."""
    cache = view(tenant(), priority(), region("east"), region("west", cpu="4"))
    for n in range(20):
        cache.put(workload(f"w{n}", replicas=1, placement=Placement(spread_regions=1)))
        item = workload(f"w{n}", replicas=1)
        made = assign.spec_for(cache.get(Workload, f"w{n}", "acme"), "east", 1, cache)
        waits = AssignmentStatus(
            observed_epoch=1, replicas=1, queued=1, updated=1,
            pending=(PendingReason(reason=Reason.INSUFFICIENT_CPU, count=1),),
        )  # fmt: skip
        name = f"{item.metadata.name}.east.normal"
        cache.put(Assignment(metadata=meta(name, "acme"), spec=made, status=waits))
    for now in (T0, T0 + limits.MOVE_ON_AFTER_S):
        for n in range(20):
            for write in assign.decide(Key("acme", f"w{n}"), cache, now).writes:
                match write:
                    case Create():
                        cache.put(again(write.object, metadata=meta(write.object.metadata.name, "acme")))
                    case Update():
                        cache.put(again(write.object))
                    case SetStatus():
                        stored = cache.get(Workload, f"w{n}", "acme")
                        status = msgspec.structs.replace(stored.status, moves=write.blocks["moves"])
                        cache.put(again(stored, status=status))
    went = sum(a.spec.replicas for a in cache.list(Assignment) if a.spec.region == "west")
    fits = {n: v for (p, where, n), v in need(cache.list(Assignment)[0]).items()}
    assert 0 < went <= 4000 // max(1, fits["cpu"] // 2), "the other region is full, and nobody crowds it"


def test_between_regions_that_are_all_full_nothing_goes_to_and_fro():
    fleet = full(room=1, replicas=6, placement=Placement())
    fleet.room = dict.fromkeys(NAMES, 1)
    fleet.say()
    fleet.live(4 * 3600)
    flips = sum(a == c and a != b for a, b, c in zip(fleet.seen, fleet.seen[1:], fleet.seen[2:], strict=False))
    assert flips <= 3 and len(fleet.seen) < 30, fleet.seen


def test_a_region_that_was_left_is_avoided_and_taken_if_there_is_no_other():
    fleet = full(room=1)
    fleet.live(90)
    item = fleet.cache.get(Workload, "api", "acme")
    fleet.cache.put(again(item, spec=msgspec.structs.replace(item.spec, replicas=6)))
    fleet.decide()
    assert fleet.shares() == {"east": 1, "north": 5}
    for name in ("north", "west"):
        gone = fleet.cache.get(Region, name)
        health = msgspec.structs.replace(gone.status.health, state=HealthState.SUSPECT)
        fleet.cache.put(again(gone, status=msgspec.structs.replace(gone.status, health=health)))
    fleet.say()
    item = fleet.cache.get(Workload, "api", "acme")
    fleet.cache.put(again(item, spec=msgspec.structs.replace(item.spec, replicas=7)))
    fleet.decide()
    assert fleet.shares() == {"east": 2, "north": 5}


@pytest.mark.parametrize(
    ("spec", "room", "expected"),
    [
        ({"placement": Placement(spread_regions=1)}, 1, {"east": 4}),
        ({"placement": Placement(spread_regions=1)}, 0, {"north": 4}),
        ({"placement": Placement(regions=("east",))}, 1, {"east": 4}),
        ({"placement": Placement(residency=("eu",))}, 0, {}),
        ({"exclusive": Exclusivity(), "placement": Placement(spread_regions=1)}, 1, {"east": 4}),
        ({"exclusive": Exclusivity(), "placement": Placement(spread_regions=1)}, 0, {"north": 4}),
        ({"gang": Gang(min_available=4), "placement": Placement(spread_regions=1)}, 2, {"east": 4}),
        ({"gang": Gang(min_available=4), "placement": Placement(spread_regions=1)}, 0, {"north": 4}),
    ],
    ids=[
        "a hard spread is kept", "all of it may go", "only where it may be", "residency", "exclusive in part",
        "exclusive as a whole", "gang in part", "gang as a whole",
    ],
)  # fmt: skip
def test_rules_are_kept(spec, room, expected):
    fleet = full(room=room, **spec)
    fleet.live(200)
    assert fleet.shares() == expected


def test_an_ordinal_moves_only_when_it_was_let_go():
    fleet = full(exclusive=Exclusivity(), placement=Placement(spread_regions=1))
    fleet.decide()
    fleet.now += limits.MOVE_ON_AFTER_S
    fleet.decide()
    assert {a.spec.region: a.spec.ordinals for a in fleet.cache.list(Assignment)} == {"east": ()}
    fleet.decide()
    assert {a.spec.region: a.spec.ordinals for a in fleet.cache.list(Assignment)} == {"east": ()}, "not yet let go"
    fleet.live(20)
    assert {a.spec.region: a.spec.ordinals for a in fleet.cache.list(Assignment)} == {"north": (0, 1, 2, 3)}


def test_batch_work_goes_as_a_whole_and_only_before_it_began():
    shape = Batch(completions=6, parallelism=2)
    fleet = full(type=WorkloadType.BATCH, batch=shape, placement=Placement())
    fleet.live(100)
    assert fleet.shares() == {"north": 6}
    begun = full(room=1, type=WorkloadType.BATCH, batch=shape, placement=Placement())
    begun.live(200)
    assert begun.shares() == {"east": 6}


def quota(**caps: str) -> Quota:
    spec = QuotaSpec(hard={"cpu": "100", "memory": "100Gi"}, region_caps={r: {"cpu": cpu} for r, cpu in caps.items()})
    return Quota(metadata=meta("quota", "acme"), spec=spec)


@pytest.mark.parametrize(
    ("reason", "given", "goes"),
    [
        (Reason.QUOTA_EXCEEDED, quota(east="1"), True),
        (Reason.QUOTA_EXCEEDED, quota(), False),
        (Reason.QUOTA_EXCEEDED, quota(east="1", north="1", west="1"), False),
        (Reason.INSUFFICIENT_CPU, quota(north="1", west="1"), False),
        (Reason.GRANT_EXPIRED, quota(east="1"), False),
        (Reason.LABELS_DO_NOT_MATCH, quota(), False),
        (Reason.NO_NODES, quota(), True),
    ],
    ids=["capped here", "short as a whole", "capped everywhere", "others capped", "cut off", "never", "no nodes"],
)
def test_quota_moves_only_what_a_cap_keeps_and_no_cap_is_exceeded(reason, given, goes):
    fleet = Fleet(given)
    fleet.reason = reason
    fleet.decide()
    fleet.room["east"] = 1
    fleet.say()
    fleet.live(200)
    assert (fleet.shares() != {"east": 2, "north": 2}) is goes


def test_a_rollout_beside_what_runs_is_no_reason_to_move():
    fleet = full(room=2)
    item = next(a for a in fleet.cache.list(Assignment) if a.spec.region == "east")
    beside = msgspec.structs.replace(
        item.status, replicas=3, queued=1, pending=(PendingReason(reason=Reason.INSUFFICIENT_CPU, count=1),)
    )
    fleet.cache.put(again(item, status=beside))
    assert not moving_on.waits_for_room(again(item, status=beside))
    for _ in range(4):
        fleet.decide()
        fleet.now += limits.MOVE_ON_AFTER_S
    assert fleet.shares() == {"east": 2, "north": 2}


def test_a_region_that_is_not_heard_is_not_believed():
    fleet = full(room=1)
    item = fleet.cache.get(Region, "east")
    health = msgspec.structs.replace(item.status.health, state=HealthState.SUSPECT)
    fleet.cache.put(again(item, status=msgspec.structs.replace(item.status, health=health)))
    fleet.live(200)
    assert fleet.shares() == {"east": 2, "north": 2}
