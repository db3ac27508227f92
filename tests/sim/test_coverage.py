"""What worlds never exercise is listed with a reason, and the list names only what exists."""

from __future__ import annotations

from pathlib import Path

from holdfast.sim.coverage import REASONS, Coverage
from holdfast.sim.unseen import ELSEWHERE

ROOT = Path(__file__).parents[2]


def test_reasons_seen_elsewhere_exist_and_so_do_the_tests_that_see_them() -> None:
    assert set(ELSEWHERE) <= REASONS
    for why in ELSEWHERE.values():
        for word in why.split():
            if word.startswith("tests/"):
                assert (ROOT / word).exists(), why


def test_what_was_never_seen_is_told_with_its_reason() -> None:
    told = "\n".join(Coverage().lines())
    assert "reasons: 0 of" in told
    assert f"  Confined: {ELSEWHERE['Confined']}" in told
