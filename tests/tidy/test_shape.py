"""Size limits of files and functions, module docstrings, type annotations and the place of limits."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from holdfast.model import limits

FILE_LINES_MAX = 500
TEST_FILE_LINES_MAX = 800  # lists of test cases may be long
FUNCTION_LINES_MAX = 70
FORBIDDEN = {"util", "utils", "helper", "helpers", "common", "base", "manager", "managers", "misc", "stuff"}

# Exceptions, each with its reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}


def relative(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def test_files_are_within_the_length_limit(root: Path, files: list[Path]) -> None:
    python = [p for p in files if p.suffix == ".py"]
    over = {}
    for path in python:
        name, lines = relative(root, path), len(path.read_text().splitlines())
        limit = TEST_FILE_LINES_MAX if name.startswith("tests/") else FILE_LINES_MAX
        if lines > limit and name not in LONG_FILES:
            over[name] = lines
    assert not over, f"too long, split: {over}"


def test_functions_are_within_the_length_limit(root: Path, sources: dict[Path, ast.Module]) -> None:
    over = {}
    for path, tree in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                # Decorators and the docstring do not count.
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                lines = (node.end_lineno or 0) - first.lineno + 1
                name = f"{relative(root, path)}:{node.name}"
                if lines > FUNCTION_LINES_MAX and name not in LONG_FUNCTIONS:
                    over[name] = lines
    assert not over, f"over {FUNCTION_LINES_MAX} lines: {over}"


def test_every_module_has_a_docstring(root: Path, sources: dict[Path, ast.Module]) -> None:
    missing = [relative(root, p) for p, tree in sources.items() if tree.body and not ast.get_docstring(tree)]
    assert not missing, f"modules without a docstring: {missing}"


def test_module_names_are_specific(root: Path, sources: dict[Path, ast.Module]) -> None:
    bad = []
    for path, tree in sources.items():
        bad += [relative(root, path) for part in path.relative_to(root).with_suffix("").parts if part in FORBIDDEN]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                words = {word.lower() for word in re.findall(r"[A-Z][a-z]*", node.name)}
                if words & FORBIDDEN:
                    bad.append(f"{relative(root, path)}:{node.name}")
    assert not bad, f"util, helper, common, base, manager and misc are not specific: {bad}"


def test_functions_have_type_annotations(root: Path, sources: dict[Path, ast.Module]) -> None:
    """mypy accepts bare containers; no function returns one."""
    bare = []
    for path, tree in sources.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef)
                and isinstance(node.returns, ast.Name)
                and node.returns.id in ("dict", "list", "tuple")
            ):
                bare.append(f"{relative(root, path)}:{node.name}")
    assert not bare, f"returns an untyped container: {bare}"


def test_limit_with_one_user_is_in_its_module(root: Path, sources: dict[Path, ast.Module]) -> None:
    """model/limits.py holds only limits that several packages use."""
    production = root / "src" / "holdfast"
    used_in: dict[str, set[str]] = {name: set() for name in vars(limits) if name.isupper()}
    for path, tree in sources.items():
        if path.is_relative_to(production) and not path.is_relative_to(production / "sim"):
            package = path.relative_to(production).parts[0]
            for node in ast.walk(tree):
                read = [node.attr] if isinstance(node, ast.Attribute) else []
                read += [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else []
                for name in used_in.keys() & set(read):
                    used_in[name].add(package)
    single = {name: packages for name, packages in used_in.items() if len(packages) < 2}
    assert not single, f"used by one package, so it belongs there: {single}"
