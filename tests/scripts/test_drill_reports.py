"""The page of recorded drill reports: the newest passed report of each drill, shortened, or nothing."""

from __future__ import annotations

from pathlib import Path

import drill_reports
import msgspec
import pytest

from holdfast.drills.catalog import DRILLS
from holdfast.drills.report import QUESTIONS, DrillReport, IncidentAnswers


def report(drill: str, *, day: int = 1, passed: bool = True, lines: int = 1) -> DrillReport:
    answers = IncidentAnswers(**{field: [f"{field} {number}" for number in range(lines)] for field in QUESTIONS})
    started_at = f"2026-01-{day:02}T00:00:00.000000Z"
    return DrillReport(drill, passed, started_at=started_at, clock={"all serve": 4.0, "killed": 0.1}, answers=answers)


def test_newest_passed_report_of_each_drill_is_taken_in_the_order_of_the_catalog() -> None:
    names = list(DRILLS)[:2]
    reports = [report(names[1]), report(names[0], day=2), report(names[0], day=3, passed=False), report(names[0])]
    taken = drill_reports.newest_passed(reports)
    days = [(name, taken[name].started_at[:10]) for name in taken]
    assert days == [(names[0], "2026-01-02"), (names[1], "2026-01-01")]


def test_page_has_every_question_and_stages_by_time_and_cuts_long_answers() -> None:
    drill = next(iter(DRILLS))
    page = drill_reports.page({drill: report(drill, lines=9)}, "0123456789ab")
    assert f"## {drill}\n" in page and "revision `0123456789ab`" in page and "2026-01-01" in page
    assert page.index("0.1 s  killed") < page.index("4.0 s  all serve")
    for field, question in QUESTIONS.items():
        assert f"{question}\n  {field} 0\n  {field} 1\n  {field} 2\n  … 3 more …\n  {field} 6\n" in page


def test_missing_report_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(drill_reports, "PAGE", page)
    (tmp_path / "drills").mkdir()
    first, second = list(DRILLS)[:2]
    (tmp_path / "drills" / "a.json").write_bytes(msgspec.json.encode(report(first)))
    assert drill_reports.main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert f"no passed report of {second}, " in printed and first not in printed.splitlines()[0]
    assert not page.exists()
