"""The report of a drill: result, time of each stage, violations, and answers to the six incident `QUESTIONS`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

LINES_MAX = 24
"""Lines of one answer that the text shows. JSON and kept reports contain all lines."""


NOT_REACHED = re.compile(r"not reached within [0-9]+ s: ([^;]+)")
"""What `not_reached_text` returns. The group is the stage."""


def not_reached_text(stage: str, within_s: float) -> str:
    """The failure of a drill that waited for a stage in vain."""
    return f"not reached within {within_s:.0f} s: {stage}"


class IncidentAnswers(msgspec.Struct, frozen=True, rename="camel"):
    """Answers to `QUESTIONS`, as lines of text. Each line is a recorded fact."""

    desired_state_changed: list[str]
    acted_first: list[str]
    partial_progress: list[str]
    invariant_held: list[str]
    telemetry: list[str]
    recovery_path: list[str]


QUESTIONS = {
    "desired_state_changed": "What desired state changed?",
    "acted_first": "Which controller acted first?",
    "partial_progress": "What partial progress was recorded?",
    "invariant_held": "Which invariant held?",
    "telemetry": "Which telemetry proves it?",
    "recovery_path": "What was the repair or rollback path?",
}


class HistoryJudgement(msgspec.Struct, frozen=True, rename="camel"):
    """What the checkers of recorded histories found: `checked` and `unchecked` properties, each as one line."""

    commits: int
    violations: list[str]
    checked: list[str]
    unchecked: list[str]

    def lines(self) -> list[str]:
        found = len(self.violations)
        total = f"the recorded history of every cell, {self.commits} commits: {found} violation(s)"
        return [
            total,
            *(f"judged: {text}" for text in self.checked),
            *(f"not judged: {text}" for text in self.unchecked),
        ]


class DrillReport(msgspec.Struct, rename="camel", omit_defaults=True):
    """`clock`: seconds from the failure to each stage. `facts`: the drill's own findings; in JSON, at the top level."""

    drill: str
    passed: bool
    started_at: str = ""
    """When the failure began."""
    undone_at: str = ""
    """When the drill began to undo its changes. The answers describe the time until then."""
    clock: dict[str, float] = {}
    violations: list[str] = []
    failures: list[str] = []
    unreturned: list[str] = []
    facts: dict[str, Any] = {}
    answers: IncidentAnswers | None = None

    def as_json(self) -> dict[str, Any]:
        """The report for scripts, with the facts at the top level."""
        document: dict[str, Any] = {"drill": self.drill, "passed": self.passed, **self.facts}
        document |= {"startedAt": self.started_at, "undoneAt": self.undone_at}
        document |= {"clock": self.clock, "violations": self.violations, "failures": self.failures}
        document["unreturned"] = self.unreturned
        if self.answers is not None:
            document["questions"] = {QUESTIONS[f]: getattr(self.answers, f) for f in QUESTIONS}
        return document

    def as_text(self) -> str:
        lines = [f"drill {self.drill}: {'passed' if self.passed else 'FAILED'}"]
        lines += [f"  {_label(name)}: {_fact_text(value)}" for name, value in self.facts.items() if _printable(value)]
        if self.clock:
            lines.append("  stages (seconds after the failure):")
            lines += [f"    {at_s:7.1f}  {stage}" for stage, at_s in sorted(self.clock.items(), key=lambda x: x[1])]
        for title, items in (
            ("violations", self.violations),
            ("failures", self.failures),
            ("not returned", self.unreturned),
        ):
            lines.append(f"  {title}: {'none' if not items else ''}")
            lines += [f"    {item}" for item in items]
        if self.answers is not None:
            for field, question in QUESTIONS.items():
                lines += [f"  {question}", *(f"    {line}" for line in _limited(getattr(self.answers, field)))]
        return "\n".join(lines)


def _limited(lines: list[str]) -> list[str]:
    """The first and the last lines, and the number of lines between them."""
    if len(lines) <= LINES_MAX:
        return lines
    first = LINES_MAX // 2
    return [*lines[:first], f"… {len(lines) - LINES_MAX} more (-o json shows all) …", *lines[first - LINES_MAX :]]


def _label(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f" {found[0].lower()}", name)


def _printable(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | dict)


def _fact_text(value: Any) -> str:
    return "; ".join(f"{key}: {text}" for key, text in value.items()) if isinstance(value, dict) else str(value)
