"""`holdfast explain` says who waits in a full region, and what has moved on from one."""

from __future__ import annotations

from holdfast.cli.commands.explain import moves_told
from holdfast.model.workload import LeftRegion, MovesBlock, RegionWait


def test_a_wait_and_a_move_are_told_with_their_reason_and_their_time():
    wait = RegionWait(region="east", reason="InsufficientCpu", since="2026-01-01T00:00:00Z")
    left = LeftRegion(
        region="north", to="west", count=2, reason="NoNodes", message="none at all", at="2026-01-01T00:00:00Z",
        until="2026-01-01T00:10:00Z",
    )  # fmt: skip
    waits, moved = moves_told(MovesBlock(waits=(wait,), left=(left,)))
    assert "east" in waits and "InsufficientCpu" in waits and "60 s" in waits
    assert "2 replicas moved from north to west" in moved and "NoNodes: none at all" in moved
    assert "north is avoided until 2026-01-01T00:10:00Z" in moved
    assert moves_told(MovesBlock()) == []
