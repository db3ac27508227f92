"""What worlds never exercise is listed with why and with the test that does; the list names only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.sim.coverage import REASONS, TABLE, Coverage
from holdfast.sim.unseen import ELSEWHERE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_reason_given_elsewhere_exists_and_so_does_the_test_that_sees_it(name: str) -> None:
    assert name in REASONS
    path, _, function = ELSEWHERE[name].test.partition("::")
    text = (ROOT / path).read_text()
    found = re.search(rf"^(async )?def {function}\b.*?(?=^(?:async )?def |^@|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{path} has no {function}"


def test_what_was_never_seen_is_told_with_its_reason() -> None:
    told = "\n".join(Coverage().lines())
    assert "reasons: 0 of" in told and f"transitions: 0 of {len(TABLE)}; never: " in told
    assert f"  Confined: {ELSEWHERE['Confined']}" in told


def test_what_was_seen_is_not_listed() -> None:
    seen = Coverage()
    seen.transitions.update(TABLE)
    seen.reasons.update(REASONS)
    told = "\n".join(line for line in seen.lines() if not line.startswith("fault kinds"))
    assert "never" not in told and "Confined" not in told
