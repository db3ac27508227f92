"""Distribution of GPU request shapes (CPU, GPU) in the region. The gpu_shape score uses it to value free GPUs.

Counted from the claims of a snapshot and the placements of the current plan. Requests without GPUs are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from holdfast.model.quantity import CPU, GPU, WHOLE_GPU_MILLI
from holdfast.scheduling.snapshot.frozen import Counts, Snapshot

# Distinct GPU request shapes that the fragmentation score distinguishes. More are rounded up until they are this few.
PLANNER_GPU_SHAPES_MAX = 256

GpuShape = tuple[int, int]
"""CPU milli and GPU milli of one replica."""

_NO_BOUND = 1 << 20
"""Replicas that CPU allows of a shape without CPU: more than any node has devices for."""

_COARSEST_MILLI = 1 << 20
"""Coarsest rounding step. At this step all CPU requests are equal, and whole-GPU counts are few."""

_REBUILD_PARTS = 16
"""The columns are rebuilt when more than 1/_REBUILD_PARTS of the counted replicas changed. Rebuilding more often costs
time and hardly changes scores."""


class GpuShapes(msgspec.Struct, frozen=True):
    """All shapes as columns. A kind is a GPU request: `devices` GPUs with one of `shares` free on each.

    Each shape has a row in `occurrences`, `kind_of`, `cpu_of` and `gpu_milli`. `cpus` lists the distinct CPU requests.
    """

    count: int
    shares: Counts
    share_of: Counts
    devices: Counts
    cpus: Counts
    occurrences: Counts
    kind_of: Counts
    cpu_of: Counts
    gpu_milli: Counts

    def gpu_milli_with_cpu(self, cpu_free: Counts) -> Counts:
        """[shape, candidate]: GPU milli used by as many replicas of a shape as the free CPU allows."""
        often = np.maximum(cpu_free, 0) // np.maximum(self.cpus, 1)[:, None]
        often[self.cpus == 0] = _NO_BOUND
        found: Counts = often[self.cpu_of] * self.gpu_milli[:, None]
        return found


class GpuShapeCounter:
    """Counts shapes and builds the columns. Both depend only on the counted replicas and their order."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._tally: dict[GpuShape, int] = {}
        self._total = 0
        self._columns_cache: GpuShapes | None = None
        self._columns_total = 0
        for claims in snapshot.claims.values():
            for claim in claims.values():
                self.add(claim.amounts, 1)

    def add(self, amounts: Iterable[tuple[str, int]], sign: int) -> None:
        requested = dict(amounts)
        gpu_milli = requested.get(GPU, 0)
        if gpu_milli:
            shape = (requested.get(CPU, 0), gpu_milli)
            self._tally[shape] = self._tally.get(shape, 0) + sign
            self._total += sign

    def columns(self) -> GpuShapes:
        if self._columns_cache is None or abs(self._total - self._columns_total) * _REBUILD_PARTS > self._columns_total:
            self._columns_cache = _columns(self._tally)
            self._columns_total = self._total
        return self._columns_cache


def _columns(tally: dict[GpuShape, int]) -> GpuShapes:
    rows = _reduced({shape: count for shape, count in tally.items() if count > 0})
    shapes = sorted(rows)
    kinds = sorted({gpu_milli for _, gpu_milli in shapes})
    cpus = sorted({cpu for cpu, _ in shapes})
    shares = sorted({min(kind, WHOLE_GPU_MILLI) for kind in kinds})
    kind_at, cpu_at = {kind: at for at, kind in enumerate(kinds)}, {cpu: at for at, cpu in enumerate(cpus)}
    share_at = {share: at for at, share in enumerate(shares)}
    return GpuShapes(
        count=sum(rows.values()),
        shares=_column(shares),
        share_of=_column([share_at[min(kind, WHOLE_GPU_MILLI)] for kind in kinds]),
        devices=_column([max(1, kind // WHOLE_GPU_MILLI) for kind in kinds]),
        cpus=_column(cpus),
        occurrences=_column([rows[shape] for shape in shapes]),
        kind_of=_column([kind_at[gpu_milli] for _, gpu_milli in shapes]),
        cpu_of=_column([cpu_at[cpu] for cpu, _ in shapes]),
        gpu_milli=_column([gpu_milli for _, gpu_milli in shapes]),
    )


def _reduced(tally: dict[GpuShape, int]) -> dict[GpuShape, int]:
    """Reduces the shapes to PLANNER_GPU_SHAPES_MAX: exact if they are few, else rounded up in the finest sufficient
    step."""
    step, rows = 1, tally
    while len(rows) > PLANNER_GPU_SHAPES_MAX and step < _COARSEST_MILLI:
        step *= 2
        coarser: dict[GpuShape, int] = {}
        for (cpu, gpu_milli), count in rows.items():
            share = min(_round_up(gpu_milli, step), WHOLE_GPU_MILLI)
            shape = (_round_up(cpu, step), max(share, gpu_milli))
            coarser[shape] = coarser.get(shape, 0) + count
        rows = coarser
    return rows


def _round_up(amount: int, step: int) -> int:
    return -(-amount // step) * step


def _column(values: list[int]) -> Counts:
    return np.array(values, dtype=np.int64)
