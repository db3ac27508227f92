"""Runs the measurements: `python -m bench` all of them, `python -m bench NAME…` some, with options a part of one.

Each is a module here with `async def run() -> dict`: its figures are printed as a table and kept in
`bench/out/NAME.json` with the revision they belong to. Ratios and bounds are of one run; `BOUNDS` of a module are
checked, and a figure outside of them ends the program with status 1. A part (`--shape spread`) is kept in a file of its
own and answers for the bounds of what it measured; a run of another size than the module's answers for none.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = ("store", "authority", "etcd", "planner", "api", "pipeline", "recovery", "openb")
"""In the order they are run: from the parts to the whole."""
OUT = Path(__file__).parent / "out"


class Unknown(Exception):
    """An option names something that is not there; the message says what is."""


class Skipped(Exception):
    """What a benchmark needs is not here; the message says what and how to name it."""


def revision() -> str:
    """The commit that was measured; a `+` says that the tree had changes of its own."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*words: str) -> str:
    here = Path(__file__).parent
    return subprocess.run(["git", *words], cwd=here, check=True, capture_output=True, text=True).stdout.strip()


def flat(figures: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{before}{name}."))
        else:
            found[before + name] = value
    return found


def outside(figures: Mapping[str, Any], bounds: Mapping[str, tuple[float | None, float | None]]) -> list[str]:
    """Every figure that is missing or not within its bounds, in words."""
    wrong = []
    for name, (least, most) in bounds.items():
        value = figures.get(name)
        if value is None:
            wrong.append(f"{name} is missing")
        elif least is not None and value < least:
            wrong.append(f"{name} is {value:,}; at least {least:,} is asked for")
        elif most is not None and value > most:
            wrong.append(f"{name} is {value:,}; at most {most:,} is asked for")
    return wrong


def table(name: str, figures: Mapping[str, Any], took_s: float) -> str:
    width = max((len(row) for row in figures), default=0)
    rows = [f"  {row:{width}}  {value:>14,}" if not isinstance(value, str) else f"  {row:{width}}  {value}"
            for row, value in figures.items()]  # fmt: skip
    return "\n".join([f"{name} ({took_s:.0f} s)", *rows])


SIZES = ("nodes", "replicas")
"""Options that change what figures can be compared with."""


def measure(name: str, options: dict[str, Any]) -> list[str]:
    """Runs one, prints and keeps its figures; answers what is outside of its bounds."""
    module = importlib.import_module(f"bench.{name}")
    began = time.monotonic()
    figures = flat(asyncio.run(module.run(**options)))
    print(table(name, figures, time.monotonic() - began), flush=True)
    OUT.mkdir(exist_ok=True)
    kept = {"name": name, "revision": revision(), "figures": figures}
    (OUT / f"{name}{_suffix(options)}.json").write_text(json.dumps(kept, indent=2) + "\n")
    if any(size in options for size in SIZES):
        print(f"{name}: bounds hold for the full size and were not checked", flush=True)
        return []
    asked = getattr(module, "BOUNDS", {})
    if _suffix(options):
        asked = {figure: bound for figure, bound in asked.items() if figure in figures}
    return outside(figures, asked)


def _suffix(options: Mapping[str, Any]) -> str:
    """Names the part that was measured; nothing for the whole."""
    words = [str(word) for key, value in options.items() if key != "data"
             for word in (value if isinstance(value, tuple) else (f"{key}{value}",))]  # fmt: skip
    return "".join(f"-{word}" for word in words)


def _options(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as far as the benchmark takes it."""
    given = {
        "data": chosen.data,
        "shapes": tuple(chosen.shape),
        "nodes": chosen.nodes,
        "replicas": chosen.replicas,
        "traces": tuple(chosen.trace),
        "policies": tuple(chosen.policy),
        "seeds": tuple(chosen.seed),
    }
    takes = inspect.signature(importlib.import_module(f"bench.{name}").run).parameters
    return {key: value for key, value in given.items() if value and key in takes}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--data", default="", help="where published traces are kept (openb); by default ../shared/data")
    parser.add_argument("--shape", action="append", default=[], help="one shape of the pipeline; may be repeated")
    parser.add_argument("--nodes", type=int, default=0, help="how many nodes (pipeline, planner; recovery: per region)")
    parser.add_argument("--replicas", type=int, default=0, help="how many replicas (pipeline)")
    parser.add_argument("--trace", action="append", default=[], help="one trace of openb, or `all`; may be repeated")
    parser.add_argument("--policy", action="append", default=[], help="one policy of openb; may be repeated")
    parser.add_argument("--seed", action="append", default=[], type=int, help="one seed of openb; may be repeated")
    return parser


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        print(f"bench: there is no {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    wrong: list[str] = []
    for name in chosen.names or NAMES:
        try:
            wrong += [f"{name}: {words}" for words in measure(name, _options(name, chosen))]
        except Unknown as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
        except Skipped as reason:
            print(f"{name} skipped: {reason}", flush=True)
    for words in wrong:
        print(f"bench: {words}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    from bench.__main__ import main as run_main  # one module object, so that Skipped is one class

    raise SystemExit(run_main())
