"""A grant lease is measured on the monotonic clock: wall-clock steps neither lengthen nor shorten it."""

from __future__ import annotations

import pytest

from holdfast.authority.grant_leases import GrantLeases
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.grant_limit import spending_limit
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota import GrantClass
from holdfast.model.times import micro_text

NOW_S = 1_800_000_000.0
LEASE_S = 120.0
HOUR_S = 3600.0


def copy_contacted_at(at_s: float) -> GrantCopy:
    spec = GrantCopySpec(
        grant_class=GrantClass.NORMAL,
        limit={"cpu": "4"},
        epoch=1,
        last_contact_at=micro_text(at_s),
        lease_expires_at=micro_text(at_s + LEASE_S),
    )
    return GrantCopy(metadata=ObjectMeta(name="normal", namespace="acme"), spec=spec)


class Region:
    """An authority's monotonic time, and a wall clock that steps."""

    def __init__(self) -> None:
        self.leases = GrantLeases()
        self.monotonic_s = 50.0
        self.wall_s = NOW_S
        self.own_s = NOW_S

    def advance(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds
        self.own_s = max(self.own_s + seconds, self.wall_s)

    def step_wall_clock(self, seconds: float) -> None:
        self.wall_s += seconds
        self.own_s = max(self.own_s, self.wall_s)

    def observe_copy(self, copy: GrantCopy) -> None:
        self.leases.observe([copy], self.wall_s, self.monotonic_s)

    def is_expired(self, copy: GrantCopy) -> bool:
        age = lambda c: self.leases.age_s(c, self.wall_s, self.monotonic_s)  # noqa: E731
        return spending_limit([copy], GrantClass.NORMAL, self.own_s, age_s=age).all_expired


@pytest.mark.parametrize("step_s", [-HOUR_S, -100.0, 0.0, 100.0, HOUR_S])
def test_wall_clock_step_after_renewal_keeps_grant_lease_length(step_s: float) -> None:
    region = Region()
    copy = copy_contacted_at(region.wall_s)
    region.observe_copy(copy)
    region.advance(60)
    region.step_wall_clock(step_s)
    region.advance(59)
    assert not region.is_expired(copy)
    region.advance(2)
    assert region.is_expired(copy)


@pytest.mark.parametrize("step_s", [-HOUR_S, -100.0, 100.0, HOUR_S])
def test_grant_renewal_after_wall_clock_step_counts_from_new_time(step_s: float) -> None:
    region = Region()
    region.observe_copy(copy_contacted_at(region.wall_s))
    region.step_wall_clock(step_s)
    renewed = copy_contacted_at(region.wall_s)
    region.observe_copy(renewed)
    assert not region.is_expired(renewed)
    region.advance(LEASE_S + 1)
    assert region.is_expired(renewed)


def test_wall_clock_corrected_back_does_not_end_grant_lease() -> None:
    region = Region()
    region.step_wall_clock(HOUR_S)
    region.observe_copy(copy_contacted_at(region.wall_s))
    region.step_wall_clock(-HOUR_S)
    region.advance(10)
    renewed = copy_contacted_at(region.wall_s)
    region.observe_copy(renewed)
    assert region.own_s > region.wall_s + 3000 and not region.is_expired(renewed)


def test_grant_renewal_observed_late_keeps_its_age() -> None:
    region = Region()
    copy = copy_contacted_at(region.wall_s - 100)
    region.observe_copy(copy)
    region.advance(19)
    assert not region.is_expired(copy)
    region.advance(2)
    assert region.is_expired(copy)


def test_deleted_grant_copy_is_forgotten() -> None:
    region = Region()
    copy = copy_contacted_at(region.wall_s)
    region.observe_copy(copy)
    region.leases.observe([], region.wall_s, region.monotonic_s)
    region.step_wall_clock(HOUR_S)
    assert region.is_expired(copy), "not observed any more, so the wall clock counts"
