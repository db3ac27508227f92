"""Prefers placements that strand few GPU milli, as in "Beware of Fragmentation" (Weng et al., USENIX ATC 2023).

Free GPU milli of a node are stranded for a request shape that cannot use them. Two measures are averaged:
- the paper's: free milli of devices too small for one share, or of all devices if the free CPU does not suffice for one
  replica;
- a stricter one: also the free milli that would remain if the free CPU were filled with replicas of the shape.
The sum over all shapes, weighted by their frequency, is the node's fragmentation. The score rewards placements that add
little to it. Integer arithmetic only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import msgspec
import numpy as np

from holdfast.model.quantity import CPU, GPU, WHOLE_GPU_MILLI
from holdfast.scheduling.gpu_request_shapes import GpuShapes
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts

_NOTE = "gpu-shape"
"""First part of the keys under which the plan keeps sums; the second is the placed request's shape and models."""
_NOTHING_PLACED = ()
_NEUTRAL = 50
_STEEPNESS_MILLI = 4000
"""Change of stranded milli that moves the score halfway to 0 or 100; near 50, one point is about 80 milli. Larger and
smaller values allocate fewer GPUs on the openb trace (bench/openb.py)."""


class _Free(msgspec.Struct, frozen=True):
    """Free CPU and free milli per GPU of each candidate."""

    cpu: Counts
    gpu: Counts


class _UsableSums(msgspec.Struct):
    """Per slot: GPU milli that the shapes can use, summed by `occurrences`, after `placements` of the plan."""

    row_set: int
    occurrences: Counts
    placements: int
    sums: Counts


def score(candidate: CandidateState) -> Counts:
    """Points per candidate."""
    scratch = candidate.scratch
    if not scratch.gpu_free.size:
        return np.full(candidate.size, _NEUTRAL, dtype=np.int64)
    shapes = scratch.shapes(candidate.requirements)
    before, after = _before(candidate), _after(candidate)
    amounts, models = candidate.requirements.amounts, candidate.requirements.template.gpu_models
    key = (amounts.get(CPU, 0), amounts.get(GPU, 0), models)
    gained = _stranded(shapes, before, _all_usable(candidate, shapes, _NOTHING_PLACED, before, _before))
    gained -= _stranded(shapes, after, _all_usable(candidate, shapes, key, after, _after))
    milli = gained // max(1, shapes.count)
    points: Counts = _NEUTRAL + _NEUTRAL * milli // (_STEEPNESS_MILLI + np.abs(milli))
    return np.clip(points, 0, 100)


def _before(candidate: CandidateState) -> _Free:
    return _Free(candidate.free(CPU), candidate.select(candidate.scratch.gpu_free))


def _after(candidate: CandidateState) -> _Free:
    before = _before(candidate)
    return _Free(before.cpu - candidate.requirements.amounts.get(CPU, 0), _gpus_after(candidate, before.gpu))


def _all_usable(
    candidate: CandidateState, shapes: GpuShapes, key: Hashable, free: _Free, free_of: Callable[[CandidateState], _Free]
) -> Counts:
    """The sums of `usable`. For all slots the last sums of this key are kept in the plan: only shapes whose number
    changed are added, and only slots that changed are summed anew."""
    if not candidate.covers_all_slots:
        return usable(shapes, free)
    scratch = candidate.scratch
    known: _UsableSums | None = scratch.notes.get((_NOTE, key))
    if known is None or known.row_set != shapes.row_set:
        known = _UsableSums(shapes.row_set, shapes.occurrences, len(scratch.touched), usable(shapes, free))
        scratch.notes[_NOTE, key] = known
        return known.sums
    changed = shapes.changed_since(known.occurrences)
    if changed is not None:
        known.sums += usable(changed, free)
        known.occurrences = shapes.occurrences
    if known.placements < len(scratch.touched):
        slots = np.unique(np.array(scratch.touched[known.placements :], dtype=np.intp))
        known.sums[slots] = usable(shapes, free_of(candidate.for_slots(slots)))
        known.placements = len(scratch.touched)
    return known.sums


def _stranded(shapes: GpuShapes, free: _Free, usable_sums: Counts) -> Counts:
    """Per candidate: stranded GPU milli, summed over all shapes by frequency."""
    found: Counts = shapes.count * free.gpu.sum(axis=0) - usable_sums // 2
    return found


def usable(shapes: GpuShapes, free: _Free) -> Counts:
    """Per candidate: GPU milli that a shape can use by the two measures together, summed over all shapes by
    frequency."""
    large = free.gpu >= shapes.shares[:, None, None]  # [share, device, candidate]
    by_kind = np.where(large, free.gpu, 0).sum(axis=1)[shapes.share_of]
    many = shapes.devices > 1  # which are whole
    if many.any():
        by_kind[many] *= (free.gpu >= WHOLE_GPU_MILLI).sum(axis=0) >= shapes.devices[many, None]
    one_fits, all_fit = by_kind[shapes.kind_of], shapes.gpu_milli_with_cpu(free.cpu)
    used = np.where(all_fit > 0, one_fits, 0) + np.minimum(one_fits, all_fit)
    found: Counts = shapes.occurrences @ used
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
