"""`holdfast explain` shows replicas pending in a full region and replicas moved out of one."""

from __future__ import annotations

from holdfast.insight.explain import spillover_lines
from holdfast.model.workload import AvoidedRegion, RegionWait, SpilloverStatus


def test_spillover_wait_and_move_have_reason_and_time() -> None:
    wait = RegionWait(region="east", reason="InsufficientCpu", since="2026-01-01T00:00:00Z")
    left = AvoidedRegion(
        region="north",
        to="west",
        replicas=2,
        reason="NoNodes",
        message="none at all",
        at="2026-01-01T00:00:00Z",
        avoid_until="2026-01-01T00:10:00Z",
    )
    waits, moved = spillover_lines(SpilloverStatus(pending=(wait,), avoided_regions=(left,)))
    assert "east" in waits and "InsufficientCpu" in waits and "60 s" in waits
    assert "2 replicas moved from north to west" in moved and "NoNodes: none at all" in moved
    assert "north is avoided until 2026-01-01T00:10:00Z" in moved
    assert spillover_lines(SpilloverStatus()) == []
