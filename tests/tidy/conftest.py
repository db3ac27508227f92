"""Fixtures with the files of the tree as git sees it, including new files."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tree_files() -> list[Path]:
    """Committed and new files. Without git: every file outside ignored folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    tracked_hidden = {".ci", ".gitignore"}
    generated = {"__pycache__", "node_modules", "dist", "build", "out"}
    found = []
    for path in ROOT.rglob("*"):
        parts = set(path.relative_to(ROOT).parts)
        hidden = {part for part in parts if part.startswith(".")} - tracked_hidden
        if path.is_file() and not hidden and not parts & generated:
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
    """Every Python file under src, parsed."""
    product = [p for p in files if p.suffix == ".py" and p.is_relative_to(ROOT / "src")]
    return {p: ast.parse(p.read_text(), filename=str(p)) for p in product}
