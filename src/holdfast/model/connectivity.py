"""Connectivity of a region to the global cell, stored as a coordination Lease that the link rewrites on every change.

`holderIdentity` is `global` while the global cell answers, else empty. `acquireTime` is the time of the last change.
Only break-glass admission reads this Lease. No limit, fence or tenure depends on it.
"""

from __future__ import annotations

from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.times import micro_text

NAME, NAMESPACE = "global-cell", "holdfast-system"
_CONNECTED = "global"


def connectivity_lease(now: float, *, connected: bool) -> Lease:
    spec = LeaseSpec(holder_identity=_CONNECTED if connected else "", acquire_time=micro_text(now))
    return Lease(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE), spec=spec)


def is_connected(lease: Lease) -> bool:
    return lease.spec.holder_identity == _CONNECTED
