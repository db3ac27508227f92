"""Confirmations that the data of a claim is deleted: a report has room for a limited number, and all get their turn."""

from __future__ import annotations

import msgspec
from tests.expected import of_type, only
from tests.factories import cache_of, meta, region

from holdfast.fleet import volume_claims
from holdfast.link.report import CLAIMS_WITHOUT_DATA_MAX, region_report
from holdfast.model.ownership import VOLUME_CLAIM_FINALIZER
from holdfast.model.region import Region, RegionReport
from holdfast.model.volume import (
    DataDeletion,
    ReclaimPolicy,
    Volume,
    VolumeClaim,
    VolumeClaimSpec,
    VolumeClaimStatus,
    VolumeSpec,
)
from holdfast.model.writes import SetStatus, Update

REPORTS_MAX = 3


def ordered_claim(name: str, *confirmed_by: str) -> VolumeClaim:
    made = meta(name, "acme", finalizers=(VOLUME_CLAIM_FINALIZER,), deletion_timestamp="2026-01-01T00:00:00Z")
    order = DataDeletion(at="2026-01-01T00:00:00Z", confirmed_by=confirmed_by)
    spec = VolumeClaimSpec(size="1Gi", reclaim_policy=ReclaimPolicy.DELETE)
    return VolumeClaim(made, spec, VolumeClaimStatus(data_deletion=order))


def reported(name: str, *here: VolumeClaim | Volume) -> Region:
    write = only(tuple(region_report(cache_of(region(name)), cache_of(*here), name, 1.0)), SetStatus)
    found = region(name)
    report = of_type(write.blocks["report"], RegionReport)
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, report=report))


def after_report(claim: VolumeClaim, *regions: Region) -> VolumeClaim:
    """The claim after the decision that the report wakes."""
    order = claim.status.data_deletion
    for write in volume_claims.decide(claim.key, cache_of(claim, *regions), 1.0).writes:
        order = of_type(of_type(write, SetStatus).blocks.get("dataDeletion", order), DataDeletion)
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, data_deletion=order))


def test_claims_that_wait_for_a_lost_region_do_not_delay_the_confirmation_of_others() -> None:
    claims = [ordered_claim(f"c{n:03}") for n in range(CLAIMS_WITHOUT_DATA_MAX * 2 + 1)]
    for _ in range(REPORTS_MAX):
        near = reported("near", *claims)
        claims = [after_report(claim, near, region("lost")) for claim in claims]
    assert {claim.status.data_deletion for claim in claims} == {ordered_claim("any", "near").status.data_deletion}


def test_region_with_a_volume_of_the_claim_confirms_nothing() -> None:
    claim = ordered_claim("orders")
    spec = VolumeSpec(claim="orders", workload="w", replica="r", node="n", size="1Gi", claim_uid=claim.uid)
    volume = Volume(metadata=meta("orders.r", "acme"), spec=spec)
    kept = after_report(claim, reported("near", claim, volume), region("far"))
    assert kept.status.data_deletion == DataDeletion(at="2026-01-01T00:00:00Z")


def test_claim_ends_when_its_last_region_confirms_or_is_deleted() -> None:
    claim = ordered_claim("orders", "near")
    for regions in ((region("near"), reported("far", claim)), (region("near"),)):
        (end,) = volume_claims.decide(claim.key, cache_of(claim, *regions), 1.0).writes
        assert of_type(end, Update).object.metadata.finalizers == ()


def test_confirmation_of_a_region_that_is_gone_is_forgotten() -> None:
    """Another region of that name has confirmed nothing."""
    claim = after_report(ordered_claim("orders", "gone"), region("far"))
    assert claim.status.data_deletion == DataDeletion(at="2026-01-01T00:00:00Z")
