"""Runs the measurements, each in a process of its own: `python -m bench` for all, `python -m bench store` for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def names() -> list[str]:
    """Every module here that can be run."""
    found = sorted(Path(__file__).parent.glob("*.py"))
    return [p.stem for p in found if not p.stem.startswith("_") and '__name__ == "__main__"' in p.read_text()]


def main() -> int:
    wanted = sys.argv[1:] or names()
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"bench: no {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
