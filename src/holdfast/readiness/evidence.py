"""Evidence for claims: what a claim needs, and one dated result that is tied to a revision of the code.

A piece of evidence is one JSON file, `<kind>-<name>.json`, written atomically. A file that cannot be read counts as
missing: the judgement then names the evidence, and no damaged file passes as a result.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

UNKNOWN_REVISION = "unknown"
"""Revision of code that is not in a Git checkout. Evidence for it is always stale."""


class EvidenceKind(enum.StrEnum):
    TEST = "test"
    ALERTS = "alerts"
    SIMULATIONS = "simulations"
    SCENARIO = "scenario"
    MUTATION = "mutation"
    DRILL = "drill"
    BENCHMARK = "benchmark"


class Bound(msgspec.Struct, frozen=True, rename="camel"):
    """Smallest and largest permitted value of a figure; None for no bound."""

    least: float | None = None
    most: float | None = None

    def problem(self, figure: str, value: float) -> str:
        """What is wrong with the value; empty if it is within the bound."""
        if self.least is not None and value < self.least:
            return f"{figure}: too low (expected at least {self.least:g}, found {value:g})"
        if self.most is not None and value > self.most:
            return f"{figure}: too high (expected at most {self.most:g}, found {value:g})"
        return ""


class Need(msgspec.Struct, frozen=True):
    """Evidence that a claim needs. A quick review asks only for `quick` evidence."""

    kind: EvidenceKind
    name: str
    quick: bool = False
    bounds: dict[str, Bound] = {}

    @property
    def title(self) -> str:
        return f"{self.kind.value} {self.name}"


class ViolationRecord(msgspec.Struct, frozen=True):
    """A violated invariant, and where it was found."""

    invariant: str
    text: str


class EvidenceResult(msgspec.Struct, frozen=True, rename="camel"):
    """One result. `made_at` is in UTC, `revision` is the code that was tested, `summary` says what was done."""

    kind: EvidenceKind
    name: str
    passed: bool
    revision: str
    made_at: str
    seconds: float = 0.0
    summary: str = ""
    failures: tuple[str, ...] = ()
    violations: tuple[ViolationRecord, ...] = ()
    figures: dict[str, float] = {}

    @property
    def title(self) -> str:
        return f"{self.kind.value} {self.name}"


def evidence_file(folder: Path, kind: EvidenceKind, name: str) -> Path:
    return folder / f"{kind.value}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}.json"


def write_evidence(folder: Path, evidence: EvidenceResult) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = evidence_file(folder, evidence.kind, evidence.name)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(evidence), indent=2) + b"\n")
    os.replace(new, path)
    return path


def read_evidence(folder: Path, needs: Iterable[Need]) -> dict[str, EvidenceResult]:
    """The evidence in the directory, by title."""
    found: dict[str, EvidenceResult] = {}
    for need in needs:
        try:
            content = evidence_file(folder, need.kind, need.name).read_bytes()
            evidence = msgspec.json.decode(content, type=EvidenceResult)
        except (OSError, msgspec.DecodeError):
            continue
        if (evidence.kind, evidence.name) == (need.kind, need.name):
            found[need.title] = evidence
    return found
