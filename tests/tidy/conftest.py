"""Fixtures with the files of the tree as git sees it, including new files, and the generator of pages."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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


@pytest.fixture(scope="session")
def generator() -> ModuleType:
    """scripts/generate_docs.py as a module."""
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its structs resolve their annotations by module name
    spec.loader.exec_module(module)
    return module
