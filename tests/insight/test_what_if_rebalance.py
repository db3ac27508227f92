"""`holdfast plan --rebalance`: the moves that are due, computed by the controller's own function."""

from __future__ import annotations

from typing import Any

from tests.factories import assignment
from tests.rules.consumers import StoredCell
from tests.scheduling.test_rebalance import NOW, world

from holdfast.insight import what_if
from holdfast.insight.region_clients import RegionClient
from holdfast.model.assignment import Purpose


def planned(monkeypatch: Any, *objects: Any) -> what_if.RebalancePlan:
    monkeypatch.setattr(what_if, "now_s", lambda: NOW)
    cell: Any = StoredCell(*objects)
    return what_if.what_if_rebalanced(RegionClient(cell, "us-east"))


def test_plan_lists_moves_that_are_due(monkeypatch: Any) -> None:
    found = planned(monkeypatch, *world(3, 0))
    (move,) = found.moves
    assert (move.region, move.from_node, move.to_node, found.stopped) == ("us-east", "n-a", "n-b", "")
    assert "zone us-east-a has 3 replicas of the workload, zone us-east-b 0" in move.message
    assert planned(monkeypatch, *world(2, 1)).moves == ()


def test_plan_says_that_a_recovery_stops_moves(monkeypatch: Any) -> None:
    found = planned(monkeypatch, *world(3, 0), assignment("risk", purpose=Purpose.RECOVERY, replicas=2))
    assert found.stopped == "a recovery uses acme/risk"
