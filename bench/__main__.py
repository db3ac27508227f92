"""Runs the measurements: `python -m bench` all of them, `python -m bench NAME…` some.

Each is a module here with `async def run() -> dict`: its figures are printed as a table and kept in
`bench/out/NAME.json` with the revision they belong to. Ratios and bounds are of one run; `BOUNDS` of a module are
checked, and a figure outside of them ends the program with status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = ("store", "authority", "etcd", "planner", "api", "pipeline", "openb")
"""In the order they are run: from the parts to the whole."""
OUT = Path(__file__).parent / "out"


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


def measure(name: str, options: dict[str, Any]) -> list[str]:
    """Runs one, prints and keeps its figures; answers what is outside of its bounds."""
    module = importlib.import_module(f"bench.{name}")
    began = time.monotonic()
    figures = flat(asyncio.run(module.run(**options)))
    print(table(name, figures, time.monotonic() - began), flush=True)
    OUT.mkdir(exist_ok=True)
    kept = {"name": name, "revision": revision(), "figures": figures}
    (OUT / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n")
    return outside(figures, getattr(module, "BOUNDS", {}))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--data", default="", help="where published traces are kept (openb); by default ../shared/data")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        print(f"bench: there is no {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    wrong: list[str] = []
    for name in chosen.names or NAMES:
        options = {"data": chosen.data} if name == "openb" and chosen.data else {}
        try:
            wrong += [f"{name}: {words}" for words in measure(name, options)]
        except Skipped as reason:
            print(f"{name} skipped: {reason}", flush=True)
    for words in wrong:
        print(f"bench: {words}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    from bench.__main__ import main as run_main  # one module object, so that Skipped is one class

    raise SystemExit(run_main())
