"""The fairness record of a recovery as tables: who borrowed how much of a region, since when and until when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import cache_of, region, workload

from holdfast.fleet.recovery.borrowed_shares import all_returned, borrowed_shares
from holdfast.model.meta import Object
from holdfast.model.recovery import BorrowedShare, WorkloadProgress
from holdfast.model.region import Region, RegionReport
from holdfast.model.times import micro_text

replace = msgspec.structs.replace

NOW_S = 2_000_000_000.0
NOW, EARLIER = micro_text(NOW_S), micro_text(NOW_S - 60)


def row(name: str = "api", *, tenant: str = "acme", target: str = "west", replicas: int = 2) -> WorkloadProgress:
    """The progress of a workload whose recovery replicas request 500m and 1Gi each."""
    return WorkloadProgress(tenant=tenant, workload=name, target=target, recovery_replicas=replicas)


def share(replicas: int = 2, *, tenant: str = "acme", region: str = "west", returned_at: str = "") -> BorrowedShare:
    return BorrowedShare(
        tenant, region, replicas, peak={"cpu": "7"}, percent_of_region=7.0, since=EARLIER, returned_at=returned_at
    )


def record(
    *rows: WorkloadProgress, old: tuple[BorrowedShare, ...] = (), items: tuple[Object, ...] = ()
) -> list[tuple[Any, ...]]:
    """Each share as (tenant, region, replicas, resources, percent, since, returned)."""
    view = cache_of(workload(), workload("db"), workload("api", "beta"), *items)
    return [msgspec.structs.astuple(found) for found in borrowed_shares(old, rows, view, NOW_S)]


def test_first_recovery_replica_opens_the_record() -> None:
    assert record(row(replicas=2), items=(region("west"),)) == [
        ("acme", "west", 2, {"cpu": "1", "memory": "2Gi"}, 6.25, NOW, "")
    ]


def test_workloads_of_a_tenant_in_one_region_are_summed_and_others_kept_apart() -> None:
    rows = (
        row(replicas=2),
        row("db", replicas=1),
        row(tenant="beta", replicas=1),
        row("db", target="east", replicas=3),
    )
    found = [(found[0], found[1], found[2], found[3]) for found in record(*rows)]
    assert found == [
        ("acme", "east", 3, {"cpu": "1500m", "memory": "3Gi"}),
        ("acme", "west", 3, {"cpu": "1500m", "memory": "3Gi"}),
        ("beta", "west", 1, {"cpu": "500m", "memory": "1Gi"}),
    ]


@pytest.mark.parametrize("other", [row(target=""), row(replicas=0)], ids=["without target", "without replicas"])
def test_workload_that_borrows_nothing_has_no_record(other: WorkloadProgress) -> None:
    assert record(other) == []


def test_resources_of_a_deleted_workload_are_not_counted() -> None:
    """Its Assignment may outlive it until its replicas have stopped."""
    found = record(row("deleted", replicas=1), row(replicas=1), items=(region("west"),))
    assert found == [("acme", "west", 2, {"cpu": "500m", "memory": "1Gi"}, 3.12, NOW, "")]


@pytest.mark.parametrize("replicas", [1, 2])
def test_record_keeps_its_peak_while_no_more_is_borrowed(replicas: int) -> None:
    assert record(row(replicas=replicas), old=(share(2),)) == [("acme", "west", 2, {"cpu": "7"}, 7.0, EARLIER, "")]


def test_higher_peak_replaces_the_amounts_and_keeps_the_beginning() -> None:
    found = record(row(replicas=3), old=(share(2),), items=(region("west"),))
    assert found == [("acme", "west", 3, {"cpu": "1500m", "memory": "3Gi"}, 9.38, EARLIER, "")]


@pytest.mark.parametrize(
    ("rows", "returned_at", "expected"),
    [((), "", NOW), ((), EARLIER, EARLIER), ((row(),), "", ""), ((row(),), EARLIER, "")],
    ids=["returned now", "returned before", "in use", "borrowed again"],
)
def test_return_is_recorded_once_and_undone_by_the_next_replica(
    rows: tuple[WorkloadProgress, ...], returned_at: str, expected: str
) -> None:
    assert record(*rows, old=(share(2, returned_at=returned_at),)) == [
        ("acme", "west", 2, {"cpu": "7"}, 7.0, EARLIER, expected)
    ]


def reporting(capacity: dict[str, str] | None) -> Region:
    """A region that reports this capacity, or nothing yet."""
    known = region("west")
    report = None if capacity is None else replace(known.status.report or RegionReport(), capacity=capacity)
    return replace(known, status=replace(known.status, report=report))


@pytest.mark.parametrize(
    ("capacity", "percent"),
    [
        (None, 0.0),
        ({}, 0.0),
        ({"cpu": "0", "memory": "0"}, 0.0),
        ({"cpu": "0", "memory": "16Gi"}, 12.5),
        ({"cpu": "4", "memory": "16Gi"}, 25.0),
        ({"cpu": "16", "memory": "4Gi"}, 50.0),
    ],
)
def test_percent_is_the_largest_share_of_a_reported_resource(capacity: dict[str, str] | None, percent: float) -> None:
    ((_, _, _, _, found, _, _),) = record(row(replicas=2), items=(reporting(capacity),))
    assert found == percent


def test_share_in_an_unknown_region_has_no_percent() -> None:
    ((_, _, _, _, found, _, _),) = record(row(replicas=2))
    assert found == 0.0


def test_end_of_the_recovery_returns_what_was_not_returned_before() -> None:
    shares = (share(returned_at=EARLIER), share(tenant="beta"))
    assert [s.returned_at for s in all_returned(shares, NOW_S)] == [EARLIER, NOW]
