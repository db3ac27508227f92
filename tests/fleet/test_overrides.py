"""Overrides: approval, expiry, and verification that the effect is gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expected import only
from tests.factories import cache_of, meta, region, with_new_revision

from holdfast.fleet import overrides, region_health
from holdfast.fleet.override_kinds import RULES
from holdfast.model.meta import Key, Object
from holdfast.model.override import (
    Override,
    OverrideKind,
    OverrideScope,
    OverrideSpec,
    OverrideStatus,
    in_force,
    is_in_force,
)
from holdfast.model.quota import Grant, GrantClass, GrantSpec, GrantStatus
from holdfast.model.region import HealthState
from holdfast.model.times import parse_time, seconds_text
from holdfast.model.writes import SetStatus

BORN = 1_800_000_000.0


def override(kind: OverrideKind, **spec: Any) -> Override:
    scope = spec.pop("scope", OverrideScope(region="a", tenant="acme", workload="api"))
    return Override(
        metadata=meta("o", creation_timestamp=seconds_text(BORN)),
        spec=OverrideSpec(kind=kind, scope=scope, reason="a test", requester="ann", **spec),
    )


def after(item: Override, now: float, *others: Object) -> Override:
    """The override after one pass of the controller."""
    outcome = overrides.decide(Key("", "o"), cache_of(item, *others), now)
    for write in outcome.writes:
        assert isinstance(write, SetStatus)
        status = OverrideStatus(
            phase=write.blocks["phase"], expires_at=write.blocks["expiresAt"], conditions=write.conditions
        )
        item = with_new_revision(item, status=status)
    return item


@pytest.mark.parametrize("kind", list(OverrideKind))
def test_override_approval_depends_on_its_kind(kind: OverrideKind) -> None:
    seen = after(override(kind, ttl_seconds=60), BORN + 1)
    assert seen.status.phase == ("Pending" if RULES[kind].needs_approval else "Active")
    assert is_in_force(seen, BORN + 2) is not RULES[kind].needs_approval
    if RULES[kind].needs_approval:
        agreed = with_new_revision(seen, spec=msgspec.structs.replace(seen.spec, approver="bob"))
        assert is_in_force(after(agreed, BORN + 3), BORN + 4)


def test_unapproved_override_expires() -> None:
    seen = after(override(OverrideKind.EMERGENCY_QUOTA, ttl_seconds=60), BORN + 1)
    assert after(seen, BORN + 61).status.phase == "Expired"


@given(
    kind=st.sampled_from(list(OverrideKind)),
    ttl=st.floats(1, 200_000),
    looks=st.lists(st.floats(0, 300_000), max_size=8),
    revoke_at=st.none() | st.floats(0, 300_000),
)
def test_override_is_never_in_force_after_expiry(
    kind: OverrideKind, ttl: float, looks: list[float], revoke_at: float | None
) -> None:
    item = override(kind, ttl_seconds=ttl, approver="bob")
    most = min(ttl, RULES[kind].max_ttl_s)
    first: float | None = None
    for at in sorted(looks):
        now = BORN + at
        if revoke_at is not None and at >= revoke_at:
            item = with_new_revision(item, spec=msgspec.structs.replace(item.spec, revoked=True))
        item = after(item, now)
        if item.status.phase == "Active" and first is None:
            first = now
        if is_in_force(item, now):
            assert first is not None and now < first + most + 1e-3
            assert not item.spec.revoked
        if item.status.phase in ("Expired", "Revoked"):
            assert not is_in_force(item, now) and not is_in_force(item, BORN)


def test_override_expiry_is_set_once() -> None:
    seen = after(override(OverrideKind.AVOID_REGION, ttl_seconds=100), BORN + 1)
    deadline = seen.status.expires_at
    assert parse_time(deadline) == BORN + 101
    assert after(seen, BORN + 50).status.expires_at == deadline


def test_end_of_declared_loss_is_verified() -> None:
    item = after(override(OverrideKind.DECLARE_REGION_LOST, ttl_seconds=10, approver="bob"), BORN)
    there = region("a")
    write = only(region_health.decide(Key("", "a"), cache_of(there, item), BORN + 1).writes, SetStatus)
    lost = with_new_revision(there, status=msgspec.structs.replace(there.status, health=write.blocks["health"]))
    assert lost.status.health.state is HealthState.LOST
    ended = after(item, BORN + 11, lost)
    assert {c.type: c.status for c in ended.status.conditions}["Reverted"] == "False"
    write = only(region_health.decide(Key("", "a"), cache_of(lost, ended), BORN + 12).writes, SetStatus)
    found = with_new_revision(lost, status=msgspec.structs.replace(lost.status, health=write.blocks["health"]))
    ended = after(ended, BORN + 13, found)
    assert {c.type: c.status for c in ended.status.conditions}["Reverted"] == "True"


def test_emergency_quota_is_reverted_when_no_region_holds_it() -> None:
    item = after(override(OverrideKind.EMERGENCY_QUOTA, ttl_seconds=10, approver="bob", quota={"cpu": "4"}), BORN)
    assert in_force([item], OverrideKind.EMERGENCY_QUOTA, BORN + 1)
    grant = Grant(
        metadata=meta("a.emergency", "acme"),
        spec=GrantSpec(region="a", grant_class=GrantClass.EMERGENCY),
        status=GrantStatus(limit={"cpu": "4"}),
    )
    ended = after(item, BORN + 11, grant)
    assert "still holds emergency quota in a" in ended.status.conditions[1].message
    empty = with_new_revision(grant, status=GrantStatus())
    assert after(ended, BORN + 12, empty).status.conditions[1].status == "True"
