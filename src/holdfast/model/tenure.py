"""Tenure: a region's 40 s lease for running exclusive work of scope Global.

It is stored as a coordination Lease in the region: when the region asked the global cell, and which ordinals of which
Assignments the response confirmed. Other ordinals must not run. Only another response extends the tenure, so in a
partitioned region such work stops (S7).
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
ORDINALS_ANNOTATION = "holdfast.dev/tenure"

CoveredOrdinals = dict[str, tuple[int, ...]]
"""Ordinals that a region may run, by Assignment (`tenant/name`)."""


def needs_tenure(exclusive: Exclusivity | None) -> bool:
    return exclusive is not None and exclusive.scope is ExclusiveScope.GLOBAL


def confirmed_ordinals(assignments: list[Assignment]) -> CoveredOrdinals:
    """The ordinals that a response of the global cell confirms."""
    return {str(a.key): a.spec.ordinals for a in assignments if needs_tenure(a.spec.exclusive) and a.spec.ordinals}


def tenure_lease(region: str, asked_s: float, covered: CoveredOrdinals) -> Lease:
    """The lease counts from when the region sent the request (`asked_s`)."""
    text = msgspec.json.encode(dict(sorted(covered.items()))).decode()
    spec = LeaseSpec(
        holder_identity=region, lease_duration_seconds=int(limits.TENURE_S), renew_time=micro_text(asked_s)
    )
    return Lease(
        metadata=ObjectMeta(name=NAME, namespace=NAMESPACE, annotations={ORDINALS_ANNOTATION: text}), spec=spec
    )


def lease_ordinals(lease: Lease) -> CoveredOrdinals:
    text = lease.metadata.annotations.get(ORDINALS_ANNOTATION, "{}")
    return msgspec.json.decode(text, type=dict[str, tuple[int, ...]])


def remaining_s(lease: Lease, now: float) -> float:
    """Remaining time of the tenure, by the region's clock."""
    return parse_time(lease.spec.renew_time) + limits.TENURE_S - now if lease.spec.renew_time else 0.0


def covers_ordinal(covered: CoveredOrdinals, assignment: Key, ordinal: int) -> bool:
    return ordinal in covered.get(str(assignment), ())
