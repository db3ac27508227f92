"""A review as a table for the terminal."""

from __future__ import annotations

from holdfast.platform.output import table
from holdfast.readiness.judgement import Review, Standing


def review_text(review: Review) -> str:
    """One row per claim, then the evidence that made claims fall, then the residual risks."""
    rows = []
    for item in review.claims:
        counts = {standing: sum(f.standing is standing for f in item.findings) for standing in Standing}
        rows.append((item.claim, "holds" if item.holds else "FELL", *counts.values(), len(item.left_out)))
    parts = [
        f"revision {review.revision}, {'quick' if review.quick else 'full'} review, {review.reviewed_at}",
        table(("CLAIM", "RESULT", "SUPPORT", "MISSING", "STALE", "CONTRADICT", "NOT ASKED"), rows),
    ]
    for item in review.fallen:
        lines = [f"claim {item.claim} fell: {item.title}"]
        lines += [
            f"  {finding.standing.value}: {finding.need}: {finding.text}"
            for finding in item.findings
            if finding.standing is not Standing.SUPPORTS
        ]
        parts.append("\n".join(lines))
    risks = [(item.claim, risk) for item in review.claims for risk in item.risks]
    parts.append(table(("CLAIM", "RESIDUAL RISK"), risks))
    count = len(review.fallen)
    parts.append(f"{count} of {len(review.claims)} claims fell" if count else f"all {len(review.claims)} claims hold")
    return "\n\n".join(parts)
