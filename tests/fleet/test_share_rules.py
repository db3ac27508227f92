"""Disruption shares, protected shares and the growth of limits as tables."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import assignment, workload

from holdfast.fleet.disruption_shares import current_share, disruption_shares, max_active_share, with_share_peak
from holdfast.fleet.grant_demand import QuotaUnit, RegionAmounts
from holdfast.fleet.protected_shares import protected_shares
from holdfast.fleet.quota_division import covered_demand, divide_quota, whole_demand
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.quantity import add
from holdfast.model.workload import Disruption, Workload

replace = msgspec.structs.replace


def budget(size: int) -> Workload:
    return workload(replicas=9, disruption=Disruption(max_unavailable=size))


def held(
    where: str, share: int | None, *, whole: int = 9, peak: int = 0, behind: bool = False, **more: Any
) -> Assignment:
    """A region with three serving replicas that has acknowledged its share, unless it is `behind`."""
    suspended, purpose = more.pop("suspended", False), more.pop("purpose", Purpose.NORMAL)
    status = AssignmentStatus(**{"observed_epoch": 0 if behind else 1, "replicas": 3, "serving": 3, **more})
    return assignment(
        where=where,
        disruption_share=share,
        disruption=Disruption(max_unavailable=whole),
        disruption_share_peak=peak,
        suspended=suspended,
        purpose=purpose,
        epoch=1,
        status=status,
    )


@pytest.mark.parametrize(
    ("share", "whole", "peak", "behind", "current", "active"),
    [
        (None, 4, 0, False, 4, 4),
        (2, 4, 0, False, 2, 2),
        (6, 4, 0, False, 4, 4),
        (1, 4, 3, False, 1, 1),
        (1, 4, 3, True, 1, 3),
        (3, 4, 1, True, 3, 3),
    ],
)
def test_share_counts_with_its_peak_until_it_is_acknowledged(
    *, share: int | None, whole: int, peak: int, behind: bool, current: int, active: int
) -> None:
    item = held("a", share, whole=whole, peak=peak, behind=behind)
    assert (current_share(item), max_active_share(item)) == (current, active)


@pytest.mark.parametrize(("next_share", "peak"), [(0, 2), (1, 2), (2, 0), (3, 0)])
def test_lowered_share_has_the_active_one_as_peak(next_share: int, peak: int) -> None:
    stored = held("a", 2)
    made = with_share_peak(replace(stored.spec, disruption_share=next_share), stored)
    assert made.disruption_share_peak == peak


@pytest.mark.parametrize(
    ("size", "regions", "stored", "expected"),
    [
        pytest.param(4, "ab", [], {"a": 2, "b": 2}, id="even shares"),
        pytest.param(5, "ab", [], {"a": 2, "b": 2}, id="no remainder while nothing is evicted"),
        pytest.param(
            5, "ab", [held("a", 2), held("b", 2, pending_evictions=1)], {"a": 2, "b": 3}, id="remainder to evictions"
        ),
        pytest.param(
            5,
            "ab",
            [held("a", 2, pending_evictions=1), held("b", 2, evictions_blocked=1)],
            {"a": 2, "b": 3},
            id="blocked evictions first",
        ),
        pytest.param(
            5,
            "ab",
            [held("a", 2, pending_evictions=1), held("b", 3, pending_evictions=1)],
            {"a": 2, "b": 3},
            id="the larger share stays",
        ),
        pytest.param(
            4,
            "abc",
            [held("a", 4, whole=4), held("b", 0), held("c", 0)],
            {"a": 1, "b": 0, "c": 0},
            id="a must give first",
        ),
        pytest.param(
            4, "ab", [held("a", 2), held("b", 0, serving=1)], {"a": 2, "b": 0}, id="unavailable replicas use the budget"
        ),
        pytest.param(
            4,
            "ab",
            [held("a", 2), held("b", 0, serving=1, awaiting_quota=2)],
            {"a": 2, "b": 2},
            id="waiting for quota does not",
        ),
        pytest.param(
            4, "ab", [held("a", 1), held("b", 2, suspended=True)], {"a": 2, "b": 2}, id="a lost region keeps its share"
        ),
        pytest.param(
            1, "ab", [held("a", 0), held("b", 2, suspended=True)], {"a": 0, "b": 1}, id="at most the lowered budget"
        ),
        pytest.param(
            7,
            "abc",
            [held("a", 1), held("b", 2, suspended=True), held("c", 1)],
            {"a": 2, "b": 2, "c": 2},
            id="the others divide the rest",
        ),
        pytest.param(
            4,
            "ab",
            [held("a", 1, pending_evictions=1), held("b", 3, pending_evictions=1)],
            {"a": 1, "b": 2},
            id="no more than the even share without a remainder",
        ),
        pytest.param(4, "a", [held("a", 2), held("b", 2)], {"a": 2, "b": 0}, id="b is not wanted any more"),
        pytest.param(
            4,
            "ab",
            [held("a", 1), held("a", 3, purpose=Purpose.RECOVERY), held("b", 1)],
            {"a": 2, "b": 1},
            id="the larger of both purposes counts",
        ),
    ],
)
def test_shares_never_exceed_the_budget(
    size: int, regions: str, stored: list[Assignment], expected: dict[str, int]
) -> None:
    assert disruption_shares(budget(size), regions, stored) == expected


@pytest.mark.parametrize(
    ("protected", "wanted", "expected"),
    [
        ({"cpu": 10}, {"a": {"cpu": 3}}, {"a": {"cpu": 6}, "b": {"cpu": 3}}),
        ({"cpu": 10}, {"a": {"cpu": 6}, "b": {"cpu": 4}}, {"a": {"cpu": 6}, "b": {"cpu": 4}}),
        ({"cpu": 10}, {"a": {"cpu": 15}, "b": {"cpu": 5}}, {"a": {"cpu": 7}, "b": {"cpu": 2}}),
        ({"cpu": 1}, {"a": {"cpu": 1}}, {"a": {"cpu": 1}, "b": {}}),
        ({}, {"a": {"cpu": 1}}, {"a": {}, "b": {}}),
    ],
    ids=["demand and half of the rest", "exactly the demand", "in proportion", "nothing left", "nothing protected"],
)
def test_protected_part_follows_demand(
    protected: dict[str, int], wanted: RegionAmounts, expected: RegionAmounts
) -> None:
    assert protected_shares(protected, wanted, ["a", "b"]) == expected
    assert protected_shares(protected, wanted, []) == {}


def cpus(amounts: dict[str, int]) -> RegionAmounts:
    return {region: {"cpu": amount} if amount else {} for region, amount in amounts.items()}


@pytest.mark.parametrize(
    ("total", "wanted", "current", "enforced", "expected"),
    [
        pytest.param(10, {"a": 4, "b": 4}, {}, {}, {"a": 4, "b": 4}, id="enough for both"),
        pytest.param(10, {"a": 8, "b": 4}, {}, {}, {"a": 8, "b": 2}, id="the rest goes to b"),
        pytest.param(10, {"a": 1, "b": 4}, {"a": 6}, {"a": 6}, {"a": 6, "b": 4}, id="unneeded quota stays"),
        pytest.param(10, {"a": 1, "b": 6}, {"a": 6}, {"a": 6}, {"a": 4, "b": 4}, id="lowered by what is short"),
        pytest.param(10, {"a": 1, "b": 6}, {"a": 4}, {"a": 6}, {"a": 2, "b": 4}, id="counted until acknowledged"),
        pytest.param(
            10, {"a": 6, "b": 0}, {"a": 2}, {"a": 6}, {"a": 6, "b": 0}, id="what it enforces is granted again"
        ),
        pytest.param(8, {"a": 6, "b": 5}, {"a": 2, "b": 5}, {"a": 6, "b": 5}, {"a": 3, "b": 5}, id="not the excess"),
        pytest.param(4, {"a": 4, "b": 0}, {"a": 4, "b": 2}, {"a": 4, "b": 2}, {"a": 4, "b": 0}, id="a lowered quota"),
    ],
)
def test_limits_move_to_demand_within_the_quota(
    total: int, wanted: dict[str, int], current: dict[str, int], enforced: dict[str, int], expected: dict[str, int]
) -> None:
    found = divide_quota({"cpu": total}, {}, cpus(wanted), cpus(current), cpus(enforced))
    for region, limit in found.items():
        others = sum(max(current.get(r, 0), enforced.get(r, 0)) for r in found if r != region)
        before = current.get(region, 0)
        assert limit.get("cpu", 0) <= max(before, total - others), "a raise needs quota that no other region enforces"
    assert found == cpus(expected)


@pytest.mark.parametrize(
    ("total", "before", "need", "limit"),
    [
        (640, 0, 5, 10),
        (640, 0, 9, 18),
        (640, 0, 10, 10),
        (640, 4, 5, 10),
        (640, 5, 5, 5),
        (64, 0, 1, 1),
        (320, 0, 4, 8),
    ],
)
def test_raised_limit_grows_while_the_quota_is_ample(total: int, before: int, need: int, limit: int) -> None:
    """Two regions. Growth is at most as much again, and a 32nd of half of the free quota."""
    current = cpus({"a": before, "b": 0})
    found = divide_quota({"cpu": total}, {}, cpus({"a": need, "b": 0}), current, current, grows=True)
    assert found == cpus({"a": limit, "b": 0})
    plain = divide_quota({"cpu": total}, {}, cpus({"a": need, "b": 0}), current, current)
    assert plain == cpus({"a": max(need, before), "b": 0})


@pytest.mark.parametrize(("cap", "limit"), [(3, 3), (5, 5), (7, 6)])
def test_region_cap_bounds_need_and_floor(cap: int, limit: int) -> None:
    floor = cpus({"a": 6, "b": 0})
    found = divide_quota({"cpu": 20}, cpus({"a": cap}), cpus({"a": 5, "b": 0}), {}, {}, floors=(floor,))
    assert found == cpus({"a": limit, "b": 0})


def unit(region: str = "a", cpu: int = 2, **more: Any) -> QuotaUnit:
    return QuotaUnit(Purpose.NORMAL, region, (("cpu", cpu),), **more)


@pytest.mark.parametrize(
    ("total", "units", "used", "need", "lacking"),
    [
        pytest.param(10, {unit(): 3}, {}, {"a": 6}, 0, id="all"),
        pytest.param(5, {unit(): 3}, {}, {"a": 4}, 1, id="whole replicas"),
        pytest.param(6, {unit(): 3}, {"a": 4}, {"a": 6}, 0, id="usage is part of the demand"),
        pytest.param(6, {unit(): 1}, {"a": 4}, {"a": 4}, 0, id="usage beyond the demand"),
        pytest.param(4, {unit("a"): 1, unit("b", priority=5): 2}, {}, {"b": 4}, 1, id="priority first"),
        pytest.param(4, {unit("a", surge=True): 1, unit("b"): 2}, {}, {"b": 4}, 1, id="surge last"),
        pytest.param(4, {unit("a"): 2, unit("b", bound=True): 2}, {}, {"b": 4}, 2, id="bound first"),
        pytest.param(5, {unit("a", 4): 2, unit("b", 1): 1}, {}, {"a": 4, "b": 1}, 1, id="a smaller one behind"),
        pytest.param(5, {unit(members=2, optional=1): 1}, {}, {"a": 4}, 1, id="a gang without its optional member"),
        pytest.param(6, {unit(members=2, optional=1): 1}, {}, {"a": 6}, 0, id="a gang with its optional member"),
        pytest.param(3, {unit(members=2, optional=1): 1}, {}, {}, 1, id="a gang as a whole"),
    ],
)
def test_quota_covers_whole_replicas_in_order(
    total: int, units: dict[QuotaUnit, int], used: dict[str, int], need: dict[str, int], lacking: int
) -> None:
    found = covered_demand({"cpu": total}, {}, units, cpus(used))
    assert found.need == cpus(need)
    assert sum(found.lacking.values()) == lacking


def test_unlisted_resource_unreachable_region_cap_and_missing_room_are_not_covered() -> None:
    assert covered_demand({"memory": 9}, {}, {unit(): 1}, {}).need == {}
    far = covered_demand({"cpu": 9}, {}, {unit(): 2}, cpus({"a": 3}), unreachable={"a"})
    assert far.need == cpus({"a": 3}) and not far.lacking
    for cap, need in ((3, 2), (4, 4)):
        assert covered_demand({"cpu": 9}, cpus({"a": cap}), {unit(): 2}, {}).need == cpus({"a": need})
    assert covered_demand({"cpu": 9}, cpus({"a": 2}), {unit(): 2}, cpus({"a": 4})).need == cpus({"a": 4})
    none = covered_demand({"cpu": 4}, {}, {unit("a"): 2, unit("b"): 1}, {}, room_for=lambda u, n: n * (u.region == "b"))
    assert none.need == cpus({"a": 2, "b": 2}) and sum(none.lacking.values()) == 1


AMOUNTS = st.integers(1, 4)
DEMANDED = st.dictionaries(
    st.builds(
        unit,
        st.sampled_from("abc"),
        AMOUNTS,
        priority=st.integers(0, 2),
        members=st.integers(1, 2),
        optional=st.integers(0, 1),
        bound=st.booleans(),
        surge=st.booleans(),
    ),
    st.integers(1, 3),
    max_size=5,
)
BY_REGION = st.dictionaries(st.sampled_from("abc"), st.integers(0, 12), max_size=3)


@given(st.integers(0, 60), DEMANDED, BY_REGION, BY_REGION, st.sets(st.sampled_from("abc"), max_size=1))
def test_sums_decide_as_the_replicas_do(
    total: int, units: dict[QuotaUnit, int], used: dict[str, int], caps: dict[str, int], unreachable: set[str]
) -> None:
    """The quick way exists exactly if no replica lacks quota, and then says the same."""
    wanted: RegionAmounts = {}
    for some, count in units.items():
        members = some.members + some.optional
        add(wanted.setdefault(some.region, {}), {"cpu": some.shape[0][1] * members}, times=count)
    each = covered_demand({"cpu": total}, cpus(caps), units, cpus(used), unreachable=unreachable)
    quick = whole_demand({"cpu": total}, cpus(caps), wanted, cpus(used), unreachable)
    assert quick == (None if each.lacking else each)


def test_quota_that_does_not_list_a_resource_covers_no_demand_for_it() -> None:
    assert whole_demand({"cpu": 9}, {}, {"a": {"cpu": 1, "gpu": 1}}, {}) is None
