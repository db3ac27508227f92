"""The import contracts of pyproject.toml stay strict. `make layers` checks the imports themselves."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def contracts(root: Path) -> list[dict[str, Any]]:
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def test_import_contracts_have_no_exceptions(root: Path) -> None:
    weaker = {"ignore_imports", "exhaustive_ignores", "skip_descendants"}
    found = [f"{c['name']}: {key}" for c in contracts(root) for key in weaker & c.keys()]
    assert not found, found


def test_layer_contract_names_every_package(root: Path) -> None:
    layers = next(c for c in contracts(root) if c["type"] == "layers")
    named = {name.strip() for line in layers["layers"] for name in line.split("|")}
    packages = {path.parent.name for path in (root / "src" / "holdfast").glob("*/__init__.py")}
    assert layers["exhaustive"]
    assert named == packages
