"""Whether a region hears the global cell: a coordination Lease in the region, rewritten by the link when that changes.

`holderIdentity` is `global` while it answers and empty while it does not; `acquireTime` says since when. It decides
nothing but what people may do here without the global cell: no limit, fence or tenure rests on it.
"""

from __future__ import annotations

from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.times import micro_text

NAME, NAMESPACE = "global-cell", "holdfast-system"
_HEARD = "global"


def reach_lease(now: float, *, heard: bool) -> Lease:
    spec = LeaseSpec(holder_identity=_HEARD if heard else "", acquire_time=micro_text(now))
    return Lease(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE), spec=spec)


def is_heard(lease: Lease) -> bool:
    return lease.spec.holder_identity == _HEARD
