"""Writes docs/benchmark-figures.md from what the last runs left in bench/out: `python -m bench.page`.

Figures in the docs come from here alone, each with the revision it was measured at and the machine it was measured on.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from bench.__main__ import NAMES, OUT

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmark-figures.md"
PARTS = ("client", "global", "region", "hollow")


def main() -> int:
    kept = [json.loads(path.read_text()) for name in NAMES if (path := OUT / f"{name}.json").exists()]
    if not kept:
        print("bench: nothing has been measured yet; make bench does")
        return 1
    PAGE.write_text(page(kept, machine()))
    print(f"wrote {PAGE}")
    return 0


def machine() -> str:
    return f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def page(kept: list[dict[str, Any]], where: str) -> str:
    lines = [
        "<!-- Made by `python -m bench.page` from bench/out. Run `make bench` first. -->",
        "",
        "# Benchmark figures",
        "",
        f"Measured on {where}. What each figure means: [benchmarks](benchmarks.md).",
    ]
    for run in kept:
        figures = run["figures"]
        lines += ["", f"## {run['name']}", "", f"At revision `{run['revision']}`."]
        if run["name"] == "pipeline":
            lines += _parts(figures)
        lines += ["", "| figure | value |", "|---|---:|"]
        lines += [f"| `{name}` | {value:,} |" for name, value in figures.items()]
    return "\n".join(lines) + "\n"


def _parts(figures: dict[str, float]) -> list[str]:
    """Where the time goes: processor time per replica, by process."""
    shapes = [name.removesuffix("_per_s") for name in figures if name.endswith("_per_s") and name != "bound_per_s"]
    lines = ["", "Processor time per replica, in microseconds, by process:", ""]
    lines += [f"| shape | replicas/s | {' | '.join(PARTS)} |", f"|---|---:|{'---:|' * len(PARTS)}"]
    for shape in shapes:
        cells = (f"{figures.get(f'{shape}_{part}_us_per_replica', 0):,}" for part in PARTS)
        lines.append(f"| {shape} | {figures[f'{shape}_per_s']:,} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
