"""Prefers placements that strand few GPU milli, as in "Beware of Fragmentation" (Weng et al., USENIX ATC 2023).

Free GPU milli of a node are stranded for a request shape that cannot use them. Two measures are averaged:
- the paper's: devices with less free than one share, or all devices if the CPU does not suffice for one more replica;
- a stricter one: GPU milli beyond what as many replicas as the free CPU allows would use.
The sum over all shapes, weighted by their frequency, is the node's fragmentation. The score rewards placements that add
little to it. Integer arithmetic only.
"""

from __future__ import annotations

import msgspec
import numpy as np

from holdfast.model.quantity import CPU, GPU, WHOLE_GPU_MILLI
from holdfast.scheduling.gpu_request_shapes import GpuShapes
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts

_NOW = "stranded"
"""Key of the cached stranded GPU milli of every slot."""
_MIDDLE = 50
_STEEPNESS_MILLI = 4000
"""Change of stranded milli that moves the score halfway to 0 or 100; near 50, one point is about 80 milli. Larger and
smaller values allocate fewer GPUs on the openb trace (bench/openb.py)."""


class _Free(msgspec.Struct, frozen=True):
    """Free CPU and free milli per GPU of each candidate."""

    cpu: Counts
    gpu: Counts


class _Known(msgspec.Struct):
    """Cached points of every slot for one request shape, valid for the first `placements` of the plan."""

    shapes: GpuShapes
    placements: int
    points: Counts


def score(at: CandidateState) -> Counts:
    """Points per candidate. For all slots, only those changed since the last request of this shape are recomputed."""
    scratch = at.scratch
    if not scratch.gpu_free.size:
        return np.full(at.size, _MIDDLE, dtype=np.int64)
    shapes = scratch.shapes(at.requirements)
    if not at.covers_all_slots:
        return _points(at, shapes)
    amounts, models = at.requirements.amounts, at.requirements.template.gpu_models
    key = (amounts.get(CPU, 0), amounts.get(GPU, 0), models)
    known: _Known | None = scratch.notes.get(key)
    if known is None or known.shapes is not shapes:
        known = scratch.notes[key] = _Known(shapes, len(scratch.touched), _points(at, shapes))
    elif known.placements < len(scratch.touched):
        slots = np.unique(np.array(scratch.touched[known.placements :], dtype=np.intp))
        known.points[slots] = _points(at.for_slots(slots), shapes)
        known.placements = len(scratch.touched)
    return known.points.copy()


def _points(at: CandidateState, shapes: GpuShapes) -> Counts:
    before = _Free(at.free(CPU), at.select(at.scratch.gpu_free))
    asked = at.requirements.amounts.get(CPU, 0)
    after = _Free(before.cpu - asked, _after(at, before.gpu))
    now = _stranded_now(at, shapes) if at.covers_all_slots else stranded(shapes, before)
    gained = now - stranded(shapes, after)
    milli = gained // max(1, shapes.count)
    points: Counts = _MIDDLE + _MIDDLE * milli // (_STEEPNESS_MILLI + np.abs(milli))
    return np.clip(points, 0, 100)


def _stranded_now(at: CandidateState, shapes: GpuShapes) -> Counts:
    """Stranded milli of all slots before the placement; shared by all request shapes."""
    scratch = at.scratch
    known: _Known | None = scratch.notes.get(_NOW)
    if known is None or known.shapes is not shapes:
        found = stranded(shapes, _Free(at.free(CPU), scratch.gpu_free))
        known = scratch.notes[_NOW] = _Known(shapes, len(scratch.touched), found)
    elif known.placements < len(scratch.touched):
        slots = np.unique(np.array(scratch.touched[known.placements :], dtype=np.intp))
        some = at.for_slots(slots)
        known.points[slots] = stranded(shapes, _Free(some.free(CPU), some.select(scratch.gpu_free)))
        known.placements = len(scratch.touched)
    return known.points


def stranded(shapes: GpuShapes, free: _Free) -> Counts:
    """Per candidate: stranded GPU milli, summed over all shapes by frequency."""
    large = free.gpu >= shapes.shares[:, None, None]  # [share, device, candidate]
    usable = np.where(large, free.gpu, 0).sum(axis=1)[shapes.share_of]
    many = shapes.devices > 1  # which are whole
    if many.any():
        usable[many] *= (free.gpu >= WHOLE_GPU_MILLI).sum(axis=0) >= shapes.devices[many, None]
    one_fits, all_fit = usable[shapes.kind_of], shapes.gpu_milli_with_cpu(free.cpu)
    used = np.where(all_fit > 0, one_fits, 0) + np.minimum(one_fits, all_fit)
    found: Counts = shapes.count * free.gpu.sum(axis=0) - (shapes.occurrences @ used) // 2
    return found


def _after(at: CandidateState, gpu: Counts) -> Counts:
    """Free milli per GPU after the placement, on the devices the planner would choose: whole GPUs in order, a share on
    the GPU with the least left over."""
    ask = at.requirements
    if not ask.gpu_milli:
        return gpu
    usable = at.select(at.scratch.gpu_usable(ask).astype(np.int64)) > 0
    if ask.whole_gpus:
        chosen = usable & (np.cumsum(usable, axis=0) <= ask.whole_gpus)
        return np.where(chosen, gpu - WHOLE_GPU_MILLI, gpu)
    left = np.where(usable, gpu, 2 * WHOLE_GPU_MILLI)
    device = left.argmin(axis=0)
    after = gpu.copy()
    candidates = np.arange(gpu.shape[1])
    after[device, candidates] -= np.where(usable[device, candidates], ask.gpu_milli, 0)
    return after
