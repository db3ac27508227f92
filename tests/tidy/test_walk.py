"""Functions that the docs link to exist, and the walk in docs/design.md states its true length."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

LINK = re.compile(r"\[`([\w.]+)`\]\((?:\.\./)*(src/holdfast/[\w/]+\.py)\)")
HOP = re.compile(r"^\d+\. \[`[\w.]+`\]\(\.\./src/holdfast/(\w+)/", re.MULTILINE)
# Upper bounds. A longer walk means that the path of a replica through the packages has become harder to follow.
HOPS_MAX, PACKAGE_CHANGES_MAX = 59, 32


def defined_names(source: Path) -> set[str]:
    """Functions and classes of a module; methods as `Class.method`."""
    found: set[str] = set()

    def add(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(f"{prefix}{child.name}")
                if isinstance(child, ast.ClassDef):
                    add(child, f"{prefix}{child.name}.")

    add(ast.parse(source.read_text()), "")
    return found


def walk_section(root: Path) -> str:
    page = (root / "docs" / "design.md").read_text()
    return page[page.index("## A walk through the code") :].split("\n## ", 2)[0]


def test_linked_functions_exist(root: Path) -> None:
    broken = []
    for page in (root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")):
        for name, path in LINK.findall(page.read_text()):
            source = root / path
            if not source.is_file() or name not in defined_names(source):
                broken.append(f"{page.relative_to(root)}: {name} in {path}")
    assert not broken


def test_walk_states_its_length_and_is_within_bounds(root: Path) -> None:
    section = walk_section(root)
    packages = HOP.findall(section)
    changes = sum(one != other for one, other in pairwise(packages))
    assert f"{len(packages)} hops and {changes} changes of package" in section.replace("\n", " ")
    assert len(packages) <= HOPS_MAX
    assert changes <= PACKAGE_CHANGES_MAX


def test_walk_numbers_its_hops_in_order(root: Path) -> None:
    for part in walk_section(root).split("\n### ")[1:]:
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", part, re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(HOP.findall(part)) == len(numbers)
