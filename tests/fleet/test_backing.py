"""Promises are proven by an exact matching, against a slow and obvious search."""

from __future__ import annotations

from itertools import product

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fleet import backing
from holdfast.fleet.backing import Loss
from holdfast.fleet.fit import Group, Item, fit
from holdfast.model.assignment import AssignmentStatus
from holdfast.model.meta import Key
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, Slot
from holdfast.model.region import HeldPlaces
from holdfast.model.workload import RecoveryPromise
from making import again, assignment, meta, priority, region, view, workload

CPU = {"cpu": "500m", "memory": "1Gi"}


def with_places(name: str, *, a: int, b: int, shape=CPU):
    there = region(name)
    places = tuple(
        HeldPlaces(budget=name, zone=f"{name}-{zone}", resources=shape, kept=count)
        for zone, count in (("a", a), ("b", b))
    )
    report = msgspec.structs.replace(there.status.report, places=places)
    return again(there, status=msgspec.structs.replace(there.status, report=report))


def budget(name: str, count: int, tenants=("acme",)):
    slots = (Slot(resources=CPU, count=count),)
    return RecoveryBudget(metadata=meta(name), spec=RecoveryBudgetSpec(region=name, slots=slots, tenants=tenants))


def world(*more, allowance="8", kept=4, tenants=("acme",)):
    serving = AssignmentStatus(observed_epoch=1, replicas=3, bound=3, ready=3, serving=3)
    return view(
        priority(),
        *(with_places(name, a=kept // 2, b=kept - kept // 2) for name in ("x", "y", "z")),
        *(budget(name, kept, tenants) for name in ("x", "y", "z")),
        Quota(
            metadata=meta("quota", "acme"),
            spec=QuotaSpec(hard={"cpu": "16"}, recovery_allowance={"cpu": allowance, "memory": "64Gi"}),
        ),
        workload(replicas=6, recovery=RecoveryPromise(min_serving=4)),
        assignment(where="x", status=serving),
        assignment(where="y", status=serving),
        *more,
    )


def test_enough_places_back_the_promise():
    assert backing.unbacked(world()) == {}
    (write,) = backing.decide(backing.PROMISES, world(), 1.0).writes
    assert write.blocks["backing"].backed


def test_the_bottleneck_is_named():
    short = backing.unbacked(world(kept=0))
    assert "0 of 1 recovery places" in short[Key("acme", "api")]
    short = backing.unbacked(world(allowance="100m"))
    assert "allowance of acme is short of cpu" in short[Key("acme", "api")]
    short = backing.unbacked(world(tenants=("other",)))
    assert "0 of 1 recovery places that suit it" in short[Key("acme", "api")]


def test_losing_a_zone_loses_its_places_too():
    seen = backing.foresee(Loss("z", "z-a"), world(), world().list(RecoveryBudget))
    assert [
        g.count for g in backing.places_left(world().list(backing.Region)[2], world().list(RecoveryBudget), seen.loss)
    ] == [2]


shapes = st.fixed_dictionaries({"cpu": st.integers(1, 3), "memory": st.integers(1, 3)})
groups = st.lists(
    st.builds(
        Group,
        region=st.sampled_from(["a", "b"]),
        shape=shapes,
        tenants=st.sampled_from([(), ("s",), ("t",)]),
        count=st.integers(0, 3),
    ),
    max_size=4,
)


@st.composite
def items(draw):
    found = []
    for number in range(draw(st.integers(0, 4))):
        options = tuple((r, draw(st.integers(1, 3))) for r in draw(st.sampled_from([("a",), ("b",), ("a", "b"), ()])))
        found.append(Item(draw(st.sampled_from(["s", "t"])), f"w{number}", draw(shapes), options))
    return found


def possible(chosen, places):
    """Every replica in a place of its own, tried one by one."""
    units = [(item, region) for item, region, count in chosen for _ in range(count)]

    def place(at, left):
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
def test_the_answer_is_exact(wanted, places):
    plenty = {tenant: {"cpu": 10**6, "memory": 10**6} for tenant in ("s", "t")}
    found = fit(wanted, places, plenty)
    assert possible(found.chosen, places)
    every = [[(item, region, count) for region, count in item.options] for item in wanted]
    whole = all(every) and any(possible(choice, places) for choice in product(*every))
    if not wanted:
        whole = True
    assert (not found.short) == whole
