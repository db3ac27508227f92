"""Claims are judged by evidence of real small runs: a planted bug, a missing drill and a stale figure fail a claim."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from evidence_makers import Run, make, one_per_invariant, saved_benchmark

from bench import __main__ as harness
from bench import store as store_bench
from holdfast.model.times import seconds_text
from holdfast.readiness.claims import CLAIMS, DesignClaim
from holdfast.readiness.evidence import (
    Bound,
    EvidenceKind,
    EvidenceResult,
    Need,
    ViolationRecord,
    evidence_file,
    read_evidence,
    write_evidence,
)
from holdfast.readiness.judgement import DAY_S, Expected, Review, Standing, judge
from holdfast.readiness.page import page
from holdfast.readiness.revision import checkout_revision
from holdfast.readiness.text import review_text

# Real runs make the evidence: a simulation, a scenario, a test file and a benchmark. A busy machine needs minutes.
pytestmark = pytest.mark.timeout(1200)
REVISION = "0123456789ab"
SEEDS = Need(EvidenceKind.SIMULATIONS, "1-1")
TESTS = Need(EvidenceKind.TEST, "tests/fleet/test_proof.py")
SCENARIO = Need(EvidenceKind.SCENARIO, "rollback-race")
DRILL = Need(EvidenceKind.DRILL, "autoscaler", bounds={"secondsToReady": Bound(most=60)})
FIGURE = Need(EvidenceKind.BENCHMARK, "store", bounds={"seconds to decode 100": Bound(least=0, most=60)})


def small_claims() -> tuple[DesignClaim, ...]:
    """The real claims with their invariants, and little evidence each."""
    more = {"autoscaling": (DRILL,), "state-aware-repair": (SCENARIO,), "coordination-boundaries": (FIGURE,)}
    return tuple(msgspec.structs.replace(claim, needs=(SEEDS, TESTS, *more.get(claim.name, ()))) for claim in CLAIMS)


def needs() -> tuple[Need, ...]:
    return (SEEDS, TESTS, SCENARIO, DRILL, FIGURE)


def run_of(planted: str = "") -> Run:
    return Run(REVISION, workers=2, say=lambda text: None, planted=planted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evidence of one simulated seed, one scenario, one test file and a small benchmark. The drill is a record."""
    place = tmp_path_factory.mktemp("evidence")
    for evidence in make(run_of(), (SEEDS, TESTS, SCENARIO)):
        write_evidence(place, evidence)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "OUT", place)
        for name in ("SEQUENTIAL_COMMITS", "COMMITS_PER_WRITER", "BATCHES", "SUBSCRIBERS", "FAN_OUT_COMMITS"):
            patch.setattr(store_bench, name, 2)
        patch.setattr(store_bench, "OBJECTS", 100)
        harness.measure("store", {})
    saved = json.loads((place / "store.json").read_text())
    figure = saved_benchmark(Run(saved["revision"], 1, print), FIGURE, place / "store.json")
    assert figure is not None
    write_evidence(place, msgspec.structs.replace(figure, revision=REVISION))
    made_at = seconds_text(time.time())
    write_evidence(
        place, EvidenceResult(DRILL.kind, DRILL.name, True, REVISION, made_at, figures={"secondsToReady": 31.0})
    )
    return place


def review_of(found: dict[str, EvidenceResult], *, now: float | None = None, revision: str = REVISION) -> Review:
    at = time.time() if now is None else now
    return judge(small_claims(), found, Expected(revision, at, seconds_text(at)))


def fallen(review: Review) -> dict[str, list[str]]:
    return {
        item.claim: [f"{f.standing.value} {f.need}" for f in item.findings if f.standing is not Standing.SUPPORTS]
        for item in review.fallen
    }


def without(found: dict[str, EvidenceResult], need: Need) -> dict[str, EvidenceResult]:
    return {title: evidence for title, evidence in found.items() if title != need.title}


@pytest.mark.slow
def test_claims_hold_with_evidence_of_real_runs(folder: Path) -> None:
    review = review_of(read_evidence(folder, needs()))
    assert fallen(review) == {}
    assert "all 8 claims hold" in review_text(review)


@pytest.mark.slow
def test_planted_bug_makes_the_claim_of_its_invariant_fall(folder: Path, tmp_path: Path) -> None:
    planted = list(make(run_of(planted="quota-check-skipped"), (SEEDS,)))
    for evidence in planted:
        write_evidence(tmp_path, evidence)
    review = review_of(read_evidence(folder, needs()) | read_evidence(tmp_path, (SEEDS,)))
    assert fallen(review) == {"tenant-isolation": ["contradicts simulations 1-1"]}
    assert "claim tenant-isolation fell" in review_text(review) and "S3: seed 1" in review_text(review)


@pytest.mark.slow
def test_missing_drill_makes_its_claim_fall(folder: Path) -> None:
    review = review_of(without(read_evidence(folder, needs()), DRILL))
    assert fallen(review) == {"autoscaling": ["missing drill autoscaler"]}


@pytest.mark.slow
def test_figure_of_another_revision_makes_its_claim_fall(folder: Path) -> None:
    found = read_evidence(folder, needs())
    other = msgspec.structs.replace(found[FIGURE.title], revision="fedcba987654")
    review = review_of({**found, FIGURE.title: other})
    assert fallen(review) == {"coordination-boundaries": ["stale benchmark store"]}
    assert "made for another revision (expected 0123456789ab, found fedcba987654)" in review_text(review)


@pytest.mark.slow
def test_old_evidence_makes_every_claim_fall(folder: Path) -> None:
    review = review_of(read_evidence(folder, needs()), now=time.time() + 8 * DAY_S)
    assert len(review.fallen) == 8
    assert "8.0 days old (at most 7)" in review_text(review)


@pytest.mark.slow
def test_page_shows_fallen_claims_and_charts_without_scripts(folder: Path) -> None:
    found = without(read_evidence(folder, needs()), FIGURE)
    text = page(review_of(found), found, small_claims())
    assert "1 of 8 claims fell" in text and text.count("<svg") == 2
    assert "<script" not in text and "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "31 of at most 60" in text


def evidence_of(need: Need, **changes: object) -> dict[str, EvidenceResult]:
    made = EvidenceResult(need.kind, need.name, True, REVISION, seconds_text(1_000_000.0))
    return {need.title: msgspec.structs.replace(made, **changes)}


def judged(need: Need, found: dict[str, EvidenceResult], now: float = 1_000_100.0) -> Standing:
    claim = DesignClaim("one", "One", ("S1",), (need,), ("none",))
    other = DesignClaim("other", "Other", ("S2",), (need,), ("none",))
    review = judge((claim, other), found, Expected(REVISION, now))
    return review.claims[0].findings[0].standing


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({}, Standing.SUPPORTS),
        ({"passed": False, "summary": "stopped"}, Standing.CONTRADICTS),
        ({"passed": False, "failures": ("test_x: wrong",)}, Standing.CONTRADICTS),
        ({"violations": (ViolationRecord("S1", "twice"),)}, Standing.CONTRADICTS),
        ({"violations": (ViolationRecord("S2", "full"),)}, Standing.SUPPORTS),
        ({"violations": (ViolationRecord("livelock", "no end"),)}, Standing.CONTRADICTS),
        ({"revision": f"{REVISION}+1"}, Standing.STALE),
        ({"revision": "unknown"}, Standing.STALE),
        ({"made_at": seconds_text(1_001_000.0)}, Standing.STALE),
    ],
)
def test_evidence_is_judged_by_result_invariant_revision_and_date(
    changes: dict[str, object], standing: Standing
) -> None:
    assert judged(SEEDS, evidence_of(SEEDS, **changes)) is standing


def test_violation_in_evidence_of_another_claim_contradicts_the_claim_that_names_the_invariant() -> None:
    tests = Need(EvidenceKind.TEST, "a")
    binding = DesignClaim("binding", "Binding", ("S1",), (SCENARIO,), ("none",))
    quota = DesignClaim("quota", "Quota", ("S3",), (tests,), ("none",))
    found = evidence_of(tests) | evidence_of(SCENARIO, passed=False, violations=(ViolationRecord("S3", "too much"),))
    review = judge((binding, quota), found, Expected(REVISION, 1_000_100.0))
    assert [(item.claim, item.holds) for item in review.claims] == [("binding", True), ("quota", False)]
    stale = judge((binding, quota), found, Expected("other", 1_000_100.0))
    assert {f.standing for item in stale.claims for f in item.findings} == {Standing.STALE}


def test_figure_outside_its_bound_contradicts_and_an_absent_figure_is_missing() -> None:
    assert judged(DRILL, evidence_of(DRILL, figures={"secondsToReady": 61.0})) is Standing.CONTRADICTS
    assert judged(DRILL, evidence_of(DRILL, figures={"secondsToReady": 60.0})) is Standing.SUPPORTS
    assert judged(DRILL, evidence_of(DRILL)) is Standing.MISSING


def test_evidence_without_a_known_revision_is_never_current() -> None:
    found = evidence_of(SEEDS, revision="unknown")
    claim = DesignClaim("one", "One", (), (SEEDS,), ("none",))
    assert not judge((claim,), found, Expected("unknown", 1_000_100.0)).claims[0].holds


def test_quick_review_reports_the_evidence_that_it_does_not_ask_for() -> None:
    quick = Need(EvidenceKind.TEST, "a", quick=True)
    claim = DesignClaim("one", "One", (), (quick, DRILL), ("none",))
    review = judge((claim,), evidence_of(quick), Expected(REVISION, 1_000_100.0, quick=True))
    assert review.claims[0].holds and review.claims[0].left_out == (DRILL.title,)


def test_claim_without_any_asked_evidence_does_not_hold() -> None:
    claim = DesignClaim("one", "One", (), (DRILL,), ("none",))
    assert not judge((claim,), {}, Expected(REVISION, 0.0, quick=True)).claims[0].holds


def test_damaged_evidence_file_counts_as_missing(tmp_path: Path) -> None:
    write_evidence(tmp_path, evidence_of(SEEDS)[SEEDS.title])
    assert read_evidence(tmp_path, (SEEDS,))
    evidence_file(tmp_path, SEEDS.kind, SEEDS.name).write_text('{"kind": "simulations"')
    assert read_evidence(tmp_path, (SEEDS,)) == {}


def test_first_violation_of_each_invariant_is_kept() -> None:
    found = [ViolationRecord("S3", str(number)) for number in range(9)] + [ViolationRecord("S1", "last")]
    assert one_per_invariant(found) == (ViolationRecord("S3", "0"), ViolationRecord("S1", "last"))


@pytest.mark.slow
def test_test_file_that_does_not_run_contradicts(tmp_path: Path) -> None:
    absent = Need(EvidenceKind.TEST, "tests/fleet/test_no_such.py")
    (evidence,) = make(run_of(), (absent,))
    assert not evidence.passed and "no test ran" in evidence.failures[0]


def test_revision_of_a_checkout_changes_with_uncommitted_text(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    assert checkout_revision(tmp_path / "absent") == "unknown"
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    clean = checkout_revision(tmp_path)
    (tmp_path / "a").write_text("2")
    changed = checkout_revision(tmp_path)
    (tmp_path / "a").write_text("3")
    assert len({clean, changed, checkout_revision(tmp_path)}) == 3
    assert changed.startswith(f"{clean}+")
    (tmp_path / "a").write_text("1")
    (tmp_path / "new").write_text("x")
    assert checkout_revision(tmp_path).startswith(f"{clean}+")
