"""The table of claims names only evidence that exists, and covers every invariant of the simulation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.test_mutation_results import RECORDED_SEEDS

from holdfast.drills.catalog import DRILLS
from holdfast.readiness.claims import CLAIMS, DesignClaim, all_needs
from holdfast.readiness.evidence import EvidenceKind, evidence_file
from holdfast.sim.report_wording import INVARIANTS
from holdfast.sim.scenario_files import scenario_names

ROOT = Path(__file__).parents[2]
CONTRADICT_EVERY_CLAIM = {"failure", "livelock"}
"""Not properties of the design but broken runs, so no claim names them."""


def test_every_invariant_belongs_to_a_claim() -> None:
    claimed = {name for claim in CLAIMS for name in claim.invariants}
    assert claimed | CONTRADICT_EVERY_CLAIM == set(INVARIANTS)


def test_there_are_eight_claims_with_different_names() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS) == 8


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_claim_needs_several_kinds_of_evidence_and_names_its_risks(claim: DesignClaim) -> None:
    kinds = {need.kind for need in claim.needs}
    assert len(kinds) >= 4 and EvidenceKind.DRILL in kinds and EvidenceKind.MUTATION in kinds
    assert sum(need.quick for need in claim.needs) >= 3
    assert claim.risks


def test_every_piece_of_evidence_exists_in_the_tree() -> None:
    known = {
        EvidenceKind.SCENARIO: set(scenario_names()),
        EvidenceKind.DRILL: set(DRILLS),
        EvidenceKind.MUTATION: set(RECORDED_SEEDS),
        EvidenceKind.BENCHMARK: {"recovery"},
    }
    for need in all_needs():
        if need.kind in known:
            assert need.name in known[need.kind], need.title
        elif need.kind in (EvidenceKind.TEST, EvidenceKind.ALERTS):
            file, _, name = need.name.partition("::")
            assert (ROOT / file).is_file(), need.title
            assert f"def {name}(" in (ROOT / file).read_text() or not name, need.title


def test_every_piece_of_evidence_has_its_own_file() -> None:
    files = [evidence_file(Path("x"), need.kind, need.name) for need in all_needs()]
    assert len(set(files)) == len(files)


def test_quick_evidence_has_no_drills_and_no_benchmarks() -> None:
    slow = {EvidenceKind.DRILL, EvidenceKind.BENCHMARK}
    assert not [need.title for need in all_needs(quick=True) if need.kind in slow]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_page_names_each_claim_with_its_drills(claim: DesignClaim) -> None:
    rows = (ROOT / "docs" / "readiness.md").read_text().splitlines()
    (row,) = [line for line in rows if line.startswith(f"| `{claim.name}`:")]
    for need in claim.needs:
        if need.kind is EvidenceKind.DRILL and claim.name != "debuggable-decisions":
            assert f"`{need.name}`" in row, f"{claim.name}: {need.title} is missing from docs/readiness.md"
