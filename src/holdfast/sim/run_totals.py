"""Totals of `--hours` in a file, so that the next run continues.

The file is replaced atomically after every seed. A killed run loses only its seeds in flight, which are repeated.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from holdfast.sim.coverage import Coverage
from holdfast.sim.parallel_runs import RunTotals


def save_totals(path: Path, total: RunTotals) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    totals = {name: getattr(total, name) for name in RunTotals.__struct_fields__ if name != "coverage"}
    coverage_sets = {
        name: [[_plain(key), count] for key, count in sorted(counter.items())]
        for name, counter in _counters(total.coverage).items()
    }
    part.write_text(json.dumps({**totals, "coverage": coverage_sets, "covered": total.coverage.seeds}))
    part.replace(path)


def load_totals(path: Path) -> RunTotals:
    """The stored totals; empty totals if there is no file."""
    if not path.exists():
        return RunTotals()
    totals: dict[str, Any] = json.loads(path.read_text())
    coverage = Coverage(seeds=totals.pop("covered", 0))
    counters = _counters(coverage)
    for name, pairs in totals.pop("coverage", {}).items():
        if name in counters:
            counters[name].update({_key(key): count for key, count in pairs})
    known = {name: value for name, value in totals.items() if name in RunTotals.__struct_fields__}
    return RunTotals(**known, coverage=coverage)


def _counters(coverage: Coverage) -> dict[str, Counter[Any]]:
    found = {field.name: getattr(coverage, field.name) for field in msgspec.structs.fields(Coverage)}
    return {name: counter for name, counter in found.items() if isinstance(counter, Counter)}


def _plain(key: Any) -> Any:
    return list(key) if isinstance(key, tuple) else key


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
