"""Divides the ordinals of an exclusive workload among regions: each ordinal is in at most one region (S7).

An ordinal stays in its region. It becomes free only with proof that the region does not run it:
- The region's report for the newest epoch lists its ordinals, and this one is not among them.
- Or, for scope Global: a whole tenure has passed since the withdrawal was committed. The region runs such work only
  under a tenure, and no response after the withdrawal extends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, islice

import msgspec

from holdfast.fleet.disruption_shares import with_share_peak
from holdfast.model import limits
from holdfast.model.assignment import Assignment, AssignmentSpec, Withdrawal
from holdfast.model.tenure import needs_tenure
from holdfast.model.times import micro_text, parse_time

# Interval of the durable steps in which the tenure wait is accumulated.
TENURE_STEP_S = 5.0
# Wait after a global ordinal is withdrawn from a region until its work has certainly stopped there: one tenure, clock
# drift on both sides, the kill, and one clock jump. After that, another region may run the ordinal.
TENURE_WAIT_S = limits.TENURE_S * (1 + 2 * limits.CLOCK_DRIFT) + limits.KILL_DURATION_MAX_S + limits.TENURE_STEP_MAX_S

Ordinals = dict[str, tuple[int, ...]]


def assign_ordinals(
    shares: Mapping[str, int],
    stored: Sequence[Assignment],
    done: frozenset[int] = frozenset(),
    count_max: int | None = None,
) -> Ordinals:
    """The ordinals of each region; fewer than its share while other regions still release ordinals.

    For a job array they are indexes below `count_max`. An index that is `done` stays where it ran, or nowhere."""
    held = {a.spec.region: a.spec.ordinals for a in stored}
    running = {a.spec.region: a.status.ordinals for a in stored}
    assigned: Ordinals = {region: _kept(held.get(region, ()), share, done) for region, share in shares.items()}
    in_use = {ordinal for ordinals in held.values() for ordinal in ordinals} | done
    numbers = count() if count_max is None else range(count_max)
    releasing = {a.spec.region for a in stored if not has_released(a) and not has_tenure_expired(a)}
    # An ordinal withdrawn by this decision is not free yet: it may still run, so no other ordinal replaces it.
    releasing |= {region for region, ordinals in held.items() if len(assigned.get(region, ())) < len(ordinals)}
    for region in sorted(shares):
        lacking = shares[region] - len(assigned[region])
        if lacking <= 0 or releasing - {region}:
            continue
        # Ordinals that still run in the region are preferred: nothing has to stop for them.
        free = [n for n in running.get(region, ()) if n not in in_use][:lacking]
        in_use |= set(free)
        free += islice((n for n in numbers if n not in in_use), lacking - len(free))
        in_use |= set(free)
        assigned[region] = tuple(sorted((*assigned[region], *free)))
    return assigned


def _kept(held: tuple[int, ...], share: int, done: frozenset[int]) -> tuple[int, ...]:
    """The ordinals that a region keeps: done indexes first, then the lowest."""
    return held[:share] if not done else tuple(sorted(sorted(held, key=lambda n: (n not in done, n))[:share]))


def has_released(assignment: Assignment) -> bool:
    """Whether the region runs only ordinals of the newest epoch of its Assignment.

    Comparing numbers would not suffice: a withdrawn ordinal may run while a new one does not."""
    status = assignment.status
    complete = len(status.ordinals) == status.replicas and set(status.ordinals) <= set(assignment.spec.ordinals)
    return status.observed_epoch >= assignment.spec.epoch and complete


def has_tenure_expired(assignment: Assignment) -> bool:
    """Whether withdrawn ordinals have certainly stopped, because their tenure has expired."""
    spec = assignment.spec
    if not needs_tenure(spec.exclusive) or spec.withdrawal is None:
        return False
    return spec.withdrawal.elapsed_seconds >= TENURE_WAIT_S


def with_withdrawal(spec: AssignmentSpec, stored: AssignmentSpec) -> AssignmentSpec:
    """The new spec with its withdrawal. Withdrawing ordinals restarts the wait."""
    if not needs_tenure(spec.exclusive):
        return spec
    withdraws = not set(stored.ordinals) <= set(spec.ordinals)
    withdrawal = Withdrawal(epoch=stored.epoch + 1) if withdraws else stored.withdrawal
    return msgspec.structs.replace(spec, withdrawal=withdrawal)


def advance_tenure_wait(assignment: Assignment, now: float) -> Assignment | None:
    """The Assignment after one more step of the tenure wait, or None if no step is due.

    The first step only records that the withdrawal is committed. Each further step adds the elapsed time, at most
    TENURE_STEP_MAX_S, so that a clock jump adds little.
    """
    spec, withdrawal = assignment.spec, assignment.spec.withdrawal
    if withdrawal is None or has_released(assignment) or has_tenure_expired(assignment):
        return None
    passed_s = now - parse_time(withdrawal.last_step_at) if withdrawal.last_step_at else 0.0
    if withdrawal.last_step_at and 0 <= passed_s < TENURE_STEP_S:
        return None
    more_s = min(max(0.0, passed_s), limits.TENURE_STEP_MAX_S)
    advanced = msgspec.structs.replace(
        withdrawal, elapsed_seconds=round(withdrawal.elapsed_seconds + more_s, 3), last_step_at=micro_text(now)
    )
    changed = msgspec.structs.replace(spec, withdrawal=advanced, epoch=spec.epoch + 1)
    return msgspec.structs.replace(assignment, spec=with_share_peak(changed, assignment))
