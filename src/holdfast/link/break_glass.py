"""Overrides given in this region without the global cell: told to it when it is back, and ended here if it says so.

The region's own object stays the one that acts here. What the global cell gets is a record with a life of its own: who
asked, when and why, and what is left of it; it is in force there as well until it ends. Revoking either ends both.
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
    """What the global cell must be told of one override that was given here."""
    given, record = here.get(Override, key.name), there.get(Override, key.name)
    if given is None or not is_local_break_glass(key.name, region) or not given.status.phase:
        return ()
    ended = given.status.phase in _ENDED
    if record is None:
        over_s = now - parse_time(given.status.expires_at) if given.status.expires_at else 0.0
        if ended and over_s > limits.ENDED_OVERRIDE_RETENTION_S / 2:
            return ()  # it was told long ago, and the record has gone as records do
        return (Create(_record(given, region, now, ended=ended)),)
    same = record.spec.break_glass is not None and record.spec.break_glass.uid == given.uid
    if same and ended and record.status.phase == ACTIVE and not record.spec.revoked:
        return (Update(msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, revoked=True))),)
    return ()


def _record(given: Override, region: str, now: float, *, ended: bool) -> Override:
    left_s = parse_time(given.status.expires_at) - now if given.status.phase == ACTIVE else 0.0
    told = BreakGlass(
        region=region,
        uid=given.uid,
        requested_at=given.metadata.creation_timestamp,
        requested_ttl_seconds=given.spec.ttl_seconds,
    )
    spec = msgspec.structs.replace(
        given.spec,
        ttl_seconds=min(max(1.0, round(left_s, 3)), given.spec.ttl_seconds),
        revoked=ended,
        break_glass=told,
    )
    return Override(metadata=ObjectMeta(name=given.metadata.name, labels=given.metadata.labels), spec=spec)


def revocation_writes(source: Override | None, given: Override | None) -> Iterable[Write]:
    """What the record at the global cell changes here: whoever revokes it there ends it."""
    if source is None or given is None or not source.spec.revoked or given.spec.revoked:
        return ()
    known = source.spec.break_glass
    if known is None or known.uid != given.uid or given.status.phase in _ENDED:
        return ()
    meta = msgspec.structs.replace(given.metadata, generation=given.metadata.generation + 1)
    spec = msgspec.structs.replace(given.spec, revoked=True)
    return (Update(msgspec.structs.replace(given, metadata=meta, spec=spec)),)
