"""When scheduled drills are due, and which fleets they start on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.drills.start_checks import FleetState, StartRefusal, judge_start
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.times import micro_text, parse_time
from holdfast.platform import drill_schedule
from holdfast.platform.drill_schedule import DrillSchedule, HandledTick, due_tick
from holdfast.platform.layout import Layout

SUNDAY = parse_time("2026-11-22T03:00:00Z")
NOW = SUNDAY


def weekly(time_zone: str = "UTC", cron: str = "0 3 * * 0", name: str = "weekly") -> DrillSchedule:
    return DrillSchedule(name, "region-loss", "us-east", cron, SUNDAY - 86400, time_zone)


def test_drill_is_due_once_at_its_time() -> None:
    assert due_tick(weekly(), None, SUNDAY - 1) is None
    assert due_tick(weekly(), None, SUNDAY + 2) == SUNDAY
    assert due_tick(weekly(), HandledTick(SUNDAY, "Started"), SUNDAY + 2) is None


def test_schedule_follows_its_time_zone() -> None:
    berlin = weekly("Europe/Berlin")
    assert due_tick(berlin, None, SUNDAY - 3601) is None
    assert due_tick(berlin, None, SUNDAY - 3599) == SUNDAY - 3600


def test_new_schedule_makes_up_for_no_earlier_time() -> None:
    assert due_tick(weekly(cron="0 3 * * 6"), None, SUNDAY) is None


def test_schedules_are_kept_by_name_and_bounded(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for number in range(drill_schedule.SCHEDULES_MAX):
        drill_schedule.add_schedule(layout, weekly(name=f"s{number}"))
    drill_schedule.add_schedule(layout, weekly(name="s0", cron="0 4 * * 0"))
    with pytest.raises(CommandError, match="limit 50"):
        drill_schedule.add_schedule(layout, weekly(name="one-more"))
    drill_schedule.remove_schedule(layout, "s1")
    kept = drill_schedule.read_schedules(layout)
    assert len(kept) == drill_schedule.SCHEDULES_MAX - 1
    assert next(entry for entry in kept if entry.name == "s0").cron == "0 4 * * 0"
    with pytest.raises(CommandError, match="not found"):
        drill_schedule.remove_schedule(layout, "s1")


@pytest.mark.parametrize("wrong", [{"cron": "61 * * * *"}, {"cron": "daily please"}, {"time_zone": "../etc/passwd"}])
def test_wrong_time_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(CommandError):
        drill_schedule.add_schedule(Layout(tmp_path), weekly(**wrong))
    assert drill_schedule.read_schedules(Layout(tmp_path)) == ()


def region(name: str, state: str = "Healthy", nodes: int = 2, live: int = 2) -> dict[str, Any]:
    report = {"nodes": nodes, "liveNodes": live}
    return {"metadata": {"name": name}, "status": {"health": {"state": state}, "report": report}}


def override(*, phase: str = "Active", left_s: float = 60.0, **spec: Any) -> dict[str, Any]:
    status = {"phase": phase, "expiresAt": micro_text(NOW + left_s)}
    given = {"kind": "AvoidRegion", "scope": {"region": "eu-west"}, **spec}
    return {"metadata": {"name": "o1"}, "spec": given, "status": status}


def fleet(**lists: Any) -> FleetState:
    return FleetState(**{"regions": [region("us-east"), region("eu-west")], **lists})


def refusal(state: FleetState) -> StartRefusal | None:
    return judge_start(state, "us-east", NOW)


def test_drill_starts_on_a_whole_fleet() -> None:
    assert refusal(fleet()) is None
    ended = [override(phase="Expired"), override(left_s=-1.0)]
    assert (
        refusal(fleet(overrides=ended, recoveries=[{"metadata": {"name": "r"}, "status": {"phase": "Closed"}}])) is None
    )


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (fleet(regions=[region("us-east"), region("eu-west", "Suspect")]), "region eu-west is Suspect"),
        (fleet(regions=[region("us-east", live=1)]), "1 live nodes of 2"),
        (fleet(regions=[region("eu-west")]), "region us-east does not exist"),
        (fleet(overrides=[override()]), "override o1 (AvoidRegion) is in force"),
        (fleet(recoveries=[{"metadata": {"name": "r1"}, "status": {"phase": "FailingBack"}}]), "r1 is not closed"),
        (fleet(critical=[{"metadata": {"namespace": "shop", "name": "pay"}, "status": {}}]), "shop/pay"),
    ],
)
def test_drill_does_not_start_on_a_fleet_that_is_not_whole(state: FleetState, reason: str) -> None:
    found = refusal(state)
    assert found is not None
    assert reason in found.reason
    assert not found.planned


def test_maintenance_is_a_planned_refusal() -> None:
    planned = override(maintenance={"window": "kernels", "startsAt": micro_text(NOW - 60)})
    found = refusal(fleet(overrides=[planned]))
    assert found is not None
    assert found.planned
    assert "maintenance kernels of eu-west" in found.reason
