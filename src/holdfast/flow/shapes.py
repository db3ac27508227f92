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


class Shapes(msgspec.Struct, frozen=True):
    """All shapes in columns, a class being those that ask alike of GPUs: `devices` with one of `shares` free on each.

    `cpus` rise; `upto[class, i]` counts the shapes of a class that ask for no more than the first `i` of them.
    """

    count: int
    shares: Counts
    share_of: Counts
    devices: Counts
    cpus: Counts
    upto: Counts

    def fitting(self, cpu_free: Counts) -> Counts:
        """[class, candidate]: how much of a class has enough processors, for each amount that is free."""
        found: Counts = self.upto[:, np.searchsorted(self.cpus, cpu_free, side="right")]
        return found


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
    rows = [(gpu_milli, cpu, count) for (cpu, gpu_milli), count in tally.items() if count > 0]
    kinds = sorted({gpu_milli for gpu_milli, _, _ in rows})
    cpus = sorted({cpu for _, cpu, _ in rows})
    shares = sorted({min(gpu_milli, WHOLE_GPU_MILLI) for gpu_milli in kinds})
    counts: Counts = np.zeros((len(kinds), len(cpus) + 1), dtype=np.int64)
    kind_at, cpu_at = {kind: at for at, kind in enumerate(kinds)}, {cpu: at for at, cpu in enumerate(cpus)}
    for gpu_milli, cpu, count in rows:
        counts[kind_at[gpu_milli], cpu_at[cpu] + 1] += count
    return Shapes(
        count=int(counts.sum()),
        shares=np.array(shares, dtype=np.int64),
        share_of=np.array([shares.index(min(kind, WHOLE_GPU_MILLI)) for kind in kinds], dtype=np.int64),
        devices=np.array([max(1, kind // WHOLE_GPU_MILLI) for kind in kinds], dtype=np.int64),
        cpus=np.array(cpus, dtype=np.int64),
        upto=counts.cumsum(axis=1),
    )
