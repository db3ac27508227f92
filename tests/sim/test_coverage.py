"""Coverage of simulations, and its exemptions: reasons that only other tests produce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.sim.coverage import ALL_REASONS, LIFECYCLE_TRANSITIONS, Coverage
from holdfast.sim.coverage_exemptions import EXEMPTIONS
from holdfast.sim.parallel_runs import RunTotals
from holdfast.sim.run_totals import load_totals, save_totals

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", EXEMPTIONS)
def test_exempted_reason_and_its_test_exist(name: str) -> None:
    assert name in ALL_REASONS
    path, _, function = EXEMPTIONS[name].test.partition("::")
    text = (ROOT / path).read_text()
    found = re.search(rf"^(async )?def {function}\b.*?(?=^(?:async )?def |^@|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{path} has no {function}"


def test_uncovered_reason_is_listed_with_its_exemption() -> None:
    text = "\n".join(Coverage().lines())
    assert "reasons: 0 of" in text and f"transitions: 0 of {len(LIFECYCLE_TRANSITIONS)}; never: " in text
    assert f"  ResourceLimitsEnforced: {EXEMPTIONS['ResourceLimitsEnforced']}" in text


def test_covered_reason_is_not_listed() -> None:
    coverage = Coverage()
    coverage.transitions.update(LIFECYCLE_TRANSITIONS)
    coverage.reasons.update(ALL_REASONS)
    text = "\n".join(line for line in coverage.lines() if not line.startswith("fault kinds"))
    assert "never" not in text and "ResourceLimitsEnforced" not in text


def _coverage_of(**faults: int) -> Coverage:
    run = Coverage()
    run.transitions.update({("Queued", "Bound"): 3})
    counts = {name.replace("_", " "): count for name, count in faults.items()}
    run.finish_seed(counts, [name for name, count in counts.items() if count])
    return run


def test_rare_fault_kind_is_listed_with_its_fraction_of_seeds() -> None:
    total = Coverage()
    total.add(_coverage_of(disk_full=500, conflict=1, slow_store=1))
    for number in range(399):
        total.add(_coverage_of(conflict=1, slow_store=int(number < 3)))
    (faults,) = (line for line in total.lines() if line.startswith("fault kinds"))
    assert "; in fewer than 1% of 400 seeds: disk full (0.2%)" in faults
    assert "conflict" not in faults and "slow store" not in faults, "four of four hundred are enough"
    transitions = next(line for line in total.lines() if line.startswith("transitions"))
    assert "in fewer" not in transitions


def test_fault_without_effect_has_no_fraction() -> None:
    run = Coverage()
    run.finish_seed({"disk full": 3, "conflict": 1}, ["conflict"])
    (faults,) = (line for line in run.lines() if line.startswith("fault kinds"))
    assert faults.endswith("in fewer than 1% of 1 seeds: disk full (0.0%)")


def test_fractions_are_saved_with_run_totals(tmp_path: Path) -> None:
    save_totals(tmp_path / "hours", RunTotals(coverage=_coverage_of(conflict=2)))
    assert load_totals(tmp_path / "hours").coverage == _coverage_of(conflict=2)
