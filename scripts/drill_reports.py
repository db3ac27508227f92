"""Writes docs/reference/drill-reports.md: one recorded report of every drill, from a platform that ran all of them.

    python scripts/drill_reports.py .holdfast

The newest passed report of each drill is taken. A drill without one is named, and nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
from terminal import say

from holdfast import __version__
from holdfast.drills.catalog import DRILLS
from holdfast.drills.report import QUESTIONS, DrillReport
from holdfast.platform.layout import Layout
from holdfast.readiness.revision import checkout_revision

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "drill-reports.md"
LINES_OF_AN_ANSWER = 6
"""Longer answers are cut: three lines from their start and three from their end."""
CHARACTERS_OF_A_LINE = 150

HEAD = """\
<!-- Written by scripts/drill_reports.py from recorded reports. Do not edit. -->

# Drill reports

One recorded report of each [drill](drills.md), with its six answers: a run of version {version}, revision `{revision}`,
on one machine with three regions of two nodes (`holdfast up`), on {day}. Long answers are cut here;
`holdfast drill show NAME` prints all of one. [The failure matrix](../failures.md) has the answers that are expected.
"""


def newest_passed(reports: Iterable[DrillReport]) -> dict[str, DrillReport]:
    """The newest passed report of each drill, in the order of the catalog."""
    found = {report.drill: report for report in sorted(reports, key=lambda r: r.started_at) if report.passed}
    return {name: found[name] for name in DRILLS if name in found}


def page(reports: dict[str, DrillReport], revision: str) -> str:
    day = max((report.started_at for report in reports.values()), default="")[:10]
    parts = [HEAD.format(version=__version__, revision=revision, day=day)]
    parts += [_section(report) for report in reports.values()]
    return "\n".join(parts)


def _section(report: DrillReport) -> str:
    drill = DRILLS[report.drill]
    lines = [f"passed: {drill.failure}"]
    lines += [f"  {at_s:6.1f} s  {stage}" for stage, at_s in sorted(report.clock.items(), key=lambda stage: stage[1])]
    for field, question in QUESTIONS.items():
        answer = _cut(getattr(report.answers, field)) if report.answers else []
        lines += [question, *(f"  {_short(line)}" for line in answer)]
    shown = "\n".join(line.rstrip() for line in lines)
    return f"## {report.drill}\n\n{drill.description}\n\n```text\n{shown}\n```\n"


def _cut(lines: list[str]) -> list[str]:
    if len(lines) <= LINES_OF_AN_ANSWER:
        return lines
    half = LINES_OF_AN_ANSWER // 2
    return [*lines[:half], f"… {len(lines) - 2 * half} more …", *lines[-half:]]


def _short(line: str) -> str:
    return line if len(line) <= CHARACTERS_OF_A_LINE else line[: CHARACTERS_OF_A_LINE - 1] + "…"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes docs/reference/drill-reports.md from recorded reports.")
    parser.add_argument("state", type=Path, help="directory of the platform that ran the drills")
    parser.add_argument("--revision", default="", help="revision that the platform ran, if not the one checked out")
    options = parser.parse_args(arguments)
    files = sorted(Layout(options.state).drill_reports.glob("*.json"))
    reports = newest_passed(msgspec.json.decode(path.read_bytes(), type=DrillReport) for path in files)
    missing = [name for name in DRILLS if name not in reports]
    if missing:
        say(f"error: no passed report of {', '.join(missing)}\nnext: holdfast drill run {missing[0]} --region REGION")
        return 1
    PAGE.write_text(page(reports, options.revision or checkout_revision(ROOT)))
    say(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
