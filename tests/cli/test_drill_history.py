"""`holdfast drill history`: the measured time stands beside the deadline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.conftest import Run

from holdfast.drills.report import DrillReport
from holdfast.drills.report_archive import keep_report
from holdfast.foundation.exit_codes import ExitCode
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


def test_reports_and_promises_are_those_of_the_platform_that_kubeconfig_names(
    run: Run, platform: Platform, layout: Layout, tmp_path: Path
) -> None:
    """Regression: `export KUBECONFIG` was enough for `status`, but `drill history` found no platform."""
    keep(layout, "01", "region-loss", secondsToMinServing=15.03, deadlineSeconds=60.0)
    layout.root.rename(tmp_path / "other")
    known = {"KUBECONFIG": str(tmp_path / "other" / "kubeconfig")}
    shown = run("drill", "history", **known)
    assert "20261101T100000-region-loss-us-east" in shown.stdout
    assert f"note: using {tmp_path / 'other'} (KUBECONFIG)" in shown.stderr
    assert run("drill", "show", **known).returncode == 0
    promised = run("drill", "promises", **known)
    assert "not found" not in promised.stderr
    assert promised.returncode == ExitCode.UNREACHABLE, "the platform is asked; it does not run"
    assert "not found" in run("drill", "history").stderr
