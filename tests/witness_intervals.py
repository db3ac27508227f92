"""Reads the files of `holdfast.samples.witness`: when the processes of each replica ran."""

from __future__ import annotations

import itertools
import os


def intervals(folder: str) -> dict[str, list[tuple[float, float]]]:
    """Replica → the intervals in which its processes ran, in order."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="ascii") as f:
            words = f.read().split()
        if len(words) >= 2:
            found.setdefault(name.rsplit(".", 3)[0], []).append((float(words[0]), float(words[1])))
    return {replica: sorted(runs) for replica, runs in found.items()}


def overlaps(folder: str) -> list[str]:
    """Every pair of overlapping runs of one replica, as text."""
    return [
        f"{replica}: {earlier} and {later}"
        for replica, runs in intervals(folder).items()
        for earlier, later in itertools.pairwise(runs)
        if later[0] < earlier[1]
    ]
