"""Judges claims by their evidence. Pure: evidence, revision and time come in, findings go out.

A claim holds only if every piece of evidence that it needs exists, was made for this revision and recently, and does
not contradict the claim. Nothing else makes a claim hold: evidence that is absent is never taken as success.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.model.times import parse_time
from holdfast.readiness.claims import DesignClaim
from holdfast.readiness.evidence import UNKNOWN_REVISION, EvidenceResult, Need

DAY_S = 86_400.0
EVIDENCE_DAYS_MAX = 7.0
"""Evidence older than this is stale. A week covers the time between a run and the release that it is for."""
TEXTS_MAX = 3
"""Failures quoted in a finding."""
CLOCK_TOLERANCE_S = 300.0
"""Evidence from further in the future than this has a wrong date and counts as stale."""


class Standing(enum.StrEnum):
    """State of one piece of evidence."""

    SUPPORTS = "supports"
    MISSING = "missing"
    STALE = "stale"
    CONTRADICTS = "contradicts"


class ClaimFinding(msgspec.Struct, frozen=True, rename="camel"):
    """What one piece of evidence says about a claim."""

    need: str
    standing: Standing
    text: str
    made_at: str = ""


class ClaimReview(msgspec.Struct, frozen=True, rename="camel"):
    """A claim with its findings. `left_out` is the evidence that a quick review does not ask for."""

    claim: str
    title: str
    holds: bool
    findings: tuple[ClaimFinding, ...]
    risks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Review(msgspec.Struct, frozen=True, rename="camel"):
    """The reviews of all claims for one revision."""

    revision: str
    reviewed_at: str
    quick: bool
    claims: tuple[ClaimReview, ...]

    @property
    def fallen(self) -> tuple[ClaimReview, ...]:
        return tuple(review for review in self.claims if not review.holds)


class Expected(msgspec.Struct, frozen=True):
    """The revision under review, the time, and how old evidence may be."""

    revision: str
    now: float
    reviewed_at: str = ""
    max_age_s: float = EVIDENCE_DAYS_MAX * DAY_S
    quick: bool = False


def judge(claims: Sequence[DesignClaim], evidence: Mapping[str, EvidenceResult], expected: Expected) -> Review:
    """The review of every claim. A violation of an invariant that no claim names contradicts every claim."""
    claimed = frozenset(name for claim in claims for name in claim.invariants)
    return Review(
        revision=expected.revision,
        reviewed_at=expected.reviewed_at,
        quick=expected.quick,
        claims=tuple(_review(claim, evidence, expected, claimed) for claim in claims),
    )


def _review(
    claim: DesignClaim, evidence: Mapping[str, EvidenceResult], expected: Expected, claimed: frozenset[str]
) -> ClaimReview:
    elsewhere = claimed.difference(claim.invariants)
    asked = [need for need in claim.needs if need.quick or not expected.quick]
    findings = (
        *(_finding(need, evidence.get(need.title), expected, elsewhere) for need in asked),
        *_violations_elsewhere(claim, evidence, expected),
    )
    return ClaimReview(
        claim=claim.name,
        title=claim.title,
        holds=bool(asked) and all(finding.standing is Standing.SUPPORTS for finding in findings),
        findings=findings,
        risks=claim.risks,
        left_out=tuple(need.title for need in claim.needs if need not in asked),
    )


def _violations_elsewhere(
    claim: DesignClaim, evidence: Mapping[str, EvidenceResult], expected: Expected
) -> Iterator[ClaimFinding]:
    """Violations of this claim's invariants in evidence that only other claims ask for."""
    own = {need.title for need in claim.needs}
    for title, found in evidence.items():
        violated = [v for v in found.violations if v.invariant in claim.invariants]
        if violated and title not in own and not _staleness(found, expected):
            text = _shortened([f"{violation.invariant}: {violation.text}" for violation in violated])
            yield ClaimFinding(title, Standing.CONTRADICTS, text, found.made_at)


def _finding(need: Need, found: EvidenceResult | None, expected: Expected, elsewhere: frozenset[str]) -> ClaimFinding:
    if found is None:
        return ClaimFinding(need.title, Standing.MISSING, "no evidence")
    stale = _staleness(found, expected)
    if stale:
        return ClaimFinding(need.title, Standing.STALE, stale, found.made_at)
    problems = _contradictions(need, found, elsewhere)
    if problems:
        return ClaimFinding(need.title, Standing.CONTRADICTS, _shortened(problems), found.made_at)
    absent = [figure for figure in need.bounds if figure not in found.figures]
    if absent:
        text = f"figure {', '.join(absent)} is missing from the evidence"
        return ClaimFinding(need.title, Standing.MISSING, text, found.made_at)
    return ClaimFinding(need.title, Standing.SUPPORTS, found.summary, found.made_at)


def _shortened(problems: Sequence[str]) -> str:
    more = f" (and {len(problems) - TEXTS_MAX} more)" if len(problems) > TEXTS_MAX else ""
    return "; ".join(problems[:TEXTS_MAX]) + more


def _staleness(found: EvidenceResult, expected: Expected) -> str:
    if UNKNOWN_REVISION in (found.revision, expected.revision):
        return "the revision is unknown (expected a Git checkout)"
    if found.revision != expected.revision:
        return f"made for another revision (expected {expected.revision}, found {found.revision})"
    age_s = expected.now - parse_time(found.made_at)
    if age_s > expected.max_age_s:
        return f"{age_s / DAY_S:.1f} days old (at most {expected.max_age_s / DAY_S:g})"
    return "dated in the future" if age_s < -CLOCK_TOLERANCE_S else ""


def _contradictions(need: Need, found: EvidenceResult, elsewhere: frozenset[str]) -> list[str]:
    """`elsewhere` are the invariants that only other claims name."""
    violated = [
        f"{violation.invariant}: {violation.text}"
        for violation in found.violations
        if violation.invariant not in elsewhere
    ]
    failed = list(found.failures)
    if not found.passed and not found.failures and not found.violations:
        failed.append(f"failed: {found.summary}")
    outside = [
        problem
        for figure, bound in need.bounds.items()
        if figure in found.figures and (problem := bound.problem(figure, found.figures[figure]))
    ]
    return [*violated, *failed, *outside]
