"""What a drill found: the verdict, the clock, the promises, and the six questions every failure must answer."""

from __future__ import annotations

from typing import Any

import msgspec


class SixAnswers(msgspec.Struct, frozen=True, rename="camel"):
    """Lines, each a recorded fact."""

    desired_state_changed: list[str]
    acted_first: list[str]
    partial_progress: list[str]
    invariant_held: list[str]
    telemetry: list[str]
    way_back: list[str]


QUESTIONS = {
    "desired_state_changed": "What desired state changed?",
    "acted_first": "Which controller acted first?",
    "partial_progress": "What partial progress was recorded?",
    "invariant_held": "Which invariant held?",
    "telemetry": "Which telemetry proves it?",
    "way_back": "What was the repair or rollback path?",
}


class Report(msgspec.Struct, rename="camel", omit_defaults=True):
    """`facts` are a drill's own findings; their keys are printed as they are."""

    drill: str
    passed: bool
    clock: dict[str, float] = {}
    violations: list[str] = []
    failures: list[str] = []
    leftovers: list[str] = []
    facts: dict[str, Any] = {}
    answers: SixAnswers | None = None

    def as_json(self) -> dict[str, Any]:
        """Flat for scripts: the facts beside the rest."""
        told: dict[str, Any] = {"drill": self.drill, "passed": self.passed, **self.facts}
        told |= {"clock": self.clock, "violations": self.violations, "failures": self.failures}
        told["leftovers"] = self.leftovers
        if self.answers is not None:
            told["questions"] = {QUESTIONS[f]: getattr(self.answers, f) for f in QUESTIONS}
        return told

    def as_text(self) -> str:
        lines = [f"drill {self.drill}: {'passed' if self.passed else 'FAILED'}"]
        lines += [f"  {name.replace('_', ' ')}: {value}" for name, value in self.facts.items() if _plain(value)]
        if self.clock:
            lines.append("  clock, seconds after the failure:")
            lines += [f"    {at_s:7.1f}  {stage}" for stage, at_s in sorted(self.clock.items(), key=lambda x: x[1])]
        for title, items in (
            ("violations", self.violations), ("failures", self.failures), ("left over", self.leftovers),
        ):  # fmt: skip
            lines.append(f"  {title}: {'none' if not items else ''}")
            lines += [f"    {item}" for item in items]
        if self.answers is not None:
            for field, question in QUESTIONS.items():
                lines += [f"  {question}", *(f"    {line}" for line in getattr(self.answers, field))]
        return "\n".join(lines)


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)
