"""What the tidiness tests look at: the tree as git sees it, new files included."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tree_files() -> list[Path]:
    """Files that are, or would be, committed; every text file outside ignored folders where there is no git."""
    asked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if asked.returncode == 0:
        return [ROOT / line for line in asked.stdout.splitlines() if (ROOT / line).is_file()]
    hidden_but_ours = {".ci", ".gitignore"}
    made = {"__pycache__", "node_modules", "dist", "build", "out"}
    found = []
    for path in ROOT.rglob("*"):
        parts = set(path.relative_to(ROOT).parts)
        hidden = {part for part in parts if part.startswith(".")} - hidden_but_ours
        if path.is_file() and not hidden and not parts & made:
            found.append(path)
    return found


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[Path]:
    return tree_files()


@pytest.fixture(scope="session")
def sources(files: list[Path]) -> dict[Path, ast.Module]:
    """Every Python file of the product, parsed."""
    product = [p for p in files if p.suffix == ".py" and p.is_relative_to(ROOT / "src")]
    return {p: ast.parse(p.read_text(), filename=str(p)) for p in product}
