"""What worlds with planted bugs have said, kept in a file as it comes: a search that was stopped goes on from it.

Answers are those of one state of the code: its digest is the file's first line, and the answers of any other state are
forgotten, so that no table is put together from two.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

import holdfast
from holdfast.sim.planting import Ask, Tried

SUFFIXES = frozenset({".py", ".toml"})


class _Line(msgspec.Struct, frozen=True):
    ask: Ask
    tried: Tried


class Kept:
    """Without a path nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self.answers: dict[Ask, Tried] = {}
        self._path = path
        if path is None:
            return
        state = state_of_the_code()
        if path.exists() and self._recall(path, state):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{state}\n")

    def _recall(self, path: Path, state: str) -> bool:
        """A last line that was cut short by the end of its writer is run again."""
        first, *lines = path.read_text().split("\n")
        if first != state:
            return False
        for line in lines[:-1]:
            known = msgspec.json.decode(line, type=_Line)
            self.answers[known.ask] = known.tried
        if lines and lines[-1]:
            path.write_text("\n".join([first, *lines[:-1]]) + "\n")
        return True

    def add(self, ask: Ask, tried: Tried) -> None:
        self.answers[ask] = tried
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(_Line(ask, tried)) + b"\n")


def state_of_the_code() -> str:
    """A digest of everything that worlds are made of."""
    root = Path(holdfast.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
