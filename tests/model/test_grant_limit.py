"""The spending limit of a tenant as a table: which GrantCopies count, and when their lease has ended."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factories import meta

from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.grant_limit import SpendingLimit, spending_limit
from holdfast.model.quota import GrantClass
from holdfast.model.times import micro_text

NOW_S = 1_790_000_000.0
NORMAL, RECOVERY, EMERGENCY = GrantClass.NORMAL, GrantClass.RECOVERY, GrantClass.EMERGENCY


def copy(grant_class: GrantClass = NORMAL, cpu: str = "4", *, left_s: float | None = 60.0, **more: Any) -> GrantCopy:
    """A copy whose lease ends in `left_s`; its last contact was 30 s ago."""
    deleted = {"deletion_timestamp": "2026-01-01T00:00:10Z"} if more.pop("terminating", False) else {}
    times = {"last_contact_at": micro_text(NOW_S - 30.0)}
    if left_s is not None:
        times["lease_expires_at"] = micro_text(NOW_S + left_s)
    spec = GrantCopySpec(grant_class=grant_class, limit={"cpu": cpu}, **{**times, **more})
    return GrantCopy(meta(grant_class.value.lower(), "acme", **deleted), spec)


def cpus(limit: SpendingLimit) -> tuple[int, int, int, int]:
    """Whole CPUs: spendable, with expired grants, provisional, total."""
    parts = (limit.spendable, limit.with_expired, limit.provisional, limit.total)
    found = [part.get("cpu", 0) // 1000 for part in parts]
    return found[0], found[1], found[2], found[3]


@pytest.mark.parametrize(
    ("copies", "spent_as", "expected"),
    [
        pytest.param([], NORMAL, (0, 0, 0, 0), id="no grant"),
        pytest.param([copy()], NORMAL, (4, 4, 0, 4), id="a live grant"),
        pytest.param([copy(left_s=None)], NORMAL, (4, 4, 0, 4), id="without a lease"),
        pytest.param([copy(left_s=0.0)], NORMAL, (0, 4, 0, 4), id="the lease ends now"),
        pytest.param([copy(left_s=0.5)], NORMAL, (4, 4, 0, 4), id="the lease ends soon"),
        pytest.param([copy(), copy(EMERGENCY, "2")], NORMAL, (6, 6, 0, 6), id="emergency quota adds"),
        pytest.param([copy(), copy(RECOVERY, "2")], NORMAL, (4, 4, 0, 4), id="recovery quota does not"),
        pytest.param([copy(), copy(RECOVERY, "2")], RECOVERY, (2, 2, 0, 2), id="recovery quota alone"),
        pytest.param([copy(RECOVERY, "2"), copy(EMERGENCY, "1")], RECOVERY, (2, 2, 0, 2), id="no emergency there"),
        pytest.param([copy(terminating=True), copy(EMERGENCY, "1")], NORMAL, (1, 1, 0, 1), id="a deleted copy"),
        pytest.param([copy(provisional={"cpu": "1"})], NORMAL, (3, 3, 1, 4), id="a provisional share"),
        pytest.param([copy(provisional={"cpu": "9"})], NORMAL, (0, 0, 9, 4), id="a share above the limit"),
        pytest.param(
            [copy(), copy(EMERGENCY, "2", provisional={"cpu": "1"})], NORMAL, (6, 6, 0, 6), id="not its share"
        ),
        pytest.param([copy(left_s=-1.0), copy(EMERGENCY, "2")], NORMAL, (2, 6, 0, 6), id="one of two expired"),
    ],
)
def test_limit_is_the_sum_of_the_live_grants_of_the_class(
    copies: list[GrantCopy], spent_as: GrantClass, expected: tuple[int, int, int, int]
) -> None:
    assert cpus(spending_limit(copies, spent_as, NOW_S)) == expected


def test_emergency_grant_without_an_override_is_expired() -> None:
    copies = [copy(), copy(EMERGENCY, "2")]
    limit = spending_limit(copies, NORMAL, NOW_S, emergency=False)
    assert (cpus(limit), limit.copies, limit.expired) == ((4, 6, 0, 6), ("normal", "emergency"), ("emergency",))
    assert not limit.all_expired
    assert spending_limit([copy()], NORMAL, NOW_S, emergency=False).expired == ()


@pytest.mark.parametrize(("left_s", "all_expired"), [(60.0, False), (-1.0, True)])
def test_all_grants_have_expired_if_each_has(left_s: float, *, all_expired: bool) -> None:
    assert spending_limit([copy(left_s=left_s)], NORMAL, NOW_S).all_expired is all_expired


@pytest.mark.parametrize(
    ("age_s", "spendable", "contact_s"),
    [(None, 4, NOW_S - 30.0), (30.0, 4, NOW_S - 30.0), (89.0, 4, NOW_S - 89.0), (91.0, 0, NOW_S - 91.0)],
)
def test_measured_age_of_the_contact_shifts_the_lease(age_s: float | None, spendable: int, contact_s: float) -> None:
    """By the wall clock the lease lasts 60 s more, and the last contact was 30 s ago."""
    limit = spending_limit([copy()], NORMAL, NOW_S, age_s=None if age_s is None else lambda _: age_s)
    assert (cpus(limit)[0], limit.last_contact_s) == (spendable, contact_s)


def test_last_contact_is_that_of_the_class_and_zero_without_one() -> None:
    late = copy(EMERGENCY, last_contact_at=micro_text(NOW_S - 5.0))
    assert spending_limit([copy(), late], NORMAL, NOW_S).last_contact_s == NOW_S - 30.0
    unknown = copy(last_contact_at="")
    assert spending_limit([unknown], NORMAL, NOW_S, age_s=lambda _: 500.0).last_contact_s == 0.0
    assert cpus(spending_limit([unknown], NORMAL, NOW_S, age_s=lambda _: 500.0))[0] == 4
