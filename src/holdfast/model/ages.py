"""How old an input may be and still decide what it decided fresh: one row each, with who judges it and what follows.

What always holds: an input past its age is never guessed on; whoever would use it takes the stricter way instead. The
code reads its bounds here, and a test for every row shows that it does.
"""

from __future__ import annotations

import msgspec

from holdfast.model import limits


class MaxAge(msgspec.Struct, frozen=True):
    """`since` is the moment its age counts from, always on the judge's own clock; `after` what holds from then on."""

    seconds: float
    since: str
    judge: str
    after: str


NODE_REPORT = MaxAge(
    limits.NODE_LEASE_TTL_S,
    "the sending of the node's last acknowledged renewal",
    "authority",
    "nothing new is bound to the node (NodeUnreachable), and its replicas count as not serving",
)
REGION_SUMMARY = MaxAge(
    60.0,
    "the last moment the region's report moved",
    "region-health",
    "the region is Suspect whatever its lostAfterSeconds: no new work is assigned by its capacity",
)
GRANT = MaxAge(
    limits.GRANT_LEASE_S,
    "the sending of the last call the global cell has answered",
    "authority",
    "the limit is not spent (GrantExpired); what the policy's partition mode allows excepted",
)
POLICY = MaxAge(
    limits.GRANT_LEASE_S,
    "the same call as for grants: policies come over the same link",
    "authority",
    "whatever the last known policy chooses is refused with the grant it would spend",
)
OVERRIDE = MaxAge(
    limits.GRANT_LEASE_S,
    "the same call as for grants",
    "repair",
    "an approval of repairs no longer acts, as its end may have been missed; what forbids goes on to its own end, "
    "which is counted on a clock that only passes (link/countdown)",
)
