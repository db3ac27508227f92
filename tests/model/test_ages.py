"""Freshness table: every input is used up to its maximum age and not beyond."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.authority import checks
from holdfast.fleet import assign, region_health
from holdfast.flow.heard import acts_here, heard_s
from holdfast.link import grant_sync
from holdfast.model import ages, limits
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, OverrideSpec, OverrideStatus
from holdfast.model.quota import Grant, GrantSpec
from holdfast.model.region import HealthState
from holdfast.model.times import micro_text, parse_time
from holdfast.model.writes import Create
from making import again, meta, node, priority, region, tenant, view, workload

NOW = 1_800_000_000.0
TESTED = {"NODE_REPORT", "REGION_SUMMARY", "GRANT", "POLICY", "OVERRIDE"}


def test_every_freshness_row_has_a_test():
    rows = {name: row for name, row in vars(ages).items() if isinstance(row, ages.MaxAge)}
    assert set(rows) == TESTED
    assert all(row.seconds > 0 and row.since and row.judge and row.after for row in rows.values())


def test_bind_to_node_with_expired_lease_is_refused():
    assert ages.NODE_REPORT.seconds == limits.NODE_LEASE_TTL_S
    assert checks.node(node("n1"), "n1", 1, live=True) is None
    refused = checks.node(node("n1"), "n1", 1, live=False)
    assert refused is not None and refused.reason == "NodeUnreachable"


@pytest.mark.parametrize("lost_after_s", [45.0, 3600.0])
def test_region_with_old_summary_gets_no_new_replicas_whatever_its_lost_after(lost_after_s):
    there = region("east")
    patient = again(there, spec=msgspec.structs.replace(there.spec, lost_after_seconds=lost_after_s))
    heard = msgspec.structs.replace(patient.status.health, heard_at=micro_text(NOW), heard_sequence=1)
    known = again(patient, status=msgspec.structs.replace(patient.status, health=heard))
    fresh_s, old_s = 15.0, ages.REGION_SUMMARY.seconds + 1
    assert region_health.grade(known, fresh_s, view(known), NOW + fresh_s).state is HealthState.HEALTHY
    verdict = region_health.grade(known, old_s, view(known), NOW + old_s)
    assert verdict.state is not HealthState.HEALTHY
    suspect = again(
        known,
        status=msgspec.structs.replace(known.status, health=msgspec.structs.replace(heard, state=verdict.state)),
    )
    made = assign.decide(workload().key, view(workload(), suspect, tenant(), priority()), NOW + old_s).writes
    assert not [w for w in made if isinstance(w, Create) and w.object.spec.replicas]


def test_expired_grant_lease_refuses_placements():
    assert ages.GRANT.seconds == ages.POLICY.seconds == limits.GRANT_LEASE_S
    grant = Grant(metadata=meta("east.normal", "acme"), spec=GrantSpec(region="east", limit={"cpu": "4"}))
    named = again(grant, metadata=meta(grant_sync.grant_name("east", grant.spec.grant_class), "acme"))
    (write,) = grant_sync.copy_writes(Key("acme", "normal"), view(named), view(), "east", NOW)
    until_s = parse_time(write.object.spec.spend_until)
    assert until_s == pytest.approx(NOW + ages.GRANT.seconds)


def test_permissive_override_needs_contact_and_forbidding_override_does_not():
    def made(kind):
        status = OverrideStatus(phase="Active", expires_at=micro_text(NOW + 3600))
        return Override(metadata=meta(kind.value.lower()), spec=OverrideSpec(kind=kind, reason="x"), status=status)

    old_s = NOW - ages.OVERRIDE.seconds - 1
    allows, forbids = made(OverrideKind.APPROVE_REPAIR), made(OverrideKind.PAUSE_REPAIR)
    assert acts_here(allows, NOW, NOW - 5) and not acts_here(allows, NOW, old_s)
    assert acts_here(forbids, NOW, NOW - 5) and acts_here(forbids, NOW, old_s)
    copy = GrantCopy(metadata=meta("normal", "acme"), spec=GrantCopySpec(heard_at=micro_text(NOW - 9)))
    assert heard_s([copy]) == pytest.approx(NOW - 9)
