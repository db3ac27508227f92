"""When `holdfast node join` says that a node is Ready."""

from __future__ import annotations

import pytest

from holdfast.install.nodes import readiness_of

LIVE = {"state": "Live"}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, "contact unknown: no report"),
        ({"contact": {"state": "Unreachable", "reason": "LeaseExpired"}}, "contact Unreachable: LeaseExpired"),
        ({"contact": LIVE, "execution": {"sequence": 41, "reconciled": True}}, "has not reported yet"),
        ({"contact": LIVE, "execution": {"sequence": 42}}, "compares its tasks"),
        ({"contact": LIVE, "execution": {"sequence": 42, "reconciled": True}}, ""),
    ],
)
def test_report_of_an_earlier_agent_is_not_the_new_ones(status: dict[str, object], why: str) -> None:
    found = readiness_of(status, 41)
    assert why in found and bool(found) == bool(why)


def test_agent_that_runs_already_is_ready_by_any_report() -> None:
    assert not readiness_of({"contact": LIVE, "execution": {"reconciled": True}}, -1)
