"""Maximum age of every decision input, one row each: who checks it and what happens when the input is older.

Invariant: a component never acts on an input that is too old. It takes the conservative action of the row instead.
The code reads these bounds from here; a test per row proves it.
"""

from __future__ import annotations

import msgspec

from holdfast.model import limits


class MaxAge(msgspec.Struct, frozen=True):
    """`since` is the start of the age, on the clock of `judge`. `after` is the conservative action."""

    seconds: float
    since: str
    judge: str
    after: str


NODE_REPORT = MaxAge(
    limits.NODE_LEASE_TTL_S,
    "when the agent sent its last acknowledged renewal",
    "authority",
    "no replica is bound to the node (NodeUnreachable), and its replicas count as not serving",
)
REGION_SUMMARY = MaxAge(
    9.0,
    "when the sequence number of the region's report last changed",
    "region-health",
    "the region is Suspect, whatever its lostAfterSeconds: no new replica is assigned to it",
)
PEER_LATENCY = MaxAge(
    60.0,
    "when the region's last probe of the other region ended, by the region's clock",
    "assign",
    "the latency counts as unknown, and a region with unknown latency meets no latency target",
)
GRANT = MaxAge(
    limits.GRANT_LEASE_S,
    "when the region sent the last call that the global cell answered",
    "authority",
    "the grant is not spent (GrantExpired), except as the policy's partition mode allows",
)
POLICY = MaxAge(
    limits.GRANT_LEASE_S,
    "as for grants: policies arrive over the same link",
    "authority",
    "placements by the last known policy are refused, because the grant they would spend has expired",
)
OVERRIDE = MaxAge(
    limits.GRANT_LEASE_S,
    "as for grants",
    "repair",
    "an approval of repairs has no effect, because its end may have been missed; an override that forbids stays in "
    "force until its expiry, which is measured on the monotonic clock (link/override_expiry)",
)
