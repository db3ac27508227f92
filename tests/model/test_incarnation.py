"""A report of an incarnation older than the stored one is refused."""

from __future__ import annotations

from holdfast.model.meta import ObjectMeta
from holdfast.model.region import Region, RegionReport, RegionSpec, RegionStatus, validate_region


def region(incarnation: int) -> Region:
    report = RegionReport(incarnation=incarnation)
    return Region(ObjectMeta(name="us-east"), RegionSpec(zones=("a",)), RegionStatus(report=report))


def test_report_of_lower_incarnation_is_refused() -> None:
    assert not list(validate_region(region(2), region(1)))
    assert not list(validate_region(region(2), region(2)))
    (cause,) = validate_region(region(1), region(2))
    assert cause.field == "status.report.incarnation"
