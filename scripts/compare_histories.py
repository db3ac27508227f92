"""Shows whether two commits give the same simulated histories, apart from names.

    python scripts/compare_histories.py BEFORE [AFTER] --seeds 10

For a change that only moves or renames code. Each commit is checked out aside, the same seeds run in both, and every
object that was written is compared with its counterpart, in order: structure, numbers and times must be equal, and one
name must stand for one other name at the same place throughout. Texts for people (TEXT_FIELDS) are not compared. Prints
the renames it found.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from terminal import say

ROOT = Path(__file__).resolve().parent.parent
TEXT_FIELDS = frozenset({"message", "detail", "details", "summary", "text", "note", "sentence"})
"""Fields that hold sentences. Their words may change without a change of behaviour."""
WORD = re.compile(r"[A-Za-z_]+|[^A-Za-z_]+")
DIFFERENCES_SHOWN = 5

# The simulation's digest takes the checksum of every written object: reading what it sums shows all writes, in order,
# whatever the modules of that commit are called.
RECORDER = """
import runpy, sys, zlib
original = zlib.crc32
def crc32(data, *rest):
    if bytes(data[:1]) == b"{":
        sys.stdout.buffer.write(bytes(data) + b"\\n")
    return original(data, *rest)
zlib.crc32 = crc32
sys.argv = ["sim", "--seed", sys.argv[1], "--digest"]
runpy.run_module("holdfast.sim", run_name="__main__")
"""


class Renames:
    """One-to-one maps of names, one for each place in a kind. `differences` lists the pairs that break them."""

    def __init__(self) -> None:
        self._forward: dict[tuple[str, str], str] = {}
        self._back: dict[tuple[str, str], str] = {}
        self.differences: list[str] = []

    def compare(self, before: Any, after: Any, place: str) -> None:
        if isinstance(before, dict) and isinstance(after, dict):
            self._compare_dicts(before, after, place)
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            for old, new in zip(before, after, strict=True):
                self.compare(old, new, place)
        elif isinstance(before, str) and isinstance(after, str):
            self._compare_text(before, after, place)
        elif before != after or type(before) is not type(after):
            self.differences.append(f"{place}: {before!r} became {after!r}")

    def _compare_dicts(self, before: dict[str, Any], after: dict[str, Any], place: str) -> None:
        if len(before) != len(after):
            self.differences.append(f"{place}: fields {list(before)} became {list(after)}")
            return
        for (old, old_value), (new, new_value) in zip(before.items(), after.items(), strict=True):
            self._compare_text(old, new, f"{place}.")
            if old not in TEXT_FIELDS and new not in TEXT_FIELDS:
                self.compare(old_value, new_value, f"{place}.{old}")

    def _compare_text(self, before: str, after: str, place: str) -> None:
        """Equal texts, or texts in which each word of one stands for the same words of the other."""
        if self._forward.setdefault((place, before), after) != after:
            self.differences.append(f"{place}: {before!r} became {self._forward[place, before]!r} and {after!r}")
        elif self._back.setdefault((place, after), before) != before:
            self.differences.append(f"{place}: {self._back[place, after]!r} and {before!r} became {after!r}")

    def found(self) -> Iterator[str]:
        """The distinct renames, without the parts of a text that stayed."""
        pairs: set[str] = set()
        for (_, before), after in self._forward.items():
            old, new = WORD.findall(before), WORD.findall(after)
            if len(old) == len(new):
                pairs.update(f"{a} → {b}" for a, b in zip(old, new, strict=True) if a != b)
            elif before != after:
                pairs.add(f"{before} → {after}")
        yield from sorted(pairs)


def history(tree: Path, seed: int) -> Iterator[Any]:
    command = [sys.executable, "-c", RECORDER, str(seed)]
    with subprocess.Popen(
        command, cwd=tree, env={"PYTHONPATH": str(tree / "src")}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith(b"{"):
                yield json.loads(line)
    if run.returncode:
        raise SystemExit(
            f"error: seed {seed} of {tree.name}: the simulation exited with {run.returncode}\n"
            f"next: run python -m holdfast.sim --seed {seed} in that commit"
        )


def compare(before: Path, after: Path, seed: int, renames: Renames) -> int:
    """Compares the objects written by one seed, up to the first difference. Returns how many."""
    count, found = 0, len(renames.differences)
    for old, new in zip_longest(history(before, seed), history(after, seed)):
        count += 1
        if old is None or new is None:
            renames.differences.append(f"seed {seed}: one history ends after {count - 1} writes")
            break
        renames.compare(old, new, str(old.get("kind", "")))
        if len(renames.differences) > found:
            renames.differences[found:] = [f"seed {seed}, write {count}: {renames.differences[found]}"]
            break  # all that follows may differ
    return count


def check_out(commit: str, folder: Path) -> Path:
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(
            f"error: commit {commit}: {archive.stderr.decode().strip()}\nnext: git log --oneline lists commits"
        )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="commit before the change")
    parser.add_argument("after", nargs="?", default="HEAD", help="commit after the change")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="SEED", help="first seed")
    options = parser.parse_args()
    renames = Renames()
    with tempfile.TemporaryDirectory() as scratch:
        before = check_out(options.before, Path(scratch) / "before")
        after = check_out(options.after, Path(scratch) / "after")
        for seed in range(options.first, options.first + options.seeds):
            writes = compare(before, after, seed, renames)
            say(f"seed {seed}: {writes} writes, {len(renames.differences)} differences so far")
    for line in renames.found():
        say(f"  {line}")
    for line in renames.differences[:DIFFERENCES_SHOWN]:
        say(f"difference: {line}")
    return 1 if renames.differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
