"""Kept reports: written, listed, pruned and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.drills import report_archive
from holdfast.drills.report import DrillReport, not_reached_text
from holdfast.drills.report_archive import (
    compare_results,
    compare_stages,
    keep_report,
    kept_report,
    kept_reports,
    previous_report,
)
from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.layout import Layout


def report(at: str, *, drill: str = "zone-loss", region: str = "east", **more: Any) -> DrillReport:
    passed = more.pop("passed", True)
    return DrillReport(drill, passed=passed, started_at=f"2026-11-{at}.123456Z", facts={"region": region}, **more)


def test_kept_reports_are_listed_newest_first_and_filtered(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert kept_reports(layout) == []
    for made in (report("01T10:00:00"), report("03T10:00:00", drill="partition"), report("02T10:00:00", region="west")):
        keep_report(layout, made)
    (layout.drill_reports / "damaged.json").write_text("{")
    every = kept_reports(layout)
    assert [k.report.started_at[:10] for k in every] == ["2026-11-03", "2026-11-02", "2026-11-01"]
    assert [k.id for k in kept_reports(layout, drill="zone-loss", region="west")] == ["20261102T100000-zone-loss-west"]
    assert kept_report(layout, "last").report.drill == "partition"
    assert kept_report(layout, "20261101").report == report("01T10:00:00")
    for wrong in ("202611", "1999"):
        with pytest.raises(CommandError):
            kept_report(layout, wrong)


def test_pruning_keeps_the_newest_passed_report_of_each_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_archive, "REPORTS_MAX", 3)
    layout = Layout(tmp_path)
    keep_report(layout, report("01T10:00:00"))
    for day in range(2, 8):
        keep_report(layout, report(f"{day:02}T10:00:00", passed=False))
    days = [k.report.started_at[8:10] for k in kept_reports(layout)]
    assert days == ["07", "06", "05", "01"], "the last proof that the drill passes is kept"


def test_comparison_names_slower_stages_and_changed_results(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    keep_report(layout, report("01T10:00:00", clock={"lost": 10.0, "serving": 20.0, "closed": 60.0}))
    keep_report(layout, report("02T10:00:00", region="west", clock={"lost": 1.0}))
    late = f"{not_reached_text('closed', 300)}; acme/web: 0 of 4 serve"
    later = report("03T10:00:00", passed=False, violations=["S1: x"], failures=[late])
    keep_report(layout, msgspec.structs.replace(later, clock={"lost": 12.0, "serving": 31.0}))
    every = kept_reports(layout)
    before = previous_report(every, every[0])
    assert before is not None and before.id == "20261101T100000-zone-loss-east", "the same drill and region"
    rows = {row.stage: row for row in compare_stages(before.report, every[0].report)}
    assert {stage: row.slower for stage, row in rows.items()} == {"lost": False, "serving": True, "closed": True}
    assert rows["closed"].after_s is None
    assert [rows[stage].text for stage in ("lost", "serving", "closed")] == ["", "slower", "not reached"]
    assert list(compare_results(before.report, every[0].report))[:2] == ["passed → failed", "new in violations: S1: x"]
    assert previous_report(every, every[-1]) is None


def test_stage_that_only_one_drill_awaited_is_not_slower() -> None:
    """Regression: a drill with --no-fail-back was called slower, because it has no stages of the failback."""
    whole, short = (
        report("01T10:00:00", clock={"lost": 10.0, "closed": 60.0}),
        report("02T10:00:00", clock={"lost": 9.0}),
    )
    rows = {row.stage: row for row in compare_stages(whole, short)}
    assert (rows["closed"].slower, rows["closed"].text) == (False, "only in the earlier report")
    rows = {row.stage: row for row in compare_stages(short, whole)}
    assert (rows["closed"].slower, rows["closed"].text) == (False, "only in the later report")
