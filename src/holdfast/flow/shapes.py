"""Which shapes of GPU work there are, and how often: what "usable" means for a GPU that is left over.

Counted from the claims of a snapshot and the placements of the plan under way. Work without GPUs is left out: it can
use none, whatever is left.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from holdfast.flow.snapshot.frozen import Counts, Snapshot
from holdfast.model.limits import PLANNER_SHAPES
from holdfast.model.quantity import CPU, GPU, WHOLE_GPU_MILLI

Shape = tuple[int, int]
"""Processor milli and GPU milli of one replica."""

_NO_BOUND = 1 << 20
"""So many of a shape that wants no processors: more than any node has devices for."""

_COARSEST_MILLI = 1 << 20
"""Rounding up ends here: all processors asked for are alike by then, and whole GPUs are few in kind."""

_REBUILD_PARTS = 16
"""The columns are worked out anew when one part in so many of the work is new since."""


class Shapes(msgspec.Struct, frozen=True):
    """All shapes in columns. A kind is what they ask of GPUs: `devices` with one of `shares` free on each.

    Every shape has a row in `times`, `kind_of`, `cpu_of` and `gpu_milli`; `cpus` are the processors that any asks for.
    """

    count: int
    shares: Counts
    share_of: Counts
    devices: Counts
    cpus: Counts
    times: Counts
    kind_of: Counts
    cpu_of: Counts
    gpu_milli: Counts

    def fitting(self, cpu_free: Counts) -> Counts:
        """[shape, candidate]: GPU milli that so many of a shape would take as there are processors for."""
        often = np.maximum(cpu_free, 0) // np.maximum(self.cpus, 1)[:, None]
        often[self.cpus == 0] = _NO_BOUND
        found: Counts = often[self.cpu_of] * self.gpu_milli[:, None]
        return found


class ShapeCount:
    """The tally, and the columns made from it: both are a function of what was counted, in order."""

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

    def columns(self) -> Shapes:
        if self._made is None or abs(self._total - self._made_at) * _REBUILD_PARTS > self._made_at:
            self._made = _columns(self._tally)
            self._made_at = self._total
        return self._made


def _columns(tally: dict[Shape, int]) -> Shapes:
    rows = _few({shape: count for shape, count in tally.items() if count > 0})
    shapes = sorted(rows)
    kinds = sorted({gpu_milli for _, gpu_milli in shapes})
    cpus = sorted({cpu for cpu, _ in shapes})
    shares = sorted({min(kind, WHOLE_GPU_MILLI) for kind in kinds})
    kind_at, cpu_at = {kind: at for at, kind in enumerate(kinds)}, {cpu: at for at, cpu in enumerate(cpus)}
    share_at = {share: at for at, share in enumerate(shares)}
    return Shapes(
        count=sum(rows.values()),
        shares=_column(shares),
        share_of=_column([share_at[min(kind, WHOLE_GPU_MILLI)] for kind in kinds]),
        devices=_column([max(1, kind // WHOLE_GPU_MILLI) for kind in kinds]),
        cpus=_column(cpus),
        times=_column([rows[shape] for shape in shapes]),
        kind_of=_column([kind_at[gpu_milli] for _, gpu_milli in shapes]),
        cpu_of=_column([cpu_at[cpu] for cpu, _ in shapes]),
        gpu_milli=_column([gpu_milli for _, gpu_milli in shapes]),
    )


def _few(tally: dict[Shape, int]) -> dict[Shape, int]:
    """The same work in no more shapes than a score can weigh: exact while they are few, else rounded up, in steps no
    coarser than it takes."""
    step, rows = 1, tally
    while len(rows) > PLANNER_SHAPES and step < _COARSEST_MILLI:
        step *= 2
        coarser: dict[Shape, int] = {}
        for (cpu, gpu_milli), count in rows.items():
            share = min(_up(gpu_milli, step), WHOLE_GPU_MILLI)
            shape = (_up(cpu, step), max(share, gpu_milli))
            coarser[shape] = coarser.get(shape, 0) + count
        rows = coarser
    return rows


def _up(amount: int, step: int) -> int:
    return -(-amount // step) * step


def _column(values: list[int]) -> Counts:
    return np.array(values, dtype=np.int64)
