"""Which shapes of GPU work there are, and how often: what "usable" means for a GPU that is left over.

Counted from the claims of a snapshot and the placements of the plan under way. Work without GPUs is left out: it can
use none, whatever is left.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from holdfast.flow.snapshot.frozen import Counts, Snapshot
from holdfast.model.quantity import CPU, GPU, WHOLE_GPU_MILLI

Shape = tuple[int, int]
"""Processor milli and GPU milli of one replica."""

_REBUILD_PARTS = 16
"""The classes are worked out anew when one part in so many of the work is new since."""


class ShapeClass(msgspec.Struct, frozen=True):
    """All shapes that ask alike of GPUs: `devices` with `share` milli free on each. `cpus` rise, `upto` counts."""

    devices: int
    share: int
    count: int
    cpus: Counts
    upto: Counts

    def fitting(self, cpu_free: Counts) -> Counts:
        """How much of the class has enough processors, for each amount that is free."""
        found: Counts = self.upto[np.searchsorted(self.cpus, cpu_free, side="right")]
        return found


class Shapes(msgspec.Struct, frozen=True):
    count: int
    classes: tuple[ShapeClass, ...]


class ShapeCount:
    """The tally, and the classes made from it: both are a function of what was counted, in order."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._tally: dict[Shape, int] = {}
        self._total = 0
        self._made: Shapes | None = None
        self._made_at = 0
        for claims in snapshot.claims.values():
            for claim in claims.values():
                self.add(claim.amounts, 1)

    def add(self, amounts: Iterable[tuple[str, int]], sign: int) -> None:
        asked = dict(amounts)
        gpu_milli = asked.get(GPU, 0)
        if gpu_milli:
            shape = (asked.get(CPU, 0), gpu_milli)
            self._tally[shape] = self._tally.get(shape, 0) + sign
            self._total += sign

    def classes(self) -> Shapes:
        if self._made is None or abs(self._total - self._made_at) * _REBUILD_PARTS > self._made_at:
            self._made = _classes(self._tally)
            self._made_at = self._total
        return self._made


def _classes(tally: dict[Shape, int]) -> Shapes:
    by_gpu: dict[int, list[tuple[int, int]]] = {}
    for (cpu, gpu_milli), count in sorted(tally.items()):
        if count > 0:
            by_gpu.setdefault(gpu_milli, []).append((cpu, count))
    classes = []
    for gpu_milli, rows in by_gpu.items():
        counts = np.array([count for _, count in rows], dtype=np.int64)
        classes.append(
            ShapeClass(
                devices=max(1, gpu_milli // WHOLE_GPU_MILLI),
                share=min(gpu_milli, WHOLE_GPU_MILLI),
                count=int(counts.sum()),
                cpus=np.array([cpu for cpu, _ in rows], dtype=np.int64),
                upto=np.concatenate([np.zeros(1, dtype=np.int64), counts.cumsum()]),
            )
        )
    return Shapes(sum(kind.count for kind in classes), tuple(classes))
