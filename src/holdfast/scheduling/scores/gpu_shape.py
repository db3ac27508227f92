"""Prefers placements that strand few GPU milli, as in "Beware of Fragmentation" (Weng et al., USENIX ATC 2023).

Free GPU milli of a node are stranded for a request shape that cannot use them. Two measures are averaged:
- the paper's: free milli of devices too small for one share, or of all devices if the free CPU does not suffice for one
  replica;
- a stricter one: also the free milli that would remain if the free CPU were filled with replicas of the shape.
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

_STRANDED_KEY = "stranded"
"""Key of the cached stranded GPU milli of every slot."""
_NEUTRAL = 50
_STEEPNESS_MILLI = 4000
"""Change of stranded milli that moves the score halfway to 0 or 100; near 50, one point is about 80 milli. Larger and
smaller values allocate fewer GPUs on the openb trace (bench/openb.py)."""


class _Free(msgspec.Struct, frozen=True):
    """Free CPU and free milli per GPU of each candidate."""

    cpu: Counts
    gpu: Counts


class _CachedPoints(msgspec.Struct):
    """Cached points of every slot for one request shape, valid for the first `placements` of the plan."""

    shapes: GpuShapes
    placements: int
    points: Counts


def score(candidate: CandidateState) -> Counts:
    """Points per candidate. For all slots, only those changed since the last request of this shape are recomputed."""
    scratch = candidate.scratch
    if not scratch.gpu_free.size:
        return np.full(candidate.size, _NEUTRAL, dtype=np.int64)
    shapes = scratch.shapes(candidate.requirements)
    if not candidate.covers_all_slots:
        return _points(candidate, shapes)
    amounts, models = candidate.requirements.amounts, candidate.requirements.template.gpu_models
    key = (amounts.get(CPU, 0), amounts.get(GPU, 0), models)
    cached: _CachedPoints | None = scratch.notes.get(key)
    if cached is None or cached.shapes is not shapes:
        cached = scratch.notes[key] = _CachedPoints(shapes, len(scratch.touched), _points(candidate, shapes))
    elif cached.placements < len(scratch.touched):
        slots = np.unique(np.array(scratch.touched[cached.placements :], dtype=np.intp))
        cached.points[slots] = _points(candidate.for_slots(slots), shapes)
        cached.placements = len(scratch.touched)
    return cached.points.copy()


def _points(candidate: CandidateState, shapes: GpuShapes) -> Counts:
    before = _Free(candidate.free(CPU), candidate.select(candidate.scratch.gpu_free))
    requested_cpu = candidate.requirements.amounts.get(CPU, 0)
    after = _Free(before.cpu - requested_cpu, _gpus_after(candidate, before.gpu))
    now = _stranded_before(candidate, shapes) if candidate.covers_all_slots else stranded(shapes, before)
    gained = now - stranded(shapes, after)
    milli = gained // max(1, shapes.count)
    points: Counts = _NEUTRAL + _NEUTRAL * milli // (_STEEPNESS_MILLI + np.abs(milli))
    return np.clip(points, 0, 100)


def _stranded_before(candidate: CandidateState, shapes: GpuShapes) -> Counts:
    """Stranded milli of all slots before the placement; shared by all request shapes."""
    scratch = candidate.scratch
    cached: _CachedPoints | None = scratch.notes.get(_STRANDED_KEY)
    if cached is None or cached.shapes is not shapes:
        found = stranded(shapes, _Free(candidate.free(CPU), scratch.gpu_free))
        cached = scratch.notes[_STRANDED_KEY] = _CachedPoints(shapes, len(scratch.touched), found)
    elif cached.placements < len(scratch.touched):
        slots = np.unique(np.array(scratch.touched[cached.placements :], dtype=np.intp))
        some = candidate.for_slots(slots)
        cached.points[slots] = stranded(shapes, _Free(some.free(CPU), some.select(scratch.gpu_free)))
        cached.placements = len(scratch.touched)
    return cached.points


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


def _gpus_after(candidate: CandidateState, gpu: Counts) -> Counts:
    """Free milli per GPU after the placement, on the devices the planner would choose: whole GPUs in order, a share on
    the GPU with the least left over."""
    requirements = candidate.requirements
    if not requirements.gpu_milli:
        return gpu
    usable = candidate.select(candidate.scratch.gpu_usable(requirements).astype(np.int64)) > 0
    if requirements.whole_gpus:
        chosen = usable & (np.cumsum(usable, axis=0) <= requirements.whole_gpus)
        return np.where(chosen, gpu - WHOLE_GPU_MILLI, gpu)
    left = np.where(usable, gpu, 2 * WHOLE_GPU_MILLI)
    device = left.argmin(axis=0)
    after = gpu.copy()
    candidates = np.arange(gpu.shape[1])
    after[device, candidates] -= np.where(usable[device, candidates], requirements.gpu_milli, 0)
    return after
