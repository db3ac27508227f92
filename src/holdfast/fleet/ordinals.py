"""Which region holds which ordinals of an exclusive workload: each in at most one, ever (S7).

An ordinal stays where it is. It becomes free only when the region that had it says, about the newest epoch, that it
holds none but those it was left, by name: until then it may still run there, whatever its Assignment says by now, and
whatever else that region was given meanwhile. Where the scope is Global there is a second proof: the region runs such
work only under a tenure, which no answer given after the withdrawal extends, so once a whole tenure has passed since
that was on record the work has ended by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, islice

import msgspec

from holdfast.fleet.away_shares import with_peak
from holdfast.model import limits
from holdfast.model.assignment import Assignment, AssignmentSpec, Withdrawal
from holdfast.model.tenure import needs_tenure
from holdfast.model.times import micro_text, parse_time

Ordinals = dict[str, tuple[int, ...]]


def share_ordinals(shares: Mapping[str, int], stored: Sequence[Assignment]) -> Ordinals:
    """The ordinals of every region that is to hold some; fewer than its share while others still let go."""
    held = {a.spec.region: a.spec.ordinals for a in stored}
    lives = {a.spec.region: a.status.ordinals for a in stored}
    given: Ordinals = {region: held.get(region, ())[:share] for region, share in shares.items()}
    taken = {ordinal for ordinals in held.values() for ordinal in ordinals}
    letting_go = {a.spec.region for a in stored if not let_go(a) and not tenure_over(a)}
    # What is taken away by this very decision is not free either: the ordinal itself moves, break before make, and no
    # new one is made beside it while it may still run.
    letting_go |= {region for region, ordinals in held.items() if len(given.get(region, ())) < len(ordinals)}
    for region in sorted(shares):
        lacking = shares[region] - len(given[region])
        if lacking <= 0 or letting_go - {region}:
            continue
        # What still lives there comes back before any other: nothing has to stop for it.
        free = [n for n in lives.get(region, ()) if n not in taken][:lacking]
        taken |= set(free)
        free += islice((n for n in count() if n not in taken), lacking - len(free))
        taken |= set(free)
        given[region] = tuple(sorted((*given[region], *free)))
    return given


def let_go(assignment: Assignment) -> bool:
    """Whether the region holds nothing but what the newest epoch of its Assignment names. Their number would not do:
    one that was taken away may be there while one that was given is not. A region that names none has let go when it
    has none."""
    status = assignment.status
    named = len(status.ordinals) == status.replicas and set(status.ordinals) <= set(assignment.spec.ordinals)
    return status.observed_epoch >= assignment.spec.epoch and named


def tenure_over(assignment: Assignment) -> bool:
    """Whether whatever the region was told to give up has ended by itself, in touch or not."""
    spec = assignment.spec
    if not needs_tenure(spec.exclusive) or spec.withdrawal is None:
        return False
    return spec.withdrawal.waited_seconds >= limits.TENURE_WAIT_S


def withdrawn(spec: AssignmentSpec, stored: AssignmentSpec) -> AssignmentSpec:
    """The new spec with the withdrawal it is or makes: taking ordinals away starts the wait anew."""
    if not needs_tenure(spec.exclusive):
        return spec
    taken = not set(stored.ordinals) <= set(spec.ordinals)
    withdrawal = Withdrawal(epoch=stored.epoch + 1) if taken else stored.withdrawal
    return msgspec.structs.replace(spec, withdrawal=withdrawal)


def waited(assignment: Assignment, now: float) -> Assignment | None:
    """The Assignment one step of the wait further, or None when none is due. The first step only says that the
    withdrawal is seen on record; from there on time counts, and no step of the clock counts for more than it can be.
    """
    spec, found = assignment.spec, assignment.spec.withdrawal
    if found is None or let_go(assignment) or tenure_over(assignment):
        return None
    passed_s = now - parse_time(found.seen_at) if found.seen_at else 0.0
    if found.seen_at and 0 <= passed_s < limits.TENURE_STEP_S:
        return None
    more_s = min(max(0.0, passed_s), limits.TENURE_STEP_MAX_S)
    further = msgspec.structs.replace(
        found, waited_seconds=round(found.waited_seconds + more_s, 3), seen_at=micro_text(now)
    )
    changed = msgspec.structs.replace(spec, withdrawal=further, epoch=spec.epoch + 1)
    return msgspec.structs.replace(assignment, spec=with_peak(changed, assignment))
