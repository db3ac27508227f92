"""Deterministic tie-break between equal scores: lowest hash of seed and node name first, then the name.

The hash is reproducible from seed and name. Schedulers use different seeds, so that concurrent ones do not all choose
the same node.
"""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.snapshot import Counts, Snapshot
from holdfast.scheduling.snapshot.node_table import name_hash

TIE_BITS = 40
TIE_MAX = 2**TIE_BITS - 1

_MASK = 2**64 - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def tie_number(seed: int, node: str) -> int:
    """Forty bits of splitmix64 over the hash of the name and the seed."""
    return _mix(name_hash(node) ^ _mix(seed & _MASK)) >> (64 - TIE_BITS)


def tie_numbers(snapshot: Snapshot, seed: int) -> Counts:
    """The same for every slot."""
    key = ("tie", seed)
    found = snapshot.static.memo.get(key)
    if found is None:
        x = snapshot.static.name_hash ^ np.uint64(_mix(seed & _MASK))
        x = x + np.uint64(_STEP)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
        x = x ^ (x >> np.uint64(31))
        found = snapshot.memoize(key, (x >> np.uint64(64 - TIE_BITS)).astype(np.int64))
    numbers: Counts = found
    return numbers


def _mix(x: int) -> int:
    x = (x + _STEP) & _MASK
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)
