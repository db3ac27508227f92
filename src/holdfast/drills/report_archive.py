"""Keeps the reports of drills in the platform's directory, lists them and compares two of them.

- A report is one JSON file, `drills/<time>-<drill>-<region>.json`, written atomically. Files that cannot be read are
  skipped, so that one damaged file does not hide the others.
- At most `REPORTS_MAX` reports are kept. The oldest are deleted, but never the newest passed one of a drill and region.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.console.drill_desk import DrillDesk, DrillResult
from holdfast.drills.report import NOT_REACHED, DrillReport
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.times import micro_text
from holdfast.platform.layout import Layout, write_atomically

REPORTS_MAX = 200
"""Reports kept per platform: a year of a weekly drill of every kind is a few hundred."""
FAILURE_CHARS_MAX = 300
"""Length of the reasons of a failed drill in its notification. The report has all of them."""
SLOWER_FRACTION, SLOWER_S = 1.5, 5.0
"""A stage is slower than before if it takes this much longer, and at least so many seconds."""


class KeptReport(msgspec.Struct, frozen=True):
    """A kept report with its identifier."""

    id: str
    report: DrillReport

    @property
    def region(self) -> str:
        return str(self.report.facts.get("region", ""))

    @property
    def not_started(self) -> str:
        """Why a scheduled drill did not start; empty if it did."""
        return str(self.report.facts.get("notStarted", ""))

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, **self.report.as_json()}


class StageChange(msgspec.Struct, frozen=True, rename="camel"):
    """One stage in two reports; None if a report does not have it, because it was not awaited or not reached."""

    stage: str
    before_s: float | None
    after_s: float | None
    not_reached: bool = False
    """The later drill waited for the stage in vain."""

    @property
    def slower(self) -> bool:
        """Whether the stage takes much longer, or was awaited in vain."""
        if self.before_s is None or self.after_s is None:
            return self.not_reached
        return self.after_s > self.before_s * SLOWER_FRACTION and self.after_s - self.before_s >= SLOWER_S

    @property
    def text(self) -> str:
        if self.not_reached:
            return "not reached"
        if self.before_s is None or self.after_s is None:
            return f"only in the {'later' if self.before_s is None else 'earlier'} report"
        return "slower" if self.slower else ""


def keep_refusal(layout: Layout, drill: str, region: str, reason: str, *, planned: bool) -> str:
    """Keeps that a scheduled drill did not start. `planned`: because of maintenance, which is no failure."""
    facts = {"region": region, "notStarted": reason, "planned": planned}
    at = micro_text(time.time())
    return keep_report(
        layout, DrillReport(drill, False, started_at=at, failures=[f"not started: {reason}"], facts=facts)
    )


def keep_report(layout: Layout, report: DrillReport) -> str:
    """Writes the report and returns its identifier."""
    layout.drill_reports.mkdir(mode=0o700, parents=True, exist_ok=True)
    moment = report.started_at.partition(".")[0].replace(":", "").replace("-", "")
    name = f"{moment}-{report.drill}-{report.facts.get('region', '')}"
    write_atomically(layout.drill_reports / f"{name}.json", msgspec.json.encode(report))
    _prune(layout)
    region = str(report.facts.get("region", ""))
    failure = "; ".join((*report.violations, *report.failures, *report.unreturned))[:FAILURE_CHARS_MAX]
    succeeded = report.passed or bool(report.facts.get("planned"))
    result = DrillResult(name, report.drill, region, succeeded, time.time(), failure)
    DrillDesk(layout.drill_desk).add_result(result)
    return name


def kept_reports(layout: Layout, *, drill: str = "", region: str = "") -> list[KeptReport]:
    """The kept reports, newest first."""
    found = [kept for path in _files(layout) if (kept := _read(path)) is not None]
    chosen = (k for k in found if (not drill or k.report.drill == drill) and (not region or k.region == region))
    return sorted(chosen, key=lambda kept: kept.report.started_at, reverse=True)


def kept_report(layout: Layout, report_id: str) -> KeptReport:
    """The report with this identifier, or with the only one that starts with it. `last` is the newest report."""
    every = kept_reports(layout)
    found = every[:1] if report_id == "last" else [k for k in every if k.id == report_id]
    found = found or [kept for kept in every if kept.id.startswith(report_id)]
    if len(found) != 1:
        problem = "not found" if not found else f"ambiguous ({len(found)} reports start with it)"
        raise CommandError(
            f"drill report {report_id}: {problem}", next_step="holdfast drill history", code=ExitCode.USAGE
        )
    return found[0]


def previous_report(every: Sequence[KeptReport], kept: KeptReport) -> KeptReport | None:
    """The newest earlier report of the same drill in the same region. `every` is sorted, newest first."""
    return next(
        (
            other
            for other in every
            if other.report.drill == kept.report.drill
            and not other.not_started
            and other.region == kept.region
            and other.report.started_at < kept.report.started_at
        ),
        None,
    )


def compare_stages(before: DrillReport, after: DrillReport) -> list[StageChange]:
    """All stages of both reports, in the order of the later report."""
    stages = dict.fromkeys((*sorted(after.clock, key=lambda s: after.clock[s]), *before.clock))
    late = {found[1] for text in after.failures if (found := NOT_REACHED.match(text)) is not None}
    stages |= dict.fromkeys(sorted(late))
    return [
        StageChange(stage, before.clock.get(stage), after.clock.get(stage), stage in late and stage not in after.clock)
        for stage in stages
    ]


def compare_results(before: DrillReport, after: DrillReport) -> Iterator[str]:
    """Differences in the results: passed or not, violations, failures and unreturned resources."""
    if before.passed != after.passed:
        yield f"{_result(before)} → {_result(after)}"
    for name in ("violations", "failures", "unreturned"):
        old, new = set(getattr(before, name)), set(getattr(after, name))
        yield from (f"new in {name}: {text}" for text in sorted(new - old))
        yield from (f"no longer in {name}: {text}" for text in sorted(old - new))


def _result(report: DrillReport) -> str:
    return "passed" if report.passed else "failed"


def _files(layout: Layout) -> list[Path]:
    return sorted(layout.drill_reports.glob("*.json")) if layout.drill_reports.is_dir() else []


def _read(path: Path) -> KeptReport | None:
    try:
        return KeptReport(path.stem, msgspec.json.decode(path.read_bytes(), type=DrillReport))
    except (OSError, msgspec.DecodeError):
        return None


def _prune(layout: Layout) -> None:
    every = kept_reports(layout)
    newest_passed: dict[tuple[str, str], str] = {}
    for kept in every:
        if kept.report.passed:
            newest_passed.setdefault((kept.report.drill, kept.region), kept.id)
    for kept in every[REPORTS_MAX:]:
        if kept.id not in newest_passed.values():
            (layout.drill_reports / f"{kept.id}.json").unlink(missing_ok=True)
