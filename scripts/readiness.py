"""`make readiness`: makes the evidence of every claim, judges the claims and writes the page.

    make readiness                          about 15 minutes on two idle cores
    make readiness ARGS=--quick             about 3 minutes: tests, simulations and scenarios, no drills
    make readiness ARGS=--judge-only        judges the evidence that exists

Evidence of this revision that supports its claims is kept between runs; `--fresh` makes everything again. Exits with 1
if a claim falls, because evidence is missing, stale or contradicts it. docs/readiness.md explains the claims.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
from evidence_makers import ROOT, Run, make
from terminal import say

from holdfast.model.times import seconds_text
from holdfast.readiness.claims import CLAIMS, all_needs
from holdfast.readiness.evidence import EvidenceResult, Need, read_evidence, write_evidence
from holdfast.readiness.judgement import DAY_S, EVIDENCE_DAYS_MAX, Expected, Review, Standing, judge
from holdfast.readiness.page import page
from holdfast.readiness.revision import checkout_revision
from holdfast.readiness.text import review_text

OUT = Path(".readiness")


def main(arguments: list[str]) -> int:
    chosen = _parser().parse_args(arguments)
    unknown = [title for title in chosen.skip if title not in {need.title for need in all_needs()}]
    if unknown:
        say(f"error: evidence {', '.join(unknown)}: not found\nnext: python scripts/readiness.py --list")
        return 2
    if chosen.list:
        for need in all_needs():
            say(f"{need.title}{'' if need.quick else '  (full review)'}")
        return 0
    revision = _revision(chosen.plant)
    folder = chosen.out / ("planted" if chosen.plant else "evidence")
    expected = Expected(revision, time.time(), seconds_text(time.time()), chosen.days * DAY_S, chosen.quick)
    needs = all_needs(quick=chosen.quick)
    if not chosen.judge_only:
        kept = set() if chosen.fresh else usable(needs, folder, expected)
        wanted = [need for need in needs if need.title not in kept and need.title not in chosen.skip]
        if kept:
            say(f"{len(kept)} pieces of evidence of this revision exist, {len(wanted)} are made")
        began_s = time.monotonic()
        progress = lambda text: say(f"{time.monotonic() - began_s:6.0f} s  {text}")  # noqa: E731
        # A drill's platform is stopped when the run is interrupted, also by SIGTERM.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with closing(make(Run(revision, chosen.workers, progress, chosen.plant), wanted)) as made:
                for evidence in made:
                    write_evidence(folder, evidence)
                    say(f"          {_line(evidence)}")
        except KeyboardInterrupt:
            say("interrupted; the same command continues with the evidence that is missing")
            return 130
    # Skipped evidence is missing evidence, also if an earlier run made it.
    found = read_evidence(folder, [need for need in needs if need.title not in chosen.skip])
    now = time.time()
    # The revision is read again: if the tree changed during the run, its evidence is stale.
    at_end = msgspec.structs.replace(expected, revision=_revision(chosen.plant), now=now, reviewed_at=seconds_text(now))
    review = judge(CLAIMS, found, at_end)
    write_review(chosen.out, review, found)
    say(f"\n{review_text(review)}")
    say(f"page: {chosen.out / 'readiness.html'}, data: {chosen.out / 'readiness.json'}")
    return 1 if review.fallen else 0


def _revision(planted: str) -> str:
    return checkout_revision(ROOT) + (f"+planted:{planted}" if planted else "")


def usable(needs: tuple[Need, ...], folder: Path, expected: Expected) -> set[str]:
    """Titles of the evidence that supports every claim which needs it."""
    review = judge(CLAIMS, read_evidence(folder, needs), expected)
    findings = [finding for item in review.claims for finding in item.findings]
    bad = {finding.need for finding in findings if finding.standing is not Standing.SUPPORTS}
    return {finding.need for finding in findings} - bad


def write_review(folder: Path, review: Review, evidence: dict[str, EvidenceResult]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"review": review, "evidence": list(evidence.values())}
    (folder / "readiness.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    (folder / "readiness.html").write_text(page(review, evidence, CLAIMS), encoding="utf-8")


def _line(evidence: EvidenceResult) -> str:
    word = "ok    " if evidence.passed else "FAILED"
    wrong = [*evidence.failures, *(f"{violation.invariant}: {violation.text}" for violation in evidence.violations)]
    return f"{word} {evidence.title}: {evidence.summary}" + (f" ({wrong[0]})" if wrong else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="readiness", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only evidence that runs quickly")
    parser.add_argument("--fresh", action="store_true", help="make all evidence again")
    parser.add_argument("--judge-only", action="store_true", help="make no evidence")
    parser.add_argument("--list", action="store_true", help="list the evidence of all claims")
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="EVIDENCE",
        help='leave out, such as "drill autoscaler"; its claims fall',
    )
    parser.add_argument("--plant", default="", metavar="MUTATION", help="apply a mutation, to test the review itself")
    parser.add_argument("--days", type=float, default=EVIDENCE_DAYS_MAX, help="largest age of evidence")
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes")
    parser.add_argument("--out", type=Path, default=OUT, help="directory of the evidence, the page and the data")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
