"""Runs benchmarks: `python -m bench` runs all, `python -m bench NAME…` some. Options select a part of one.

Each benchmark is a module with `async def run() -> dict`. Its figures are printed as a table and stored in
`bench/out/NAME.json` with Git revision and time. Figures outside the module's `BOUNDS` exit with 1. A partial run
(`--shape spread`) has its own file, and only its figures are checked. A run of another size is not checked. Bounds on
speed (`BY_SPEED`) are relative to a calibration that is printed and stored with the figures (`bench/calibration.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import logging
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import structlog

from bench.calibration import Calibration, calibrate
from holdfast.model.times import seconds_text
from holdfast.readiness.revision import checkout_revision

NAMES = (
    "store",
    "gate",
    "authority",
    "conflicts",
    "etcd",
    "planner",
    "regions",
    "memory",
    "steps",
    "api",
    "pipeline",
    "recovery",
    "fleet",
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


Bounds = Mapping[str, tuple[float | None, float | None]]


def relative(bounds: Bounds, by_speed: Collection[str], calibration: Calibration) -> Bounds:
    """The bounds for a machine with this calibration: rates of `by_speed` may be lower, and times higher, by as much as
    the machine is slower than the reference."""
    found = dict(bounds)
    for name in bounds.keys() & set(by_speed):
        least, most = bounds[name]
        slowness = calibration.slowness(name)
        found[name] = (
            round(least / slowness, 1) if least is not None else None,
            round(most * slowness, 1) if most is not None else None,
        )
    return found


def outside(figures: Mapping[str, Any], bounds: Bounds) -> list[str]:
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


SIZES = ("nodes", "replicas", "regions", "workloads")
"""Options that change the size, so that the bounds do not apply."""


def measure(name: str, options: dict[str, Any]) -> list[str]:
    """Runs one benchmark, prints and stores its figures. Returns messages for figures outside their bounds."""
    module = importlib.import_module(f"bench.{name}")
    before, began = calibrate(), time.monotonic()
    figures = flat(asyncio.run(module.run(**options)))
    took_s = time.monotonic() - began
    calibration = before.with_other(calibrate())
    print(table(name, figures, took_s), flush=True)
    print(f"  calibration: {calibration.text()}", flush=True)
    OUT.mkdir(exist_ok=True)
    result = {
        "name": name,
        "revision": checkout_revision(OUT.parent),
        "measuredAt": seconds_text(time.time()),
        "calibration": {part: round(seconds, 3) for part, seconds in calibration._asdict().items()},
        "figures": figures,
    }
    (OUT / f"{name}{_suffix(options)}.json").write_text(json.dumps(result, indent=2) + "\n")
    if any(size in options for size in SIZES):
        print(f"{name}: bounds not checked, because the size is not the default", flush=True)
        return []
    bounds = relative(getattr(module, "BOUNDS", {}), getattr(module, "BY_SPEED", ()), calibration)
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
        "regions": chosen.regions,
        "workloads": chosen.workloads,
        "traces": tuple(chosen.trace),
        "policies": tuple(chosen.policy),
        "seeds": tuple(chosen.seed),
    }
    takes = inspect.signature(importlib.import_module(f"bench.{name}").run).parameters
    given = {key: value for key, value in options.items() if value}
    refused = [f"--{size}" for size in SIZES if size in given and size not in takes]
    if refused and chosen.names:
        raise Unknown(f"benchmark {name}: no option {', '.join(refused)}; its size is fixed")
    return {key: value for key, value in given.items() if key in takes}


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number of at least 1")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--data", default="", help="directory of the published traces (openb); default ../shared/data")
    parser.add_argument("--shape", action="append", default=[], help="shape (pipeline); may be repeated")
    parser.add_argument(
        "--nodes", type=_positive, default=0, help="number of nodes (pipeline, planner; recovery: per region)"
    )
    parser.add_argument("--replicas", type=_positive, default=0, help="number of replicas (pipeline)")
    parser.add_argument("--regions", type=_positive, default=0, help="number of hollow regions (fleet)")
    parser.add_argument("--workloads", type=_positive, default=0, help="number of workloads (fleet)")
    parser.add_argument("--trace", action="append", default=[], help="trace, or `all` (openb); may be repeated")
    parser.add_argument("--policy", action="append", default=[], help="policy (openb); may be repeated")
    parser.add_argument("--seed", action="append", default=[], type=int, help="seed (openb); may be repeated")
    return parser


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    # As a cell logs by default; otherwise lines for debugging would be part of the measured work.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
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
