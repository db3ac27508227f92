"""What worlds never exercise is listed with why and with the test that does; the list names only what exists."""

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
def test_a_reason_given_elsewhere_exists_and_so_does_the_test_that_sees_it(name: str) -> None:
    assert name in ALL_REASONS
    path, _, function = EXEMPTIONS[name].test.partition("::")
    text = (ROOT / path).read_text()
    found = re.search(rf"^(async )?def {function}\b.*?(?=^(?:async )?def |^@|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{path} has no {function}"


def test_what_was_never_seen_is_told_with_its_reason() -> None:
    told = "\n".join(Coverage().lines())
    assert "reasons: 0 of" in told and f"transitions: 0 of {len(LIFECYCLE_TRANSITIONS)}; never: " in told
    assert f"  ResourceLimitsEnforced: {EXEMPTIONS['ResourceLimitsEnforced']}" in told


def test_what_was_seen_is_not_listed() -> None:
    seen = Coverage()
    seen.transitions.update(LIFECYCLE_TRANSITIONS)
    seen.reasons.update(ALL_REASONS)
    told = "\n".join(line for line in seen.lines() if not line.startswith("fault kinds"))
    assert "never" not in told and "ResourceLimitsEnforced" not in told


def _ran(**faults: int) -> Coverage:
    run = Coverage()
    run.transitions.update({("Queued", "Bound"): 3})
    struck = {name.replace("_", " "): count for name, count in faults.items()}
    run.finish_seed(struck, [name for name, count in struck.items() if count])
    return run


def test_what_hardly_any_seed_has_is_told_with_its_share_however_often_it_strikes_there() -> None:
    total = Coverage()
    total.add(_ran(disk_full=500, conflict=1, slow_store=1))
    for number in range(399):
        total.add(_ran(conflict=1, slow_store=int(number < 3)))
    (faults,) = (line for line in total.lines() if line.startswith("fault kinds"))
    assert "; in fewer than 1% of 400 seeds: disk full (0.2%)" in faults
    assert "conflict" not in faults and "slow store" not in faults, "four of four hundred are enough"
    transitions = next(line for line in total.lines() if line.startswith("transitions"))
    assert "in fewer" not in transitions


def test_a_fault_that_strikes_and_is_never_felt_has_no_share() -> None:
    run = Coverage()
    run.finish_seed({"disk full": 3, "conflict": 1}, ["conflict"])
    (faults,) = (line for line in run.lines() if line.startswith("fault kinds"))
    assert faults.endswith("in fewer than 1% of 1 seeds: disk full (0.0%)")


def test_shares_are_kept_with_a_long_run(tmp_path: Path) -> None:
    save_totals(tmp_path / "hours", RunTotals(coverage=_ran(conflict=2)))
    assert load_totals(tmp_path / "hours").coverage == _ran(conflict=2)
