"""`holdfast drill history`: the measured time stands beside the deadline."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Run

from holdfast.drills.report import DrillReport
from holdfast.drills.report_archive import keep_report
from holdfast.platform.layout import Layout, Platform


def keep(layout: Layout, day: str, drill: str, **facts: Any) -> None:
    started = f"2026-11-{day}T10:00:00.000000Z"
    keep_report(layout, DrillReport(drill, passed=True, started_at=started, facts={"region": "us-east", **facts}))


def test_history_has_time_and_deadline_of_each_report(run: Run, platform: Platform, layout: Layout) -> None:
    keep(layout, "01", "region-loss", secondsToMinServing=15.03, deadlineSeconds=60.0)
    keep(layout, "02", "region-loss", secondsToMinServing=None, deadlineSeconds=60.0)
    keep(layout, "03", "partition")
    lines = run("drill", "history").stdout.splitlines()
    cells = [[cell.strip() for cell in line.split("   ") if cell.strip()] for line in lines]
    assert cells[0][4:6] == ["TO MIN SERVING", "DEADLINE"]
    assert [row[4:6] for row in cells[1:]] == [["-", "-"], ["-", "60 s"], ["15.0 s", "60 s"]]
