"""At rest no replica waits for quota while unused quota exists that its tenant's rules allow it to use."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expected import present
from tests.factories import assignment, cache_of, meta, region, with_new_revision

from holdfast.fleet import free_shapes, grants
from holdfast.fleet.tenant_demand import ROOM_UNITS_MAX
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason, Purpose, assignment_name
from holdfast.model.meta import Key
from holdfast.model.quantity import Amounts, add, amounts, amounts_text
from holdfast.model.quota import Grant, GrantClass, GrantStatus, Quota, QuotaSpec
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, NodeShape, Region
from holdfast.model.scheduler_policy import (
    PartitionMode,
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyRules,
    PromotionStage,
)
from holdfast.model.template import Template, requests
from holdfast.model.times import micro_text
from holdfast.model.workload import Gang, Rollout
from holdfast.model.writes import Create, SetStatus, Update

NOW = 1_800_000_000.0
REGIONS = ("a", "b", "c")
ROUNDS_MAX = 40
_CLASSES = {Purpose.NORMAL: GrantClass.NORMAL, Purpose.RECOVERY: GrantClass.RECOVERY}


class Fleet:
    """One tenant in three regions. A region places a replica as soon as its limit covers it, and reports every round.

    `room` is the free CPU of regions with one node, in thousandths: outside of recovery slots, and in them. Other
    regions have room for everything."""

    def __init__(self, *, mode: PartitionMode = PartitionMode.WAIT, **spec: Any) -> None:
        quota = Quota(metadata=meta("quota", "acme"), spec=QuotaSpec(**spec))
        rules = PolicyRevisionSpec(
            policy="default", sequence=1, stage=PromotionStage.ACTIVE, rules=PolicyRules(partition_mode=mode)
        )
        policy = PolicyRevision(metadata=meta("default-1"), spec=rules)
        self.cache = cache_of(quota, policy, *(region(name) for name in REGIONS))
        self.quota = quota
        self.room: dict[str, tuple[int, int]] = {}
        self.without_ports: set[str] = set()
        """Regions whose nodes have no port left, which their reports do not tell."""

    def fill(self, where: str, *, free: int = 0, slots: int = 0) -> None:
        """The region's only node has this much room left, as its report says."""
        self.room[where] = (free, slots)
        item = present(self.cache.get(Region, where))
        node = NodeShape(zone="z", nodes=1, resources={"cpu": "8", "memory": "1Ti"})
        left = NodeShape(
            zone="z",
            nodes=1,
            resources={"cpu": f"{free}m", "memory": "512Gi"},
            recovery_reserved={"cpu": f"{slots}m", "memory": "512Gi"},
        )
        report = msgspec.structs.replace(present(item.status.report), nodes=1, node_shapes=(node,), free_shapes=(left,))
        self.cache.put(with_new_revision(item, status=msgspec.structs.replace(item.status, report=report)))

    def has_room(self, item: Assignment, replicas: int = 1) -> bool:
        return self._fits(item) >= replicas

    def _fits(self, item: Assignment) -> int:
        """How many more replicas of the Assignment its region's nodes have room for."""
        if item.spec.region in self.without_ports:
            return 0
        if item.spec.region not in self.room:
            return 1_000
        free, slots = self.room[item.spec.region]
        return (free + slots if item.spec.reclaimable else free) // requests(item.spec.template)["cpu"]

    def _use(self, item: Assignment, replicas: int) -> None:
        if item.spec.region not in self.room or not replicas:
            return
        free, slots = self.room[item.spec.region]
        taken = requests(item.spec.template)["cpu"] * replicas
        # Replicas that end leave free capacity, however they were placed.
        in_slots = min(slots, max(0, taken)) if item.spec.reclaimable else 0
        self.fill(item.spec.region, free=free - (taken - in_slots), slots=slots - in_slots)

    def assign(
        self,
        name: str,
        where: str,
        replicas: int,
        *,
        purpose: Purpose = Purpose.NORMAL,
        size: str = "500m",
        **spec: Any,
    ) -> None:
        template = Template(command=("x", spec.pop("version", "1")), resources={"cpu": size, **spec.pop("more", {})})
        item = assignment(name, where, replicas=replicas, template=template, **spec)
        named = msgspec.structs.replace(item.metadata, name=assignment_name(name, where, purpose))
        stored = self.cache.get(Assignment, named.name, "acme")
        status = stored.status if stored is not None else AssignmentStatus()
        self.cache.put(with_new_revision(msgspec.structs.replace(item, metadata=named, status=status)))

    def settle(self) -> int:
        """Decides and reports until nothing changes. Returns the number of rounds."""
        for number in range(ROUNDS_MAX):
            writes = [
                w for w in grants.decide(Key("acme", "quota"), self.cache, NOW).writes if isinstance(w, Create | Update)
            ]
            for write in writes:
                item: Any = write.object
                self.cache.put(with_new_revision(item, metadata=meta(item.metadata.name, "acme")))
            self._check_total()
            if not any([self._report(name) for name in REGIONS]) and not writes:
                return number
        raise AssertionError(f"grants still change after {ROUNDS_MAX} rounds")

    def _check_total(self) -> None:
        """S3: what regions may enforce is within the quota."""
        for grant_class, total in (
            (GrantClass.NORMAL, self.quota.spec.hard),
            (GrantClass.RECOVERY, self.quota.spec.recovery_allowance),
        ):
            enforced: Amounts = {}
            for grant in self.cache.list(Grant):
                if grant.spec.grant_class is grant_class:
                    most = amounts(grant.spec.limit)
                    for name, amount in amounts(grant.status.limit).items():
                        most[name] = max(most.get(name, 0), amount)
                    add(enforced, most)
            assert all(amount <= amounts(total).get(name, 0) for name, amount in enforced.items())

    def _report(self, where: str) -> bool:
        """One round of a region: it applies its limits, places replicas and reports. True if anything changed."""
        before = [self.cache.get(Grant, g.metadata.name, "acme") for g in self._grants(where)]
        changed = False
        if where in self.unreachable():
            return False
        for grant in self._grants(where):
            used = self.used(where, grant.spec.grant_class)
            limit = amounts(grant.spec.limit)
            held = {n: max(limit.get(n, 0), used.get(n, 0)) for n in {*limit, *used}}
            left = dict(limit)
            add(left, amounts(grant.spec.provisional), times=-1)
            add(left, used, times=-1)
            for item in self._assignments(where, grant.spec.grant_class):
                changed |= self._place(item, left, where)
            used = self.used(where, grant.spec.grant_class)
            status = GrantStatus(
                acknowledged_epoch=grant.spec.epoch,
                limit=dict(amounts_text({n: a for n, a in held.items() if a})),
                used=dict(amounts_text(used)),
                renewed_at=micro_text(NOW),
            )
            if status != grant.status:
                self.cache.put(with_new_revision(grant, status=status))
        after = [self.cache.get(Grant, g.metadata.name, "acme") for g in self._grants(where)]
        return changed or [g.status for g in before if g] != [g.status for g in after if g]

    def _place(self, item: Assignment, left: Amounts, where: str) -> bool:
        """Binds what the remaining quota covers; excess replicas end. True if the report changed."""
        spec, status = item.spec, item.status
        shape = requests(spec.template)
        bound = min(status.bound, spec.replicas)
        rollout = status.revision not in ("", spec.revision)
        desired = spec.replicas + (spec.rollout.max_surge if rollout else 0)
        least = max(1, spec.gang.min_available - bound) if spec.gang is not None else 1
        fits = min((left.get(name, 0) // amount for name, amount in shape.items()), default=0)
        placed = max(0, min(desired - bound, fits))
        room = self._fits(item)
        placed = min(placed, room)
        if placed < min(least, max(1, desired - bound)):
            placed = 0
        add(left, shape, times=-placed)
        self._use(item, placed + bound - status.bound)
        bound += placed
        done = not rollout or bound > spec.replicas  # the surge replica serves: the rollout goes on, and ends
        waiting = max(0, desired - bound)
        reason = Reason.QUOTA_EXCEEDED if room >= least or fits < least else Reason.INSUFFICIENT_CPU
        new = AssignmentStatus(
            observed_epoch=spec.epoch,
            replicas=bound + waiting,
            bound=min(bound, spec.replicas) if done else bound,
            queued=waiting,
            revision=spec.revision if done else status.revision,
            updated=bound + waiting if done else 0,
            pending=(PendingReason(reason=reason, count=waiting),) if waiting else (),
        )
        if new == status:
            return False
        self.cache.put(with_new_revision(item, status=new))
        return True

    def unreachable(self) -> set[str]:
        return {
            name for name in REGIONS if present(self.cache.get(Region, name)).status.health.state is HealthState.LOST
        }

    def _grants(self, where: str) -> list[Grant]:
        return [g for g in self.cache.list(Grant) if g.spec.region == where]

    def _assignments(self, where: str, grant_class: GrantClass) -> list[Assignment]:
        found = [
            a for a in self.cache.list(Assignment) if a.spec.region == where and _CLASSES[a.spec.purpose] is grant_class
        ]
        return sorted(found, key=lambda a: -a.spec.priority)

    def used(self, where: str, grant_class: GrantClass) -> Amounts:
        total: Amounts = {}
        for item in self._assignments(where, grant_class):
            add(total, requests(item.spec.template), times=item.status.bound)
        return total

    def bound(self, name: str) -> int:
        return sum(a.status.bound for a in self.cache.list(Assignment) if a.spec.workload == name)

    def stranded(self) -> list[str]:
        """Waiting replicas that would fit into the unused quota and into the cap of their region."""
        found = []
        for purpose, total in (
            (Purpose.NORMAL, self.quota.spec.hard),
            (Purpose.RECOVERY, self.quota.spec.recovery_allowance),
        ):
            free = amounts(total)
            for where in REGIONS:
                add(free, self.used(where, _CLASSES[purpose]), times=-1)
            for item in self.cache.list(Assignment):
                spec, bound = item.spec, item.status.bound
                together = max(1, spec.gang.min_available - bound) if spec.gang is not None else 1
                if spec.purpose is not purpose or bound >= spec.replicas or not self.has_room(item, together):
                    continue
                if purpose is Purpose.RECOVERY and self.room:
                    continue  # recovery evicts reclaimable work, so a full region keeps its recovery quota
                cap = amounts(self.quota.spec.region_caps.get(spec.region, {})) if purpose is Purpose.NORMAL else {}
                here = self.used(spec.region, _CLASSES[purpose])
                need = {n: a * together for n, a in requests(spec.template).items()}
                within = all(here.get(n, 0) + a <= cap[n] for n, a in need.items() if n in cap)
                if within and all(free.get(n, 0) >= a for n, a in need.items()):
                    found.append(f"{item.metadata.name}: {bound} of {spec.replicas}, unused {free}")
        return found


@pytest.mark.parametrize("split", [(4, 0, 0), (3, 1, 0), (2, 1, 1), (0, 0, 4)])
def test_workload_that_fits_its_quota_exactly_runs_whole(split: tuple[int, ...]) -> None:
    fleet = Fleet(hard={"cpu": "2"})
    for where, replicas in zip(REGIONS, split, strict=True):
        fleet.assign("api", where, replicas)
    fleet.settle()
    assert fleet.bound("api") == 4


def test_smaller_replica_gets_quota_that_a_larger_one_cannot_use() -> None:
    fleet = Fleet(hard={"cpu": "2"})
    fleet.assign("large", "a", 3, size="700m")
    fleet.assign("small", "b", 1, size="500m")
    fleet.settle()
    assert (fleet.bound("large"), fleet.bound("small")) == (2, 1)


def test_quota_goes_to_the_higher_priority_in_any_region() -> None:
    fleet = Fleet(hard={"cpu": "1"})
    fleet.assign("batch", "a", 2, priority=1)
    fleet.assign("api", "c", 2, priority=9)
    fleet.settle()
    assert (fleet.bound("batch"), fleet.bound("api")) == (0, 2)


def test_quota_freed_in_one_region_wakes_a_replica_in_another() -> None:
    fleet = Fleet(hard={"cpu": "2"})
    fleet.assign("first", "a", 4)
    fleet.assign("second", "c", 2)
    fleet.settle()
    assert (fleet.bound("first"), fleet.bound("second")) == (4, 0)
    fleet.assign("first", "a", 2)
    assert fleet.settle() <= 6
    assert (fleet.bound("first"), fleet.bound("second")) == (2, 2)


def test_running_rollout_gets_surge_from_the_spare_quota_of_another_region() -> None:
    fleet = Fleet(hard={"cpu": "2500m"})
    fleet.assign("api", "a", 2)
    fleet.assign("other", "b", 2)
    fleet.settle()
    fleet.assign("api", "a", 2, version="2")
    fleet.settle()
    (item,) = [a for a in fleet.cache.list(Assignment) if a.spec.workload == "api"]
    assert item.status.revision == item.spec.revision, "the surge replica got quota, so the rollout ended"


def test_replica_without_room_leaves_the_quota_to_a_region_with_room() -> None:
    fleet = Fleet(hard={"cpu": "1"})
    fleet.fill("a")
    fleet.assign("first", "a", 2, priority=9)
    fleet.assign("second", "b", 2)
    fleet.settle()
    assert (fleet.bound("first"), fleet.bound("second")) == (0, 2)


def test_region_with_room_for_one_replica_keeps_quota_for_one() -> None:
    fleet = Fleet(hard={"cpu": "2"})
    fleet.fill("a", free=700)
    fleet.assign("first", "a", 3, priority=9)
    fleet.assign("second", "b", 3)
    fleet.settle()
    assert (fleet.bound("first"), fleet.bound("second")) == (1, 3)


def test_region_that_places_nothing_keeps_quota_only_for_the_room_that_it_reports() -> None:
    fleet = Fleet(hard={"cpu": "2"})
    fleet.fill("a", free=700)
    fleet.without_ports.add("a")
    fleet.assign("first", "a", 3, priority=9)
    fleet.assign("second", "b", 3)
    fleet.settle()
    assert (fleet.bound("first"), fleet.bound("second")) == (0, 3)


def test_region_without_room_for_a_whole_gang_keeps_no_quota_for_it() -> None:
    fleet = Fleet(hard={"cpu": "1"})
    fleet.fill("a", free=500)
    fleet.assign("first", "a", 2, priority=9, gang=Gang(min_available=2))
    fleet.assign("second", "b", 2)
    fleet.settle()
    assert (fleet.bound("first"), fleet.bound("second")) == (0, 2)


def test_work_of_a_decision_is_bounded_when_all_replicas_of_a_tenant_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant beyond its quota with many different requests must not occupy the global cell. Every replica that the
    quota covers has its quota nevertheless."""
    fits, calls = free_shapes.node_fits, 0

    def counted(free: Amounts, need: Amounts, shared_gpu: int) -> int:
        nonlocal calls
        calls += 1
        return fits(free, need, shared_gpu)

    monkeypatch.setattr(free_shapes, "node_fits", counted)
    spent = {}
    for many in (ROOM_UNITS_MAX, 4 * ROOM_UNITS_MAX):
        sizes = range(100, 100 + many)
        fleet = Fleet(hard={"cpu": f"{sum(sizes) - 1}m"})
        fleet.fill("a", free=sum(sizes))
        for size in sizes:
            fleet.assign(f"w{size}", "a", 1, size=f"{size}m")
        calls = 0
        outcome = grants.decide(Key("acme", "quota"), fleet.cache, NOW)
        spent[many] = calls
        created = [w.object for w in outcome.writes if isinstance(w, Create) and isinstance(w.object, Grant)]
        (grant,) = [g for g in created if g.spec.region == "a"]
        assert sum(sizes[:-1]) <= amounts(grant.spec.limit)["cpu"] < sum(sizes)
    assert 0 < spent[4 * ROOM_UNITS_MAX] < 2 * spent[ROOM_UNITS_MAX]


@pytest.mark.parametrize("reclaimable", [False, True])
def test_recovery_slots_are_room_for_reclaimable_work_only(*, reclaimable: bool) -> None:
    fleet = Fleet(hard={"cpu": "1"})
    fleet.fill("a", slots=1000)
    fleet.assign("first", "a", 2, priority=9, reclaimable=reclaimable)
    fleet.assign("second", "b", 2)
    fleet.settle()
    assert (fleet.bound("first"), fleet.bound("second")) == ((2, 0) if reclaimable else (0, 2))


def test_full_region_keeps_quota_for_work_that_may_preempt() -> None:
    fleet = Fleet(hard={"cpu": "1"})
    fleet.fill("a")
    fleet.assign("first", "a", 2, priority=9, may_preempt=True)
    fleet.assign("second", "b", 2)
    fleet.settle()
    assert fleet.bound("second") == 0


def test_two_full_regions_do_not_exchange_quota() -> None:
    fleet = Fleet(hard={"cpu": "1"})
    for where in ("a", "b"):
        fleet.fill(where)
        fleet.assign("api", where, 2)
    fleet.settle()
    assert not grants.decide(Key("acme", "quota"), fleet.cache, NOW + 60).writes or fleet.settle() == 0


shapes = st.sampled_from(["200m", "300m", "500m", "700m", "1"])
memory = st.sampled_from([{}, {"memory": "100Mi"}, {"memory": "300Mi"}])
loads = st.lists(
    st.fixed_dictionaries(
        {
            "where": st.sampled_from(REGIONS),
            "replicas": st.integers(0, 5),
            "size": shapes,
            "more": memory,
            "priority": st.integers(0, 2),
            "rollout": st.builds(Rollout, max_surge=st.integers(0, 2), max_unavailable=st.just(1)),
            "gang": st.one_of(st.none(), st.none(), st.builds(Gang, min_available=st.integers(1, 3))),
            "reclaimable": st.booleans(),
            "purpose": st.sampled_from([Purpose.NORMAL, Purpose.NORMAL, Purpose.RECOVERY]),
        }
    ),
    min_size=1,
    max_size=6,
)
rooms = st.dictionaries(
    st.sampled_from(REGIONS), st.tuples(st.sampled_from([0, 0, 400, 1000]), st.sampled_from([0, 0, 500])), max_size=2
)
changes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from("12")), max_size=4)


quotas = st.fixed_dictionaries(
    {
        "hard": st.fixed_dictionaries(
            {"cpu": st.sampled_from(["1", "2", "2500m", "4"]), "memory": st.sampled_from(["500Mi", "2Gi"])}
        ),
        "protected": st.sampled_from([{}, {"cpu": "1"}]),
        "region_caps": st.sampled_from([{}, {"a": {"cpu": "1"}, "b": {"cpu": "700m"}}]),
        "recovery_allowance": st.just({"cpu": "2", "memory": "1Gi"}),
        "mode": st.sampled_from(PartitionMode),
    }
)


@settings(deadline=None)
@given(quota=quotas, loads=loads, changes=changes, rooms=rooms)
def test_no_replica_waits_while_unused_quota_would_cover_it(
    quota: dict[str, Any],
    loads: list[dict[str, Any]],
    changes: list[tuple[int, int, str]],
    rooms: dict[str, tuple[int, int]],
) -> None:
    fleet = Fleet(**quota)
    for where, (free, slots) in sorted(rooms.items()):
        fleet.fill(where, free=free, slots=slots)

    def assign(number: int, **changed: Any) -> None:
        spec = {**loads[number], "more": dict(loads[number]["more"]), **changed}
        fleet.assign(f"w{number}", spec.pop("where"), spec.pop("replicas"), **spec)

    for number in range(len(loads)):
        assign(number)
    fleet.settle()
    assert not fleet.stranded()
    for which, replicas, version in changes:
        assign(which % len(loads), replicas=replicas, version=version)
        fleet.settle()
        assert not fleet.stranded()


def test_lost_region_keeps_its_grant_and_the_rest_goes_to_the_others() -> None:
    fleet = Fleet(hard={"cpu": "3"})
    fleet.assign("api", "a", 2)
    fleet.settle()
    lost = present(fleet.cache.get(Region, "a"))
    health = msgspec.structs.replace(lost.status.health, state=HealthState.LOST)
    fleet.cache.put(with_new_revision(lost, status=msgspec.structs.replace(lost.status, health=health)))
    fleet.assign("api", "a", 6)
    fleet.assign("other", "b", 6)
    fleet.settle()
    kept = next(g for g in fleet.cache.list(Grant) if g.spec.region == "a")
    free = 3000 - amounts(kept.spec.limit)["cpu"]
    assert fleet.bound("other") == free // 500 > 0, "replicas of a lost region take no quota from others"


def test_quota_status_says_how_many_replicas_no_unused_quota_covers() -> None:
    fleet = Fleet(hard={"cpu": "1"})
    fleet.assign("api", "a", 3)
    fleet.settle()
    (status,) = [w for w in grants.decide(Key("acme", "quota"), fleet.cache, NOW).writes if isinstance(w, SetStatus)]
    granted = next(c for c in status.conditions if c.type == "Granted")
    assert "1 replicas wait in a: the unused quota covers none of them" in granted.message
