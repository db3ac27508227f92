"""Mutants of code: every kind of change is made once, at its place, and text for people is left alone."""

from __future__ import annotations

import ast
from collections import Counter

import code_mutants
import decision_modules
import mutant_runs
import mutate
import pytest
from code_mutants import Mutant


def changes(text: str) -> list[str]:
    return [mutant.what for mutant in code_mutants.mutants_of("m.py", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a < b", ["Lt → LtE"]),
        ("x = a in b", ["In → NotIn"]),
        ("x = a and b", ["And → Or", "without operand 1", "without operand 2"]),
        ("x = not a", ["without not"]),
        ("x = a + b", ["Add → Sub"]),
        ("if a:\n    x = b", ["negated condition"]),
        ("x = True", ["True → False"]),
        ("x = 3", ["3 → 4"]),
        ("for a in b:\n    continue", ["continue → break"]),
        ("def f():\n    return a", ["return nothing"]),
        ("a.append(b)", ["statement left out"]),
        ("x += a", ["statement left out"]),
    ],
)
def test_each_decision_has_its_mutants(text: str, expected: list[str]) -> None:
    assert changes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""A docstring."""',
        "x = f'{a + 1}'",
        "raise ValueError(a + 1)",
        "assert a < b",
        "log.info(a + 1)",
        "def describe():\n    return a + 1",
        "x = 'a' + b",
        "LIMIT = 16",
        "class A(Struct, frozen=True): ...",
        "def f(a: 'int | None' = None) -> None: ...",
    ],
)
def test_text_for_people_has_no_mutants(text: str) -> None:
    assert changes(text) == []


def test_mutated_module_differs_at_one_place_only() -> None:
    text = "def f(a, b):\n    return a < b and a + b > 3\n"
    mutants = code_mutants.mutants_of("m.py", text)
    whole = ast.unparse(ast.parse(text))
    mutated = {ast.unparse(code_mutants.mutated(text, mutant.place)) for mutant in mutants}
    assert len(mutated) == len(mutants) and whole not in mutated
    assert "def f(a, b):\n    return a <= b and a + b > 3" in mutated
    with pytest.raises(ValueError, match="not found"):
        code_mutants.mutated(text, len(mutants))


def test_key_of_a_mutant_ignores_the_line_number() -> None:
    (first,) = code_mutants.mutants_of("m.py", "x = 3")
    (moved,) = code_mutants.mutants_of("m.py", "\n\nx = 3")
    assert first.key == moved.key and first.line != moved.line


def outcome(killed_by: str) -> mutate.Outcome:
    return mutate.Outcome(Mutant("m.py", 1, 0, "3 → 4", "x = 3"), mutant_runs.MutantRun(killed_by, 1, 1.0))


def test_score_below_the_minimum_fails_and_names_survivors(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.report([outcome("tests")] * 9 + [outcome("")]) == 0
    assert mutate.report([outcome("tests")] * 8 + [outcome("")] * 2) == 1
    assert mutate.report([outcome("simulations")] * 10) == 0
    said = capsys.readouterr().out
    assert said.count("survived: m.py:1: 3 → 4") == 3
    assert "score 80.0%: too low" in said


def test_sample_has_as_many_mutants_of_each_group() -> None:
    drawn = Counter(mutate.group_of(mutant) for mutant in mutate.draw(decision_modules.GROUPS, 50, 1))
    assert drawn == dict.fromkeys(decision_modules.GROUPS, 10)


def test_judged_mutants_exist_and_are_not_drawn() -> None:
    """A judged line that no longer exists would hide nothing and mislead its reader."""
    every = {
        mutant.key
        for group in decision_modules.GROUPS
        for path in decision_modules.modules(group)
        for mutant in code_mutants.mutants_of(str(path.relative_to(decision_modules.ROOT)), path.read_text())
    }
    judged = mutate.judged()
    assert set(judged) <= every
    assert all(judged.values())
    assert not set(judged) & {mutant.key for mutant in mutate.draw(decision_modules.GROUPS, 10**6, 1)}


LIMIT = "src/holdfast/model/grant_limit.py"
LIMIT_TEST = "tests/authority/test_grant_leases.py"


@pytest.mark.slow
def test_mutant_is_killed_by_a_test_that_reaches_it() -> None:
    text = (decision_modules.ROOT / LIMIT).read_text()
    source = "return len(self.expired) == len(self.copies)"
    mutant = next(m for m in code_mutants.mutants_of(LIMIT, text) if m.source == source and m.what == "Eq → NotEq")
    assert mutant_runs.run_mutant(mutant, [LIMIT_TEST], seeds=0).killed_by == "tests"
    assert mutant_runs.run_mutant(mutant, [], seeds=0).killed_by == ""
