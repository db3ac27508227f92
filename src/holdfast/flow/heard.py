"""When a region last heard the global cell, and which overrides still act there by that."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import ages
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.override import Override, OverrideKind, acts
from holdfast.model.times import parse_time

PERMISSIVE = frozenset({OverrideKind.APPROVE_REPAIR})
"""Kinds that let a region do more than usual by itself: doubt ends them. What a raised priority may take is judged with
the grant it is spent under."""


def heard_s(copies: Iterable[GrantCopy]) -> float:
    """The last answer of the global cell that a limit here is known to follow; endless where there is no limit yet."""
    times = [parse_time(c.spec.heard_at) for c in copies if c.spec.heard_at]
    return max(times, default=float("inf"))


def acts_here(override: Override, now: float, heard_at_s: float) -> bool:
    """Whether an override acts in this region now. One that allows more needs news that it still stands,
    unless it was given here."""
    if not acts(override, now):
        return False
    given_here = override.spec.break_glass is not None
    return given_here or override.spec.kind not in PERMISSIVE or now - heard_at_s <= ages.OVERRIDE.seconds
