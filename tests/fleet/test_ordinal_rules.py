"""Division of exclusive ordinals as tables: who keeps, who gets, who waits, and when a tenure has ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import present
from tests.factories import assignment

from holdfast.fleet.ordinals import (
    TENURE_STEP_S,
    TENURE_WAIT_S,
    advance_tenure_wait,
    assign_ordinals,
    has_released,
    has_tenure_expired,
    with_withdrawal,
)
from holdfast.model import limits
from holdfast.model.assignment import Assignment, AssignmentStatus, Withdrawal
from holdfast.model.times import micro_text
from holdfast.model.workload import ExclusiveScope, Exclusivity

replace = msgspec.structs.replace
GLOBAL = Exclusivity(scope=ExclusiveScope.GLOBAL)
NOW_S = 1_790_000_000.0


def held(
    where: str, ordinals: tuple[int, ...], *, runs: tuple[int, ...] | None = None, observed: int = 1, **spec: Any
) -> Assignment:
    """An Assignment of epoch 1 with these ordinals. The region reports those that it runs."""
    there = ordinals if runs is None else runs
    status = AssignmentStatus(observed_epoch=observed, replicas=len(there), ordinals=there)
    made = {"ordinals": ordinals, "replicas": len(ordinals), "epoch": 1, "exclusive": Exclusivity(), **spec}
    return assignment("one", where, status=status, **made)


EXPIRED: dict[str, Any] = {"exclusive": GLOBAL, "withdrawal": Withdrawal(epoch=1, elapsed_seconds=TENURE_WAIT_S)}


@pytest.mark.parametrize(
    ("shares", "stored", "expected"),
    [
        pytest.param({"a": 2, "b": 1}, [], {"a": (0, 1), "b": (2,)}, id="new work"),
        pytest.param({"a": 2}, [held("a", (0, 1))], {"a": (0, 1)}, id="unchanged"),
        pytest.param({"a": 1}, [held("a", (0, 1))], {"a": (0,)}, id="scaled down"),
        pytest.param({"a": 3}, [held("a", (0, 2))], {"a": (0, 1, 2)}, id="a gap is filled"),
        pytest.param({"a": 2}, [held("a", (0,), runs=(0, 4))], {"a": (0, 4)}, id="one that still runs here comes back"),
        pytest.param({"a": 2}, [held("a", (0,), runs=(0, 4, 5))], {"a": (0, 4)}, id="no more than the share"),
        pytest.param({"a": 1, "b": 1}, [held("a", (0, 1))], {"a": (0,), "b": ()}, id="withdrawn now: b waits"),
        pytest.param({"a": 2, "b": 0}, [held("a", (0,)), held("b", (1,))], {"a": (0,), "b": ()}, id="b must release"),
        pytest.param(
            {"a": 2, "b": 0}, [held("a", (0,)), held("b", (), runs=(1,))], {"a": (0,), "b": ()}, id="b still runs it"
        ),
        pytest.param(
            {"a": 2, "b": 0}, [held("a", (0,)), held("b", (), observed=0)], {"a": (0,), "b": ()}, id="b reports late"
        ),
        pytest.param(
            {"a": 2, "b": 0},
            [held("a", (0,)), held("b", (), runs=(1,), **EXPIRED)],
            {"a": (0, 1), "b": ()},
            id="the tenure of b ended",
        ),
        pytest.param({"a": 1, "b": 2}, [held("a", (0,)), held("b", (1,))], {"a": (0,), "b": (1, 2)}, id="only b grows"),
        pytest.param({"a": 3}, [held("a", (0,), runs=(0, 1))], {"a": (0, 1, 2)}, id="one that runs and a new one"),
        pytest.param({"b": 1}, [held("a", (0,))], {"b": ()}, id="a region without a share still holds its ordinal"),
        pytest.param({"a": 2}, [held("a", (0,), runs=(0, 1))], {"a": (0, 1)}, id="own release does not block itself"),
    ],
)
def test_each_ordinal_is_in_one_region(
    shares: dict[str, int], stored: list[Assignment], expected: dict[str, tuple[int, ...]]
) -> None:
    assert assign_ordinals(shares, stored) == expected


@pytest.mark.parametrize(
    ("shares", "stored", "done", "count_max", "expected"),
    [
        ({"a": 2}, [], frozenset({0}), 3, {"a": (1, 2)}),
        ({"a": 3}, [], frozenset({0}), 3, {"a": (1, 2)}),
        ({"a": 1}, [held("a", (0, 1))], frozenset({1}), 3, {"a": (1,)}),
        ({"a": 2}, [held("a", (0, 1, 2))], frozenset({2}), 3, {"a": (0, 2)}),
        ({"a": 2}, [], frozenset(), 1, {"a": (0,)}),
        ({"a": 1, "b": 1}, [], frozenset(), 3, {"a": (0,), "b": (1,)}),
    ],
)
def test_indexes_of_a_job_array_run_once(
    shares: dict[str, int],
    stored: list[Assignment],
    done: frozenset[int],
    count_max: int,
    expected: dict[str, tuple[int, ...]],
) -> None:
    assert assign_ordinals(shares, stored, done, count_max) == expected


@pytest.mark.parametrize(
    ("item", "released"),
    [
        (held("a", (0, 1)), True),
        (held("a", (0, 1), runs=(0,)), True),
        (held("a", (0,), runs=(0, 1)), False),
        (held("a", (0,), observed=0), False),
        (held("a", (0,), observed=2), True),
        (replace(held("a", (0,)), status=AssignmentStatus(observed_epoch=1, replicas=2, ordinals=(0,))), False),
    ],
)
def test_region_has_released_what_its_newest_report_does_not_list(item: Assignment, *, released: bool) -> None:
    assert has_released(item) is released


@pytest.mark.parametrize(
    ("scope", "withdrawal", "expired"),
    [
        (GLOBAL, None, False),
        (GLOBAL, Withdrawal(1, TENURE_WAIT_S - 0.001), False),
        (GLOBAL, Withdrawal(1, TENURE_WAIT_S), True),
        (GLOBAL, Withdrawal(1, TENURE_WAIT_S + 1.0), True),
        (Exclusivity(), Withdrawal(1, TENURE_WAIT_S), False),
    ],
)
def test_tenure_has_expired_after_the_whole_wait(
    scope: Exclusivity, withdrawal: Withdrawal | None, *, expired: bool
) -> None:
    assert has_tenure_expired(held("a", (0,), exclusive=scope, withdrawal=withdrawal)) is expired


def test_tenure_wait_covers_drift_of_both_clocks_the_kill_and_a_jump() -> None:
    drift_s = 2 * limits.CLOCK_DRIFT * limits.TENURE_S
    assert pytest.approx(limits.TENURE_S + drift_s + limits.KILL_DURATION_MAX_S + limits.TENURE_STEP_MAX_S) == (
        TENURE_WAIT_S
    )


@pytest.mark.parametrize(
    ("scope", "before", "after", "expected"),
    [
        (GLOBAL, (0, 1), (0,), Withdrawal(epoch=2)),
        (GLOBAL, (0, 1), (0, 2), Withdrawal(epoch=2)),
        (GLOBAL, (0,), (0, 1), Withdrawal(epoch=1, elapsed_seconds=3.0)),
        (GLOBAL, (0,), (0,), Withdrawal(epoch=1, elapsed_seconds=3.0)),
        (Exclusivity(), (0, 1), (0,), None),
    ],
)
def test_withdrawn_ordinal_restarts_the_wait(
    scope: Exclusivity, before: tuple[int, ...], after: tuple[int, ...], expected: Withdrawal | None
) -> None:
    known = Withdrawal(epoch=1, elapsed_seconds=3.0)
    stored = held("a", before, exclusive=scope, withdrawal=known).spec
    made = with_withdrawal(held("a", after, exclusive=scope).spec, stored)
    assert made.withdrawal == expected


def waiting(elapsed_s: float, stepped_ago_s: float | None, *, released: bool = False) -> Assignment:
    at = micro_text(NOW_S - stepped_ago_s) if stepped_ago_s is not None else ""
    withdrawal = Withdrawal(epoch=1, elapsed_seconds=elapsed_s, last_step_at=at)
    return held("a", (0,), runs=(0,) if released else (0, 1), exclusive=GLOBAL, withdrawal=withdrawal, epoch=1)


@pytest.mark.parametrize(
    ("stepped_ago_s", "elapsed_s"),
    [
        (None, 10.0),
        (TENURE_STEP_S, 10.0 + TENURE_STEP_S),
        (TENURE_STEP_S + 0.5, 10.5 + TENURE_STEP_S),
        (3600.0, 10.0 + limits.TENURE_STEP_MAX_S),
        (-30.0, 10.0),
    ],
    ids=["first step", "one step", "a late step", "a jump forward", "a jump back"],
)
def test_tenure_wait_advances_in_durable_steps(stepped_ago_s: float | None, elapsed_s: float) -> None:
    made = present(advance_tenure_wait(waiting(10.0, stepped_ago_s), NOW_S))
    assert made.spec.withdrawal == Withdrawal(epoch=1, elapsed_seconds=elapsed_s, last_step_at=micro_text(NOW_S))
    assert made.spec.epoch == 2


@pytest.mark.parametrize(
    "item",
    [
        held("a", (0,), runs=(0, 1), exclusive=GLOBAL),
        waiting(10.0, None, released=True),
        waiting(TENURE_WAIT_S, 30.0),
        waiting(10.0, 0.0),
        waiting(10.0, TENURE_STEP_S - 0.001),
    ],
    ids=["nothing withdrawn", "released", "the wait is over", "just stepped", "before the next step"],
)
def test_tenure_wait_takes_no_step(item: Assignment) -> None:
    assert advance_tenure_wait(item, NOW_S) is None
