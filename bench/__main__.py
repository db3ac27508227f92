"""Runs benchmarks: `python -m bench` runs all, `python -m bench NAME…` some. Options select a part of one.

Each benchmark is a module with `async def run() -> dict`. Its figures are printed as a table and stored in
`bench/out/NAME.json` with Git revision and time. Figures outside the module's `BOUNDS` exit with 1. A partial run
(`--shape spread`) has its own file, and only its figures are checked. A run of another size is not checked.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.model.times import seconds_text
from holdfast.readiness.revision import checkout_revision

NAMES = (
    "store",
    "authority",
    "conflicts",
    "etcd",
    "planner",
    "regions",
    "api",
    "pipeline",
    "recovery",
    "losses",
    "openb",
)
"""In the order in which they run."""
OUT = Path(__file__).parent / "out"


class Unknown(Exception):
    """An option has an unknown value. The message lists the known ones."""


class Skipped(Exception):
    """A benchmark cannot run, because data or a program is missing. The message names it."""


def flat(figures: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flattens nested figures to dotted names."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{before}{name}."))
        else:
            found[before + name] = value
    return found


def outside(figures: Mapping[str, Any], bounds: Mapping[str, tuple[float | None, float | None]]) -> list[str]:
    """Messages for figures that are missing or outside their bounds."""
    wrong = []
    for name, (least, most) in bounds.items():
        value = figures.get(name)
        if value is None:
            wrong.append(f"{name}: missing")
        elif least is not None and value < least:
            wrong.append(f"{name}: too low (expected at least {least:,}, found {value:,})")
        elif most is not None and value > most:
            wrong.append(f"{name}: too high (expected at most {most:,}, found {value:,})")
    return wrong


def table(name: str, figures: Mapping[str, Any], took_s: float) -> str:
    width = max((len(row) for row in figures), default=0)
    rows = [
        f"  {row:{width}}  {value:>14,}" if not isinstance(value, str) else f"  {row:{width}}  {value}"
        for row, value in figures.items()
    ]
    return "\n".join([f"{name} ({took_s:.0f} s)", *rows])


SIZES = ("nodes", "replicas")
"""Options that change the size, so that the bounds do not apply."""


def measure(name: str, options: dict[str, Any]) -> list[str]:
    """Runs one benchmark, prints and stores its figures. Returns messages for figures outside their bounds."""
    module = importlib.import_module(f"bench.{name}")
    began = time.monotonic()
    figures = flat(asyncio.run(module.run(**options)))
    print(table(name, figures, time.monotonic() - began), flush=True)
    OUT.mkdir(exist_ok=True)
    revision, measured_at = checkout_revision(OUT.parent), seconds_text(time.time())
    result = {"name": name, "revision": revision, "measuredAt": measured_at, "figures": figures}
    (OUT / f"{name}{_suffix(options)}.json").write_text(json.dumps(result, indent=2) + "\n")
    if any(size in options for size in SIZES):
        print(f"{name}: bounds not checked, because the size is not the default", flush=True)
        return []
    bounds = getattr(module, "BOUNDS", {})
    if _suffix(options):
        bounds = {figure: bound for figure, bound in bounds.items() if figure in figures}
    return outside(figures, bounds)


def _suffix(options: Mapping[str, Any]) -> str:
    """File name suffix of a partial run; empty for a full run."""
    parts = [
        str(argument)
        for key, value in options.items()
        if key != "data"
        for argument in (value if isinstance(value, tuple) else (f"{key}{value}",))
    ]
    return "".join(f"-{argument}" for argument in parts)


def _options(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """The given options that the benchmark supports."""
    options = {
        "data": chosen.data,
        "shapes": tuple(chosen.shape),
        "nodes": chosen.nodes,
        "replicas": chosen.replicas,
        "traces": tuple(chosen.trace),
        "policies": tuple(chosen.policy),
        "seeds": tuple(chosen.seed),
    }
    takes = inspect.signature(importlib.import_module(f"bench.{name}").run).parameters
    return {key: value for key, value in options.items() if value and key in takes}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--data", default="", help="directory of the published traces (openb); default ../shared/data")
    parser.add_argument("--shape", action="append", default=[], help="shape (pipeline); may be repeated")
    parser.add_argument(
        "--nodes", type=int, default=0, help="number of nodes (pipeline, planner; recovery: per region)"
    )
    parser.add_argument("--replicas", type=int, default=0, help="number of replicas (pipeline)")
    parser.add_argument("--trace", action="append", default=[], help="trace, or `all` (openb); may be repeated")
    parser.add_argument("--policy", action="append", default=[], help="policy (openb); may be repeated")
    parser.add_argument("--seed", action="append", default=[], type=int, help="seed (openb); may be repeated")
    return parser


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        print(f"error: benchmark {', '.join(unknown)}: not found (expected {', '.join(NAMES)})", file=sys.stderr)
        return 2
    wrong: list[str] = []
    for name in chosen.names or NAMES:
        try:
            wrong += [f"{name}: {problem}" for problem in measure(name, _options(name, chosen))]
        except Unknown as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Skipped as reason:
            print(f"{name} skipped: {reason}", flush=True)
    for problem in wrong:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    from bench.__main__ import main as run_main  # one module object, so that Skipped is one class

    raise SystemExit(run_main())
