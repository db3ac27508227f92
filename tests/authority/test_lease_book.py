"""The lease book alone: epochs, expiry, pages and their room. Time is passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.authority.lease_book import LeaseBook, page_name
from holdfast.model import limits
from holdfast.model.errors import Refused
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import ObjectMeta
from holdfast.model.reasons import Reason

TTL_S = 15.0
WALL_S, MONO_S = 1_800_000_000.0, 500.0


def page(number: int, **leases: NodeLease) -> LeasePage:
    return LeasePage(ObjectMeta(name=page_name(number)), LeasePageSpec(number, leases))


def book(*pages: LeasePage) -> LeaseBook:
    made = LeaseBook(TTL_S)
    made.load(pages, WALL_S, MONO_S)
    return made


@given(age_s=st.floats(-100.0, 100.0))
def test_loaded_lease_is_live_for_its_remaining_time_and_fenced_after_a_full_grace(age_s: float) -> None:
    """A renewal that seems to lie in the future lasts no longer than a TTL."""
    loaded = book(page(0, n1=NodeLease(3, WALL_S - age_s, TTL_S)))
    left_s = min(max(0.0, (WALL_S - age_s) + TTL_S - WALL_S), TTL_S)
    for after_s in (-0.001, 0.0, 0.001):
        assert loaded.is_live("n1", MONO_S + left_s + after_s) is (after_s < 0)
        assert loaded.count_live(MONO_S + left_s + after_s) == (after_s < 0)
    assert loaded.overdue(MONO_S + loaded.grace_s) == []
    assert loaded.overdue(MONO_S + loaded.grace_s + 0.001) == ["n1"]


def test_grace_covers_the_drift_of_clocks_and_the_end_of_tasks() -> None:
    assert book().grace_s == pytest.approx(TTL_S + TTL_S * limits.CLOCK_DRIFT + limits.KILL_DURATION_MAX_S)


def test_of_two_leases_of_one_node_the_higher_epoch_counts() -> None:
    """A crash between two pages can leave a lease on both."""
    old, new = NodeLease(3, WALL_S, TTL_S), NodeLease(4, WALL_S, TTL_S)
    for first, second in ((old, new), (new, old)):
        loaded = book(page(0, n1=first), page(1, n1=second))
        assert loaded.epoch("n1") == 4 and loaded.page_for("n1") == (1 if second is new else 0)
    assert book().epoch("n1") == 0


def test_ended_lease_is_neither_live_nor_overdue() -> None:
    loaded = book(page(0, n1=NodeLease(3, WALL_S, 0.0), n2=NodeLease(1, WALL_S, TTL_S)))
    assert not loaded.is_live("n1", MONO_S) and not loaded.may_be_live("n1") and loaded.may_be_live("n2")
    assert not loaded.may_be_live("unknown") and not loaded.is_live("unknown", MONO_S)
    assert loaded.overdue(MONO_S + 1000.0) == ["n2"] and loaded.count_live(MONO_S) == 1


@given(
    epoch=st.integers(0, 6),
    former=st.none() | st.builds(NodeLease, st.integers(1, 5), st.just(WALL_S + 1.0), st.sampled_from([0.0, TTL_S])),
    floor=st.integers(0, 6),
)
def test_epoch_is_issued_once_and_only_a_live_one_is_renewed(epoch: int, former: NodeLease | None, floor: int) -> None:
    found = book().next_lease("n1", epoch, former, floor, WALL_S)
    newest = max(floor, former.epoch if former is not None else 0)
    if epoch == 0:
        assert found == NodeLease(newest + 1, WALL_S, TTL_S)
    elif former is not None and former.ttl_s and former.epoch == epoch > floor:
        assert found == NodeLease(epoch, WALL_S + 1.0, TTL_S), "a renewal never goes back in time"
    else:
        assert isinstance(found, Refused) and found.reason == Reason.NODE_FENCED
        assert found.facts["current"] == (former.epoch if former is not None else 0) and found.facts["floor"] == floor


def test_page_is_filled_before_the_next_begins() -> None:
    made = book(page(0, **{f"n{number}": NodeLease(1, WALL_S, TTL_S) for number in range(limits.LEASE_PAGE_NODES - 1)}))
    assert made.page_for("new") == 0
    made.reserve_room(0)
    assert made.page_for("new") == 1, "the last entry is reserved"
    made.recount()
    assert made.page_for("new") == 0, "nothing was written"
    made.record("new", 0, NodeLease(1, WALL_S, TTL_S), MONO_S)
    made.record("new", 0, NodeLease(2, WALL_S, TTL_S), MONO_S)
    assert made.page_for("newer") == 1 and made.epoch("new") == 2
    assert made.is_live("new", MONO_S + TTL_S - 0.001) and not made.is_live("new", MONO_S + TTL_S)
    made.reserve_room(1)
    made.forget("n0")
    made.forget("n0")
    made.forget("unknown")
    assert made.page_for("newer") == 0 and made.epoch("n0") == 0
    made.record("newer", 0, NodeLease(1, WALL_S, TTL_S), MONO_S)
    assert made.page_for("newest") == 1
