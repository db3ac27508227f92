"""Break-glass overrides: reports them to the global cell after a partition, and applies revocations made there.

The region's object is in force in the region. The global cell gets a record with requester, reason and remaining time;
it is in force there until it ends. Revoking either one ends both.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model import limits
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.override import ACTIVE, EXPIRED, REVOKED, BreakGlass, Override, break_glass_prefix
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.writes import Create, Update, Write

_ENDED = frozenset({EXPIRED, REVOKED})


def is_local_break_glass(name: str, region: str) -> bool:
    return name.startswith(break_glass_prefix(region))


def record_writes(key: Key, there: View, here: View, region: str, now: float) -> Iterable[Write]:
    """The write of the global record of one break-glass override of this region."""
    local, record = here.get(Override, key.name), there.get(Override, key.name)
    if local is None or not is_local_break_glass(key.name, region) or not local.status.phase:
        return ()
    ended = local.status.phase in _ENDED
    if record is None:
        over_s = now - parse_time(local.status.expires_at) if local.status.expires_at else 0.0
        if ended and over_s > limits.ENDED_OVERRIDE_RETENTION_S / 2:
            return ()  # it was reported long ago, and the record has expired
        return (Create(_record(local, region, now, ended=ended)),)
    same = record.spec.break_glass is not None and record.spec.break_glass.uid == local.uid
    if same and ended and record.status.phase == ACTIVE and not record.spec.revoked:
        return (Update(msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, revoked=True))),)
    return ()


def _record(local: Override, region: str, now: float, *, ended: bool) -> Override:
    left_s = parse_time(local.status.expires_at) - now if local.status.phase == ACTIVE else 0.0
    origin = BreakGlass(
        region=region,
        uid=local.uid,
        requested_at=local.metadata.creation_timestamp,
        requested_ttl_seconds=local.spec.ttl_seconds,
        insisted=local.spec.break_glass is not None and local.spec.break_glass.insisted,
    )
    spec = msgspec.structs.replace(
        local.spec,
        ttl_seconds=min(max(1.0, round(left_s, 3)), local.spec.ttl_seconds),
        revoked=ended,
        break_glass=origin,
    )
    return Override(metadata=ObjectMeta(name=local.metadata.name, labels=local.metadata.labels), spec=spec)


def revocation_writes(source: Override | None, local: Override | None) -> Iterable[Write]:
    """The write that revokes the region's override if its global record was revoked."""
    if source is None or local is None or not source.spec.revoked or local.spec.revoked:
        return ()
    known = source.spec.break_glass
    if known is None or known.uid != local.uid or local.status.phase in _ENDED:
        return ()
    meta = msgspec.structs.replace(local.metadata, generation=local.metadata.generation + 1)
    spec = msgspec.structs.replace(local.spec, revoked=True)
    return (Update(msgspec.structs.replace(local, metadata=meta, spec=spec)),)
