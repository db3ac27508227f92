"""`make readiness` fails with the name of each fallen claim, writes page and data, and reuses only fitting evidence."""

from __future__ import annotations

import importlib
import json
import time
from functools import cache
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from holdfast.model.times import seconds_text
from holdfast.readiness.claims import CLAIMS, all_needs
from holdfast.readiness.evidence import EvidenceKind, EvidenceResult, Need, write_evidence
from holdfast.readiness.judgement import Expected
from holdfast.readiness.revision import checkout_revision

ROOT = Path(__file__).parents[2]
FIGURES = {"secondsToMinServing": 47.0, "questionsAnswered": 6.0, "recovered_seconds": 20.0, "short": 0.0}


@pytest.fixture
def readiness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("readiness")


@cache
def current_revision() -> str:
    return checkout_revision(ROOT)


def supporting(need: Need, **changes: object) -> EvidenceResult:
    made_at = seconds_text(time.time())
    found = EvidenceResult(need.kind, need.name, True, current_revision(), made_at, figures=FIGURES)
    return msgspec.structs.replace(found, **changes)


def recorded(folder: Path) -> None:
    for need in all_needs():
        write_evidence(folder / "evidence", supporting(need))


def test_review_without_evidence_fails_and_names_every_claim(
    readiness: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert readiness.main(["--judge-only", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    for claim in CLAIMS:
        assert f"claim {claim.name} fell" in printed
        assert all(risk in printed for risk in claim.risks)


def test_complete_evidence_passes_and_is_written_as_page_and_data(readiness: ModuleType, tmp_path: Path) -> None:
    recorded(tmp_path)
    assert readiness.main(["--judge-only", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "readiness.json").read_text())
    assert data["review"]["revision"] == checkout_revision(ROOT)
    assert len(data["review"]["claims"]) == 8 and len(data["evidence"]) == len(all_needs())
    page = (tmp_path / "readiness.html").read_text()
    assert "every claim holds" in page and "<script" not in page


@pytest.mark.parametrize(
    ("changes", "fell"),
    [
        ({"revision": "fedcba987654"}, "stale: drill autoscaler: made for another revision"),
        ({"made_at": seconds_text(time.time() - 8 * 86_400)}, "stale: drill autoscaler: 8.0 days old (at most 7)"),
        (
            {"passed": False, "failures": ("scaled up while 2 replicas wait",)},
            "contradicts: drill autoscaler: scaled up",
        ),
    ],
)
def test_one_bad_piece_of_evidence_makes_only_its_claim_fall(
    readiness: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], fell: str
) -> None:
    recorded(tmp_path)
    drill = next(need for need in all_needs() if need.title == "drill autoscaler")
    write_evidence(tmp_path / "evidence", supporting(drill, **changes))
    assert readiness.main(["--judge-only", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "claim autoscaling fell" in printed and fell in printed
    assert "1 of 8 claims fell" in printed


def test_only_supporting_evidence_of_this_revision_is_reused(readiness: ModuleType, tmp_path: Path) -> None:
    recorded(tmp_path)
    needs = all_needs()
    slow = next(need for need in needs if need.title == "drill region-loss")
    late = supporting(slow, figures={**FIGURES, "secondsToMinServing": 301.0})
    write_evidence(tmp_path / "evidence", late)
    now = time.time()
    kept = readiness.usable(needs, tmp_path / "evidence", Expected(checkout_revision(ROOT), now))
    assert {need.title for need in needs} - kept == {"drill region-loss"}, (
        "it is late for one claim, so it is run again"
    )
    assert not readiness.usable(needs, tmp_path / "evidence", Expected("fedcba987654", now))


def test_tree_that_changes_during_the_run_makes_its_evidence_stale(
    readiness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path)
    revisions = iter([checkout_revision(ROOT), "0123456789ab+edited"])
    monkeypatch.setattr(readiness, "checkout_revision", lambda folder: next(revisions))
    assert readiness.main(["--out", str(tmp_path)]) == 1
    assert "made for another revision (expected 0123456789ab+edited" in capsys.readouterr().out


def test_skipped_evidence_is_missing_also_if_an_earlier_run_made_it(
    readiness: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path)
    assert readiness.main(["--skip", "drill autoscaler", "--judge-only", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "claim autoscaling fell" in printed and "missing: drill autoscaler" in printed
    assert "1 of 8 claims fell" in printed


def test_unknown_evidence_cannot_be_skipped(readiness: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert readiness.main(["--skip", "drill no-such"]) == 2
    assert "evidence drill no-such: not found" in capsys.readouterr().out
    assert readiness.main(["--list"]) == 0
    assert f"{EvidenceKind.DRILL.value} region-loss  (full review)" in capsys.readouterr().out


def test_planted_bug_makes_the_claim_of_its_invariant_fall(
    readiness: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All evidence supports the claims except the simulations, which the command runs with the bug."""
    bug = "quota-check-skipped"
    for need in all_needs():
        if need.kind is not EvidenceKind.SIMULATIONS:
            found = supporting(need, revision=f"{current_revision()}+planted:{bug}")
            write_evidence(tmp_path / "planted", found)
    assert readiness.main(["--quick", "--plant", bug, "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "claim tenant-isolation fell" in printed and "S3: seed" in printed
