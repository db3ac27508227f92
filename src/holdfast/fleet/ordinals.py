"""Which region holds which ordinals of an exclusive workload: each in at most one, ever (S7).

An ordinal stays where it is. It becomes free only when the region that had it says, about the newest epoch, that it
holds no more than it was left: until then it may still run there, whatever its Assignment says by now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, islice

from holdfast.model.assignment import Assignment

Ordinals = dict[str, tuple[int, ...]]


def share_ordinals(shares: Mapping[str, int], stored: Sequence[Assignment]) -> Ordinals:
    """The ordinals of every region that is to hold some; fewer than its share while others still let go."""
    held = {a.spec.region: a.spec.ordinals for a in stored}
    given: Ordinals = {region: held.get(region, ())[:share] for region, share in shares.items()}
    taken = {ordinal for ordinals in held.values() for ordinal in ordinals}
    letting_go = {a.spec.region for a in stored if not let_go(a)}
    for region in sorted(shares):
        lacking = shares[region] - len(given[region])
        if lacking <= 0 or letting_go - {region}:
            continue
        free = tuple(islice((n for n in count() if n not in taken), lacking))
        taken |= set(free)
        given[region] = tuple(sorted((*given[region], *free)))
    return given


def let_go(assignment: Assignment) -> bool:
    """Whether the region holds no more than the newest epoch of its Assignment names."""
    status = assignment.status
    return status.observed_epoch >= assignment.spec.epoch and status.replicas <= len(assignment.spec.ordinals)
