"""The page of a readiness review: one HTML file with drawn charts, without scripts and without other files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from holdfast.readiness.claims import DesignClaim
from holdfast.readiness.evidence import EvidenceKind, EvidenceResult
from holdfast.readiness.judgement import ClaimReview, Review, Standing

COLOURS = {
    Standing.SUPPORTS: "#2e7d32",
    Standing.MISSING: "#9e9e9e",
    Standing.STALE: "#f9a825",
    Standing.CONTRADICTS: "#c62828",
}
LABEL_PX, PLOT_PX, ROW_PX = 330, 420, 24
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}
td,th{border-bottom:1px solid #ddd;padding:.3rem .6rem;text-align:left;vertical-align:top}
h2{margin-top:2.5rem}h3{margin-bottom:0}
.holds{color:#2e7d32;font-weight:600}.fell{color:#c62828;font-weight:600}small{color:#555;white-space:nowrap}
svg text{font:12px system-ui,sans-serif}
"""


def page(review: Review, evidence: Mapping[str, EvidenceResult], claims: Sequence[DesignClaim]) -> str:
    """The whole page: verdict, charts, then every claim with its evidence and residual risks."""
    fallen = len(review.fallen)
    verdict = "every claim holds" if not fallen else f"{fallen} of {len(review.claims)} claims fell"
    scope = "quick review" if review.quick else "full review"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>Readiness: {escape(verdict)}</title><style>{STYLE}</style></head><body>",
        f'<h1>Readiness: <span class="{"fell" if fallen else "holds"}">{escape(verdict)}</span></h1>',
        f"<p>Revision <code>{escape(review.revision)}</code>, {scope}, {escape(review.reviewed_at)}.</p>",
        "<h2>Evidence by claim</h2>",
        standing_chart(review.claims),
    ]
    figures = bounded_figures(claims, evidence)
    if figures:
        parts += ["<h2>Figures and their bounds</h2>", bound_chart(figures)]
    stages = recovery_stages(evidence)
    if stages:
        parts += ["<h2>Recovery after the loss of a region (drill region-loss)</h2>", stage_chart(stages)]
    parts += ["<h2>Claims</h2>", *(_claim(item) for item in review.claims), "</body></html>"]
    return "\n".join(parts) + "\n"


def standing_chart(claims: Sequence[ClaimReview]) -> str:
    """One row per claim, one square per piece of evidence, coloured by its standing."""
    rows = []
    for row, review in enumerate(claims):
        y = row * ROW_PX
        rows.append(f'<text x="{LABEL_PX - 8}" y="{y + 15}" text-anchor="end">{escape(review.claim)}</text>')
        for column, finding in enumerate(review.findings):
            rows.append(
                f'<rect x="{LABEL_PX + column * 22}" y="{y + 2}" width="18" height="18" rx="3" '
                f'fill="{COLOURS[finding.standing]}"><title>{escape(finding.need)}: {finding.standing.value}</title>'
                "</rect>"
            )
    y = len(claims) * ROW_PX + 10
    for column, (standing, colour) in enumerate(COLOURS.items()):
        x = LABEL_PX + column * 110
        rows.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        rows.append(f'<text x="{x + 17}" y="{y + 11}">{standing.value}</text>')
    return _svg(rows, y + 24, "Evidence by claim")


def bound_chart(figures: Sequence[tuple[str, float, float]]) -> str:
    """Each figure as a share of its upper bound, which is the line at the right."""
    rows = []
    for row, (name, value, most) in enumerate(figures):
        y, share = row * ROW_PX, min(value / most, 1.15) if most else float(value > 0)
        colour = COLOURS[Standing.SUPPORTS if value <= most else Standing.CONTRADICTS]
        rows.append(f'<text x="{LABEL_PX - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        rows.append(
            f'<rect x="{LABEL_PX}" y="{y + 4}" width="{max(1.0, share * PLOT_PX):.0f}" height="14" fill="{colour}"/>'
        )
        rows.append(f'<text x="{LABEL_PX + PLOT_PX + 70}" y="{y + 15}">{value:g} of at most {most:g}</text>')
    height, x = len(figures) * ROW_PX, LABEL_PX + PLOT_PX
    rows.append(f'<line x1="{x}" y1="0" x2="{x}" y2="{height}" stroke="#1b1b1b" stroke-dasharray="4 3"/>')
    return _svg(rows, height + 6, "Figures and their bounds")


def stage_chart(stages: Sequence[tuple[str, float]]) -> str:
    """Seconds from the failure to each stage."""
    longest = max(at_s for _, at_s in stages) or 1.0
    rows = []
    for row, (name, at_s) in enumerate(stages):
        y, width = row * ROW_PX, max(1.0, at_s / longest * PLOT_PX)
        rows.append(f'<text x="{LABEL_PX - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        rows.append(f'<rect x="{LABEL_PX}" y="{y + 4}" width="{width:.0f}" height="14" fill="#1565c0"/>')
        rows.append(f'<text x="{LABEL_PX + width + 6:.0f}" y="{y + 15}">{at_s:.1f} s</text>')
    return _svg(rows, len(stages) * ROW_PX + 6, "Recovery stages in seconds after the failure")


def bounded_figures(
    claims: Sequence[DesignClaim], evidence: Mapping[str, EvidenceResult]
) -> list[tuple[str, float, float]]:
    """Every figure with an upper bound: name, value and bound."""
    found: dict[str, tuple[str, float, float]] = {}
    for claim in claims:
        for need in claim.needs:
            present = evidence.get(need.title)
            for figure, bound in need.bounds.items():
                if present is not None and figure in present.figures and bound.most is not None:
                    name = f"{need.name}: {figure}"
                    found[name] = (name, present.figures[figure], bound.most)
    return list(found.values())


def recovery_stages(evidence: Mapping[str, EvidenceResult]) -> list[tuple[str, float]]:
    """The stages of the drill region-loss, in order."""
    drill = evidence.get(f"{EvidenceKind.DRILL.value} region-loss")
    if drill is None:
        return []
    found = [(name.removeprefix("stage: "), at) for name, at in drill.figures.items() if name.startswith("stage: ")]
    return sorted(found, key=lambda stage: stage[1])


def _claim(review: ClaimReview) -> str:
    rows = "".join(
        f'<tr><td>{escape(finding.need)}</td><td style="color:{COLOURS[finding.standing]}">{finding.standing.value}'
        f"</td><td>{escape(finding.text)}</td><td><small>{escape(finding.made_at)}</small></td></tr>"
        for finding in review.findings
    )
    word = '<span class="holds">holds</span>' if review.holds else '<span class="fell">fell</span>'
    risks = "".join(f"<li>{escape(risk)}</li>" for risk in review.risks)
    left = f"<p>Not asked in a quick review: {escape(', '.join(review.left_out))}</p>"
    return (
        f"<h3>{escape(review.claim)}: {word}</h3><p>{escape(review.title)}.</p>"
        f"<table><tr><th>evidence</th><th>says</th><th>what was found</th><th>made</th></tr>{rows}</table>"
        f"{left if review.left_out else ''}<p>Residual risks</p><ul>{risks}</ul>"
    )


def _svg(rows: Sequence[str], height: int, title: str) -> str:
    width = LABEL_PX + PLOT_PX + 220
    return (
        f'<svg viewBox="0 0 {width} {height}" width="100%" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(rows)}</svg>'
    )
