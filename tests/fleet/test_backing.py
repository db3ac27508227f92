"""Slot matching compared with a slow, exhaustive search."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expected import only, present
from tests.factories import assignment, cache_of, meta, priority, region, with_new_revision, workload

from holdfast.controllers.cache import Cache
from holdfast.fleet.recovery import backing
from holdfast.fleet.recovery.backing import Loss
from holdfast.fleet.recovery.slot_matching import MatchResult, RecoveryDemand, SlotGroup, match_slots
from holdfast.model.assignment import AssignmentStatus
from holdfast.model.meta import Key, Object
from holdfast.model.quantity import Amount
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.region import HealthState, RecoverySlotReport, Region, RegionHealth
from holdfast.model.scheduler_policy import FilterExpression, PolicyRevision, PolicyRevisionSpec, PolicyRules
from holdfast.model.times import seconds_text
from holdfast.model.workload import BackingBlock, RecoveryObjective, Workload
from holdfast.model.writes import SetStatus

CPU: dict[str, Amount] = {"cpu": "500m", "memory": "1Gi"}
NOW = 1_767_225_600.0


def with_places(name: str, *, a: int, b: int, shape: dict[str, Amount] = CPU) -> Region:
    there = region(name)
    places = tuple(
        RecoverySlotReport(budget=name, zone=f"{name}-{zone}", resources=shape, admitted=count)
        for zone, count in (("a", a), ("b", b))
    )
    report = msgspec.structs.replace(present(there.status.report), recovery_slots=places)
    return with_new_revision(there, status=msgspec.structs.replace(there.status, report=report))


def budget(name: str, count: int, tenants: tuple[str, ...] = ("acme",)) -> RecoveryBudget:
    slots = (SlotShape(resources=CPU, count=count),)
    return RecoveryBudget(metadata=meta(name), spec=RecoveryBudgetSpec(region=name, slot_shapes=slots, tenants=tenants))


def world(*more: Object, allowance: str = "8", kept: int = 4, tenants: tuple[str, ...] = ("acme",)) -> Cache:
    serving = AssignmentStatus(observed_epoch=1, replicas=3, bound=3, ready=3, serving=3)
    return cache_of(
        priority(),
        *(with_places(name, a=kept // 2, b=kept - kept // 2) for name in ("x", "y", "z")),
        *(budget(name, kept, tenants) for name in ("x", "y", "z")),
        Quota(
            metadata=meta("quota", "acme"),
            spec=QuotaSpec(hard={"cpu": "16"}, recovery_allowance={"cpu": allowance, "memory": "64Gi"}),
        ),
        workload(replicas=6, recovery=RecoveryObjective(min_serving=4)),
        assignment(where="x", status=serving),
        assignment(where="y", status=serving),
        *more,
    )


def test_message_names_the_filters_that_are_not_counted() -> None:
    gate = FilterExpression(name="gpu-only", expression="!('gpu' in node.capacity) || 'gpu' in request.resources")
    lab = FilterExpression(name="no-lab", expression="node.pool != 'request'")
    rules = PolicyRules(filter_expressions=(gate, lab))
    revision = PolicyRevision(metadata=meta("gpu-1"), spec=PolicyRevisionSpec(policy="default", rules=rules))
    view = world(revision)
    said = only(backing.decide(backing.ALL_OBJECTIVES, view, 1.0).writes, SetStatus).blocks["backing"].message
    assert "not counting" not in said, "no region uses the revision"
    before = present(view.get(Region, "x"))
    report = msgspec.structs.replace(present(before.status.report), policy="gpu-1")
    view.put(with_new_revision(before, status=msgspec.structs.replace(before.status, report=report)))
    said = only(backing.decide(backing.ALL_OBJECTIVES, view, 1.0).writes, SetStatus).blocks["backing"].message
    assert "(gpu-only of policy revision gpu-1); see holdfast plan --lose-region" in said


def test_objective_is_backed_by_enough_slots() -> None:
    assert backing.unbacked_objectives(world(), NOW) == {}
    write = only(backing.decide(backing.ALL_OBJECTIVES, world(), 1.0).writes, SetStatus)
    assert write.blocks["backing"].backed


def test_time_of_the_block_moves_only_when_backing_begins_or_ends() -> None:
    """A restart, or another bottleneck, does not restart the time for which an objective is unbacked."""

    def decided(view: Cache, now: float) -> BackingBlock:
        for write in backing.decide(backing.ALL_OBJECTIVES, view, now).writes:
            assert isinstance(write, SetStatus)
            item = present(view.get(Workload, write.key.name, write.key.namespace))
            view.put(with_new_revision(item, status=msgspec.structs.replace(item.status, **write.blocks)))
        return present(view.list(Workload)[0].status.backing)

    view = world(kept=0)
    first = decided(view, 100.0)
    assert not first.backed and first.since == seconds_text(100.0)
    for name in ("x", "y", "z"):
        view.put(with_new_revision(present(view.get(RecoveryBudget, name)), spec=budget(name, 0, ("other",)).spec))
    assert decided(view, 200.0).since == seconds_text(100.0)
    for name in ("x", "y", "z"):
        view.put(with_new_revision(present(view.get(RecoveryBudget, name)), spec=budget(name, 4).spec))
        view.put(with_new_revision(with_places(name, a=2, b=2)))
    after = decided(view, 300.0)
    assert after.backed and after.since == seconds_text(300.0)


@pytest.mark.parametrize(("admitted", "usable"), [("250m", 250), ("4", 500)])
def test_slot_counts_with_the_smaller_of_budget_and_admitted_shape(admitted: str, usable: int) -> None:
    """While a budget's shape is changed, its slots in the region still have the old one."""
    there = with_places("x", a=1, b=1, shape={"cpu": admitted, "memory": "1Gi"})
    (group,) = backing.surviving_slots(there, [budget("x", 2)], Loss("x", "x-a"))
    assert group.shape["cpu"] == usable and group.count == 1


def test_unbacked_objective_names_the_bottleneck() -> None:
    short = backing.unbacked_objectives(world(kept=0), NOW)
    assert "0 of 1 matching recovery slots" in short[Key("acme", "api")]
    short = backing.unbacked_objectives(world(allowance="100m"), NOW)
    assert "the recovery allowance has too little cpu" in short[Key("acme", "api")]
    short = backing.unbacked_objectives(world(tenants=("other",)), NOW)
    assert "0 of 1 matching recovery slots" in short[Key("acme", "api")]


def test_workload_without_a_region_left_is_told_why_each_one_is_not() -> None:
    """Regions that the workload's rules allow are not called forbidden when they are lost themselves."""
    view = world()
    lost = RegionHealth(state=HealthState.LOST, last_sequence=1)
    for name in ("x", "y"):
        item = present(view.get(Region, name))
        view.put(with_new_revision(item, status=msgspec.structs.replace(item.status, health=lost)))
    short = backing.unbacked_objectives(view, NOW)[Key("acme", "api")]
    assert short == "if region z is lost: no other region can run it (x: the region is Lost; y: the region is Lost)"
    (made,) = view.list(Workload)
    objective = RecoveryObjective(min_serving=4, regions=("z",))
    view.put(with_new_revision(made, spec=msgspec.structs.replace(made.spec, recovery=objective)))
    short = backing.unbacked_objectives(view, NOW)[Key("acme", "api")]
    assert "x: not in spec.recovery.regions" in short


def test_every_region_and_every_zone_can_be_lost() -> None:
    losses = [(loss.region, loss.zone) for loss in backing.single_losses(world())]
    zones = [(r.metadata.name, zone) for r in world().list(Region) for zone in r.spec.zones]
    assert sorted(losses) == sorted([*zones, *((name, "") for name in ("x", "y", "z"))]) and zones


def test_zone_loss_removes_its_slots() -> None:
    seen = backing.forecast_loss(Loss("z", "z-a"), world(), world().list(RecoveryBudget), NOW)
    assert [
        g.count for g in backing.surviving_slots(world().list(Region)[2], world().list(RecoveryBudget), seen.loss)
    ] == [2]


shapes = st.fixed_dictionaries({"cpu": st.integers(1, 3), "memory": st.integers(1, 3)})
groups = st.lists(
    st.builds(
        SlotGroup,
        region=st.sampled_from(["a", "b"]),
        shape=shapes,
        tenants=st.sampled_from([(), ("s",), ("t",)]),
        count=st.integers(0, 3),
    ),
    max_size=4,
)


@st.composite
def items(draw: st.DrawFn) -> list[RecoveryDemand]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        options = tuple((r, draw(st.integers(1, 3))) for r in draw(st.sampled_from([("a",), ("b",), ("a", "b"), ()])))
        found.append(RecoveryDemand(draw(st.sampled_from(["s", "t"])), f"w{number}", draw(shapes), options))
    return found


def possible(chosen: Iterable[tuple[RecoveryDemand, str, int]], places: Sequence[SlotGroup]) -> bool:
    """Exhaustive search: every replica in its own slot."""
    units = [(item, region) for item, region, count in chosen for _ in range(count)]

    def place(at: int, left: list[int]) -> bool:
        if at == len(units):
            return True
        item, where = units[at]
        for index, group in enumerate(places):
            suits = group.region == where and (not group.tenants or item.tenant in group.tenants)
            covers = all(group.shape.get(n, 0) >= a for n, a in item.shape.items())
            if left[index] and suits and covers and place(at + 1, [c - (i == index) for i, c in enumerate(left)]):
                return True
        return False

    return place(0, [g.count for g in places])


@settings(max_examples=150, deadline=None)
@given(items(), groups)
def test_slot_matching_is_exact(wanted: list[RecoveryDemand], places: Sequence[SlotGroup]) -> None:
    plenty = {tenant: {"cpu": 10**6, "memory": 10**6} for tenant in ("s", "t")}
    found = match_slots(wanted, places, plenty)
    assert possible(found.placements, places)
    every = [[(item, region, count) for region, count in item.options] for item in wanted]
    whole = all(every) and any(possible(choice, places) for choice in product(*every))
    if not wanted:
        whole = True
    assert (not found.shortages) == whole


@settings(max_examples=100, deadline=None)
@given(items(), groups, st.integers(1, 12), st.integers(1, 12))
def test_slot_matching_is_exact_with_allowances(
    wanted: list[RecoveryDemand], places: Sequence[SlotGroup], cpu: int, memory: int
) -> None:
    allowed = {tenant: {"cpu": cpu, "memory": memory} for tenant in ("s", "t")}
    found = match_slots(wanted, places, allowed)

    def paid(choice: Sequence[tuple[RecoveryDemand, str, int]]) -> bool:
        for tenant in ("s", "t"):
            for name, most in allowed[tenant].items():
                if sum(i.shape[name] * count for i, _, count in choice if i.tenant == tenant) > most:
                    return False
        return True

    assert possible(found.placements, places) and paid(found.placements)
    every = [[(item, where, count) for where, count in item.options] for item in wanted]
    whole = all(every) and any(possible(choice, places) and paid(choice) for choice in product(*every))
    assert (not found.shortages) == (whole or not wanted) and found.exact


SMALL, LARGE = {"cpu": 1}, {"cpu": 2}
PLENTY = {"t": {"cpu": 10**9}}


def many(
    count: int, options: tuple[tuple[str, int], ...], shape: dict[str, int] = SMALL, name: str = "w"
) -> list[RecoveryDemand]:
    return [RecoveryDemand("t", f"{name}{number}", shape, options) for number in range(count)]


@pytest.mark.parametrize("spare", [0, -1])
def test_slot_matching_handles_hundreds_of_identical_workloads(spare: int) -> None:
    """The greedy choice fills region a with workloads that could use either region."""
    either = many(250, (("a", 4), ("b", 4)), name="either")
    only = many(250, (("a", 4),), name="only")
    places = [SlotGroup("a", SMALL, (), 1000 + spare), SlotGroup("b", SMALL, (), 1000)]
    found = match_slots([*either, *only], places, PLENTY)
    assert found.exact and (not found.shortages) == (spare == 0)
    if found.shortages:
        assert "matching recovery slots are free" in found.shortages[0].message
    else:
        assert len(found.placements) == 500 and possible_by_count(found, places)


def possible_by_count(found: MatchResult, places: Sequence[SlotGroup]) -> bool:
    return all(sum(n for _, where, n in found.placements if where == g.region) <= g.count for g in places)


def test_slot_matching_searches_after_the_greedy_choice_fails() -> None:
    """Small workloads take the large slots first; the search finds another placement."""
    wanted = [*many(1, (("a", 2), ("b", 2)), name="small"), *many(1, (("a", 2),), LARGE, name="large")]
    places = [SlotGroup("a", LARGE, (), 2), SlotGroup("b", SMALL, (), 2)]
    found = match_slots(wanted, places, PLENTY)
    assert not found.shortages and {(i.name, where) for i, where, _ in found.placements} == {
        ("small0", "b"),
        ("large0", "a"),
    }


def test_slot_matching_beyond_its_bound_is_marked_inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.fleet.recovery.slot_matching.SLOT_SEARCH_STEPS_MAX", 3)
    wanted = [item for n in range(6) for item in many(1, (("a", n + 1), ("b", n + 1)), name=f"k{n}-")]
    found = match_slots(wanted, [SlotGroup("a", SMALL, (), 10), SlotGroup("b", SMALL, (), 10)], PLENTY)
    assert found.shortages and not found.exact
    monkeypatch.setattr("holdfast.fleet.recovery.slot_matching.SLOT_SEARCH_CLASSES_MAX", 2)
    assert not match_slots(wanted, [SlotGroup("a", SMALL, (), 10), SlotGroup("b", SMALL, (), 10)], PLENTY).exact


def _every_comparison(view: Cache) -> dict[Key, str]:
    """Every workload against every loss and every region, without any shortcut."""
    found: dict[Key, str] = {}
    for loss in backing.single_losses(view):
        forecast = backing.forecast_loss(loss, view, view.list(RecoveryBudget), NOW)
        for shortage in forecast.match.shortages:
            key = Key(shortage.demand.tenant, shortage.demand.name)
            found.setdefault(key, f"if {loss} is lost: {shortage.message}")
    return found


_homes = st.lists(st.sampled_from(["x", "y", "z", "xy", "yz", ""]), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(homes=_homes, slots=st.lists(st.integers(0, 3), min_size=3, max_size=3), lost=st.sampled_from(["", "x"]))
def test_shortcuts_find_the_same_shortages_as_every_comparison(homes: list[str], slots: list[int], lost: str) -> None:
    """Workloads that serve elsewhere, zones of a covered region and workloads like the one before are skipped."""
    serving = AssignmentStatus(observed_epoch=1, replicas=1, bound=1, ready=1, serving=1)
    items: list[Object] = [priority()]
    for name, kept in zip(("x", "y", "z"), slots, strict=True):
        there = with_places(name, a=kept // 2, b=kept - kept // 2)
        health = RegionHealth(state=HealthState.LOST if name == lost else HealthState.HEALTHY)
        items += [with_new_revision(there, status=msgspec.structs.replace(there.status, health=health))]
        items += [budget(name, kept)]
    allowed = QuotaSpec(hard={"cpu": "16"}, recovery_allowance={"cpu": "2", "memory": "64Gi"})
    items.append(Quota(metadata=meta("quota", "acme"), spec=allowed))
    for number, home in enumerate(homes):
        name = f"w{number}"
        items.append(workload(name, replicas=1, recovery=RecoveryObjective(min_serving=1)))
        items += [assignment(name, where, replicas=1, status=serving) for where in home]
    view = cache_of(*items)
    expected = _every_comparison(view)
    assert backing.unbacked_objectives(view, NOW) == expected


def test_backing_of_a_large_fleet_is_decided_in_one_turn() -> None:
    """Forty regions and four hundred critical workloads of a lost region: a comparison of each with each would take
    40 x 3 x 400 x 40 steps."""
    serving = AssignmentStatus(observed_epoch=1, replicas=1, bound=1, ready=1, serving=1)
    names = [f"r{number:02}" for number in range(40)]
    regions = [with_places(name, a=8, b=8) for name in names]
    lost = msgspec.structs.replace(regions[0].status, health=RegionHealth(state=HealthState.LOST))
    regions[0] = with_new_revision(regions[0], status=lost)
    quota = QuotaSpec(hard={"cpu": "1000"}, recovery_allowance={"cpu": "1000", "memory": "1000Gi"})
    view = cache_of(priority(), *regions, *(budget(n, 16) for n in names), Quota(meta("quota", "acme"), quota))
    for number in range(400):
        view.put(workload(f"w{number:03}", replicas=1, recovery=RecoveryObjective(min_serving=1)))
        view.put(assignment(f"w{number:03}", names[0], replicas=1, status=serving))
    began = time.process_time()
    assert backing.unbacked_objectives(view, NOW) == {}
    assert time.process_time() - began < 5.0
