"""Results of mutation runs in a file, so that an interrupted search continues.

The first line is a digest of the source. Results of another source are discarded, so that a table never mixes two.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

import holdfast
from holdfast.sim.mutation_testing import TrialRequest, TrialResult

SUFFIXES = frozenset({".py", ".toml"})


class _ResultLine(msgspec.Struct, frozen=True):
    ask: TrialRequest
    tried: TrialResult


class MutationResultLog:
    """Results in memory, and in the file if a path is given."""

    def __init__(self, path: Path | None = None) -> None:
        self.results: dict[TrialRequest, TrialResult] = {}
        self._path = path
        if path is None:
            return
        state = source_digest()
        if path.exists() and self._recall(path, state):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{state}\n")

    def _recall(self, path: Path, state: str) -> bool:
        """Loads the results. An incomplete last line is dropped, and its run is repeated."""
        first, *lines = path.read_text().split("\n")
        if first != state:
            return False
        for line in lines[:-1]:
            known = msgspec.json.decode(line, type=_ResultLine)
            self.results[known.ask] = known.tried
        if lines and lines[-1]:
            path.write_text("\n".join([first, *lines[:-1]]) + "\n")
        return True

    def add(self, ask: TrialRequest, tried: TrialResult) -> None:
        self.results[ask] = tried
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(_ResultLine(ask, tried)) + b"\n")


def source_digest() -> str:
    """Digest of all source and scenario files."""
    root = Path(holdfast.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
