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


class GpuShapes(msgspec.Struct, frozen=True):
    """Shapes as columns. A kind is a GPU request: `devices` GPUs with one of `shares` free on each.

    Each shape has a row in `occurrences`, `kind_of`, `cpu_of` and `gpu_milli`. `cpus` lists the distinct CPU requests.
    The rows of one `row_set` keep their places: later columns of the same set have the same rows and perhaps more.
    """

    row_set: int
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

    def changed_since(self, before: Counts) -> GpuShapes | None:
        """The rows whose number changed since the occurrences `before` of the same row set, with the difference as
        their number; None if there are none."""
        difference = self.occurrences.copy()
        difference[: len(before)] -= before
        rows = np.flatnonzero(difference)
        if not rows.size:
            return None
        cpus = self.cpus[self.cpu_of[rows]].tolist()
        shapes = list(zip(cpus, self.gpu_milli[rows].tolist(), strict=True))
        return _columns(self.row_set, shapes, difference[rows].tolist())


class GpuShapeCounter:
    """Counts shapes and builds the columns. The counts depend only on the counted replicas, not on their order, so that
    a plan counts the same whether earlier placements are its own or claims of its snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._tally: dict[GpuShape, int] = {}
        self._step = 1
        self._row_set = 0
        self._rows: dict[GpuShape, int] = {}
        """Index of each row, after rounding to `_step`."""
        self._last: GpuShapes | None = None
        for claims in snapshot.claims.values():
            for claim in claims.values():
                self.add(claim.amounts, 1)

    def add(self, amounts: Iterable[tuple[str, int]], sign: int) -> None:
        requested = dict(amounts)
        gpu_milli = requested.get(GPU, 0)
        if gpu_milli:
            shape = (requested.get(CPU, 0), gpu_milli)
            left = self._tally.get(shape, 0) + sign
            if left:
                self._tally[shape] = left
            else:
                del self._tally[shape]

    def columns(self) -> GpuShapes:
        step = _sufficient_step(self._tally)
        if step != self._step:
            self._step, self._row_set, self._rows = step, self._row_set + 1, {}
        counts = [0] * len(self._rows)
        for shape, count in self._tally.items():
            rounded = _rounded(shape, step) if step > 1 else shape
            row = self._rows.get(rounded)
            if row is None:
                row = self._rows[rounded] = len(counts)
                counts.append(0)
            counts[row] += count
        last = self._last
        if last is not None and last.row_set == self._row_set and len(last.occurrences) == len(counts):
            return msgspec.structs.replace(last, count=sum(counts), occurrences=_column(counts))
        self._last = _columns(self._row_set, list(self._rows), counts)
        return self._last


def _columns(row_set: int, shapes: list[GpuShape], counts: list[int]) -> GpuShapes:
    kinds = sorted({gpu_milli for _, gpu_milli in shapes})
    cpus = sorted({cpu for cpu, _ in shapes})
    shares = sorted({min(kind, WHOLE_GPU_MILLI) for kind in kinds})
    kind_at, cpu_at = {kind: at for at, kind in enumerate(kinds)}, {cpu: at for at, cpu in enumerate(cpus)}
    share_at = {share: at for at, share in enumerate(shares)}
    return GpuShapes(
        row_set=row_set,
        count=sum(counts),
        shares=_column(shares),
        share_of=_column([share_at[min(kind, WHOLE_GPU_MILLI)] for kind in kinds]),
        devices=_column([max(1, kind // WHOLE_GPU_MILLI) for kind in kinds]),
        cpus=_column(cpus),
        occurrences=_column(counts),
        kind_of=_column([kind_at[gpu_milli] for _, gpu_milli in shapes]),
        cpu_of=_column([cpu_at[cpu] for cpu, _ in shapes]),
        gpu_milli=_column([gpu_milli for _, gpu_milli in shapes]),
    )


def _sufficient_step(tally: Iterable[GpuShape]) -> int:
    """The finest rounding step that leaves at most PLANNER_GPU_SHAPES_MAX shapes; 1 if they are few anyway."""
    step, shapes = 1, set(tally)
    while len(shapes) > PLANNER_GPU_SHAPES_MAX and step < _COARSEST_MILLI:
        step *= 2
        shapes = {_rounded_once(shape, step) for shape in shapes}
    return step


def _rounded(shape: GpuShape, step: int) -> GpuShape:
    finer = 2
    while finer <= step:
        shape = _rounded_once(shape, finer)
        finer *= 2
    return shape


def _rounded_once(shape: GpuShape, step: int) -> GpuShape:
    cpu, gpu_milli = shape
    return _round_up(cpu, step), max(min(_round_up(gpu_milli, step), WHOLE_GPU_MILLI), gpu_milli)


def _round_up(amount: int, step: int) -> int:
    return -(-amount // step) * step


def _column(values: list[int]) -> Counts:
    return np.array(values, dtype=np.int64)
