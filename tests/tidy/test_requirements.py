"""Every requirement of the course texts is met, met in part with what is missing, or refused with a reason; and what
shows it exists and runs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.drills.catalog import DRILLS
from holdfast.sim.scenario_files import scenario_names

# Requirements that are met only in part. The number may only fall: whoever meets one lowers it.
IN_PART_MAX = 0
TEXTS = {"000": 24, "001": 19, "002": 30, "003": 127, "004": 25}


def every_reference(generator: ModuleType) -> Iterator[tuple[str, str]]:
    """Pairs of requirement and reference."""
    for text in generator.course_texts():
        for item in text.requirement:
            for reference in item.shown_by:
                yield item.id, reference


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def functions_of(path: Path) -> dict[str, bool]:
    """The test functions of a file, and whether each may pass: one that is always skipped or expected to fail shows
    nothing."""
    body = ast.parse(path.read_text()).body
    marks = [
        ast.unparse(n.value) for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"
    ]
    found = {}
    for function in body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_"):
            said = " ".join((*marks, *map(ast.unparse, function.decorator_list)))
            found[function.name] = not re.search(r"mark\.(skip|xfail)\b", said)
    return found


def problem(root: Path, reference: str) -> str:
    """Why a reference shows nothing; empty if it exists."""
    kind, _, name = reference.partition(" ")
    if kind == "drill":
        tested = (root / "tests" / "e2e" / "test_drill_failures.py").read_text()
        if name not in DRILLS:
            return "no such drill"
        return "" if re.search(rf'(drill\(platform, |"drill",\s+"run",\s+)"{name}"', tested) else "no test runs it"
    if kind == "scenario":
        return "" if name in scenario_names() else "no such scenario"
    path, _, part = reference.partition("::" if reference.startswith("tests/") else "#")
    if not (root / path).is_file():
        return "no such file"
    if path.startswith("tests/"):
        functions = functions_of(root / path) if Path(path).name.startswith("test_") else {}
        if part not in functions:
            return "no such test"
        return "" if functions[part] else "the test is always skipped or expected to fail"
    if not path.startswith("docs/") or not path.endswith(".md"):
        return "neither a test, a drill, a scenario nor a page"
    return "" if not part or part in anchors(root / path) else "no such heading"


def test_requirements_are_numbered_in_order(generator: ModuleType) -> None:
    texts = generator.course_texts()
    assert {text.number: len(text.requirement) for text in texts} == TEXTS
    for text in texts:
        numbers = [int(item.id.removeprefix(f"{text.number}-")) for item in text.requirement]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(item.says.endswith(".") or item.says.endswith("?") for item in text.requirement)


def test_every_requirement_is_shown_or_refused(generator: ModuleType) -> None:
    items = [item for text in generator.course_texts() for item in text.requirement]
    assert [item.id for item in items if not item.shown_by and not item.refused] == []
    assert [item.id for item in items if item.missing and item.refused] == []
    in_part = [f"{item.id}: {item.missing}" for item in items if item.missing]
    assert len(in_part) <= IN_PART_MAX, "\n".join(in_part)
    assert len(in_part) == IN_PART_MAX, f"next: lower IN_PART_MAX to {len(in_part)}"


def test_every_reference_of_a_requirement_exists(generator: ModuleType, root: Path) -> None:
    found = [(where, reference, problem(root, reference)) for where, reference in every_reference(generator)]
    assert [row for row in found if row[2]] == []


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("drill flood", "no such drill"),
        ("scenario flood", "no such scenario"),
        ("tests/tidy/test_requirements.py::test_absent", "no such test"),
        ("tests/tidy/conftest.py::generator", "no such test"),
        ("docs/recovery.md#absent", "no such heading"),
        ("docs/absent.md", "no such file"),
        ("src/holdfast/__init__.py", "neither a test, a drill, a scenario nor a page"),
        ("drill region-loss", ""),
        ("docs/recovery.md#the-guarantee-and-when-it-is-not-backed", ""),
    ],
)
def test_reference_that_shows_nothing_is_found(root: Path, reference: str, expected: str) -> None:
    assert problem(root, reference) == expected


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        ("def test_it(): ...", True),
        ("@pytest.mark.skipif(no_tool, reason='')\ndef test_it(): ...", True),
        ("@pytest.mark.skip\ndef test_it(): ...", False),
        ("@pytest.mark.xfail(strict=True)\ndef test_it(): ...", False),
        ("pytestmark = [pytest.mark.slow, pytest.mark.skip(reason='')]\ndef test_it(): ...", False),
    ],
)
def test_test_that_never_runs_shows_nothing(tmp_path: Path, source: str, shows: bool) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_new.py").write_text(source)
    assert (problem(tmp_path, "tests/test_new.py::test_it") == "") is shows


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it collects 130 files: seconds on an idle machine, minutes on a loaded one
def test_every_referenced_test_is_collected(generator: ModuleType, root: Path) -> None:
    wanted = {reference for _, reference in every_reference(generator) if reference.startswith("tests/")}
    paths = sorted({reference.partition("::")[0] for reference in wanted})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0", *paths]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    collected = {line.partition("[")[0] for line in ran.stdout.splitlines()}
    assert wanted - collected == set()
