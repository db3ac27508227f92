"""Freshness table: every input is used up to its maximum age and not beyond."""

from __future__ import annotations

import msgspec
import pytest
from tests.expected import of_type, only, present
from tests.factories import cache_of, meta, node, priority, region, tenant, with_new_revision, workload

from holdfast.authority import placement_checks
from holdfast.fleet import assign, region_health, region_latency
from holdfast.link import grant_sync
from holdfast.model import input_freshness, limits
from holdfast.model.assignment import Assignment
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, OverrideSpec, OverrideStatus
from holdfast.model.quota import Grant, GrantSpec, grant_name
from holdfast.model.region import HealthState, PeerProbeResult
from holdfast.model.times import micro_text, parse_time
from holdfast.model.writes import Create
from holdfast.scheduling.last_contact import is_effective_here, last_contact_s

NOW = 1_800_000_000.0
TESTED = {"NODE_REPORT", "REGION_SUMMARY", "PEER_LATENCY", "GRANT", "POLICY", "OVERRIDE"}


def test_every_freshness_row_has_a_test() -> None:
    rows = {name: row for name, row in vars(input_freshness).items() if isinstance(row, input_freshness.MaxAge)}
    assert set(rows) == TESTED
    assert all(row.seconds > 0 and row.since and row.judge and row.after for row in rows.values())


def test_bind_to_node_with_expired_lease_is_refused() -> None:
    assert input_freshness.NODE_REPORT.seconds == limits.NODE_LEASE_TTL_S
    assert placement_checks.node_refusal(node("n1"), "n1", 1, live=True) is None
    refused = placement_checks.node_refusal(node("n1"), "n1", 1, live=False)
    assert refused is not None and refused.reason == "NodeUnreachable"


@pytest.mark.parametrize("lost_after_s", [45.0, 3600.0])
def test_region_with_stale_summary_gets_no_new_replicas_for_any_lost_after(lost_after_s: float) -> None:
    there = region("east")
    patient = with_new_revision(there, spec=msgspec.structs.replace(there.spec, lost_after_seconds=lost_after_s))
    heard = msgspec.structs.replace(patient.status.health, last_contact_at=micro_text(NOW), last_sequence=1)
    known = with_new_revision(patient, status=msgspec.structs.replace(patient.status, health=heard))
    fresh_s, old_s = input_freshness.REGION_SUMMARY.seconds - 1, input_freshness.REGION_SUMMARY.seconds + 1
    assert region_health.assess(known, fresh_s, cache_of(known), NOW + fresh_s).state is HealthState.HEALTHY
    verdict = region_health.assess(known, old_s, cache_of(known), NOW + old_s)
    assert verdict.state is not HealthState.HEALTHY
    suspect = with_new_revision(
        known, status=msgspec.structs.replace(known.status, health=msgspec.structs.replace(heard, state=verdict.state))
    )
    made = assign.decide(workload().key, cache_of(workload(), suspect, tenant(), priority()), NOW + old_s).writes
    assert not [w for w in made if isinstance(w, Create) and of_type(w.object, Assignment).spec.replicas]


def test_old_latency_counts_as_unknown() -> None:
    probe = PeerProbeResult(region="west", reachable=True, at=micro_text(NOW), latency_ms=10.0)
    there = region("east")
    status = msgspec.structs.replace(
        there.status, report=msgspec.structs.replace(present(there.status.report), peers=(probe,))
    )
    view, old_s = cache_of(with_new_revision(there, status=status)), input_freshness.PEER_LATENCY.seconds + 1
    assert region_latency.latency_ms("east", "west", view, NOW + old_s - 2) == 10.0
    assert region_latency.latency_ms("east", "west", view, NOW + old_s) is None


def test_expired_grant_lease_refuses_placements() -> None:
    assert input_freshness.GRANT.seconds == input_freshness.POLICY.seconds == limits.GRANT_LEASE_S
    grant = Grant(metadata=meta("east.normal", "acme"), spec=GrantSpec(region="east", limit={"cpu": "4"}))
    named = with_new_revision(grant, metadata=meta(grant_name("east", grant.spec.grant_class), "acme"))
    write = only(grant_sync.copy_writes(Key("acme", "normal"), cache_of(named), cache_of(), "east", NOW), Create)
    until_s = parse_time(of_type(write.object, GrantCopy).spec.lease_expires_at)
    assert until_s == pytest.approx(NOW + input_freshness.GRANT.seconds)


def test_permissive_override_needs_contact_and_forbidding_override_does_not() -> None:
    def made(kind: OverrideKind) -> Override:
        status = OverrideStatus(phase="Active", expires_at=micro_text(NOW + 3600))
        return Override(metadata=meta(kind.value.lower()), spec=OverrideSpec(kind=kind, reason="x"), status=status)

    old_s = NOW - input_freshness.OVERRIDE.seconds - 1
    allows, forbids = made(OverrideKind.APPROVE_REPAIR), made(OverrideKind.PAUSE_REPAIR)
    assert is_effective_here(allows, NOW, NOW - 5) and not is_effective_here(allows, NOW, old_s)
    assert is_effective_here(forbids, NOW, NOW - 5) and is_effective_here(forbids, NOW, old_s)
    copy = GrantCopy(metadata=meta("normal", "acme"), spec=GrantCopySpec(last_contact_at=micro_text(NOW - 9)))
    assert last_contact_s([copy]) == pytest.approx(NOW - 9)
