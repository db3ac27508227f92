"""Tenure: a region's permission, for a short while, to run exclusive work of scope Global.

It is kept as a coordination Lease in the region. The Lease says when the global cell was asked, and which ordinals of
which Assignments it confirmed in its answer; whatever it does not name may not run on. Nothing extends it but another
answer, so in a region that is cut off such work ends by itself (S7).
"""

from __future__ import annotations

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import Assignment
from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.times import micro_text, parse_time
from holdfast.model.workload import ExclusiveScope, Exclusivity

NAME, NAMESPACE = "tenure", "holdfast-system"
COVERED = "holdfast.dev/tenure"

Covered = dict[str, tuple[int, ...]]
"""The ordinals a region may run, by the name of their Assignment (`tenant/name`)."""


def needs_tenure(exclusive: Exclusivity | None) -> bool:
    return exclusive is not None and exclusive.scope is ExclusiveScope.GLOBAL


def covered_by(assignments: list[Assignment]) -> Covered:
    """What an answer of the global cell confirms."""
    return {str(a.key): a.spec.ordinals for a in assignments if needs_tenure(a.spec.exclusive) and a.spec.ordinals}


def tenure_lease(region: str, asked_s: float, covered: Covered) -> Lease:
    """Counts from the asking, as every holder's lease does."""
    text = msgspec.json.encode(dict(sorted(covered.items()))).decode()
    spec = LeaseSpec(
        holder_identity=region, lease_duration_seconds=int(limits.TENURE_S), renew_time=micro_text(asked_s)
    )
    return Lease(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE, annotations={COVERED: text}), spec=spec)


def covered_of(lease: Lease) -> Covered:
    text = lease.metadata.annotations.get(COVERED, "{}")
    return msgspec.json.decode(text, type=dict[str, tuple[int, ...]])


def left_s(lease: Lease, now: float) -> float:
    """How long it lasts from now, by the clock of the cell that holds it."""
    return parse_time(lease.spec.renew_time) + limits.TENURE_S - now if lease.spec.renew_time else 0.0


def names(covered: Covered, assignment: Key, ordinal: int) -> bool:
    return ordinal in covered.get(str(assignment), ())
