"""A latency target is an input of choosing regions, from round trips that the regions measure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import assignment, cache_of, priority, region, tenant, with_new_revision, workload

from holdfast.fleet import assign, region_latency
from holdfast.model.assignment import Assignment, AssignmentStatus
from holdfast.model.meta import Object
from holdfast.model.placement_rules import LatencyTarget, PlacementRules
from holdfast.model.region import PeerProbeResult, Region
from holdfast.model.times import micro_text
from holdfast.model.validation import Causes
from holdfast.model.workload import validate_workload
from holdfast.model.writes import Create

NOW = 1_800_000_000.0


def measured(name: str, peers: dict[str, float], *, cpu: str = "16", cost: int = 100, **probe: Any) -> Region:
    made = region(name, cpu=cpu, cost=cost)
    results = tuple(
        PeerProbeResult(**{"region": peer, "reachable": True, "at": micro_text(NOW - 3), "latency_ms": ms, **probe})
        for peer, ms in peers.items()
    )
    report = msgspec.structs.replace(present(made.status.report), peers=results)
    return with_new_revision(made, status=msgspec.structs.replace(made.status, report=report))


def shares(*regions: Region, max_ms: float = 20.0, replicas: int = 4, more: tuple[Object, ...] = ()) -> dict[str, int]:
    return {a.spec.region: a.spec.replicas for a in assigned(*regions, max_ms=max_ms, replicas=replicas, more=more)}


def assigned(
    *regions: Region, max_ms: float = 20.0, replicas: int = 4, more: tuple[Object, ...] = ()
) -> list[Assignment]:
    target = LatencyTarget(to_region="home", max_ms=max_ms) if max_ms else None
    item = workload(replicas=replicas, placement=PlacementRules(latency=target))
    view = cache_of(item, tenant(), priority(), *regions, *more)
    writes = assign.decide(item.key, view, NOW).writes
    return [of_type(w.object, Assignment) for w in writes if isinstance(w, Create)]


HOME = measured("home", {"near": 8.0, "far": 90.0})
NEAR, FAR = measured("near", {"home": 9.0}), measured("far", {"home": 95.0}, cost=1)


def test_replicas_go_to_regions_within_the_target() -> None:
    assert shares(HOME, NEAR, FAR, max_ms=0) == {"home": 1, "near": 1, "far": 2}, "without a target all regions count"
    assert shares(HOME, NEAR, FAR) == {"home": 2, "near": 2}
    assert shares(HOME, NEAR, FAR, max_ms=100) == {"home": 1, "near": 1, "far": 2}
    assert shares(HOME, NEAR, FAR, max_ms=5) == {"home": 4}, "a region has no latency to itself"


def test_reason_of_the_assignment_names_latency_and_target() -> None:
    reasons = {a.spec.region: a.spec.reason for a in assigned(HOME, NEAR, FAR)}
    assert reasons["near"].endswith("latency to home 8 ms (target 20 ms)")


def test_latency_measured_by_the_other_region_counts() -> None:
    assert shares(HOME, region("near"), region("far")) == {"home": 2, "near": 2}


@pytest.mark.parametrize("probe", [{"reachable": False}, {"at": micro_text(NOW - 3600)}, {"latency_ms": 0.0}])
def test_unknown_latency_meets_no_target(probe: dict[str, Any]) -> None:
    here, there = measured("home", {"near": 8.0}, **probe), measured("near", {"home": 8.0}, **probe)
    assert shares(here, there) == {"home": 4}


def test_target_that_no_region_meets_forbids_none() -> None:
    far, farther = measured("far", {"home": 90.0}), measured("farther", {"home": 99.0})
    found = assigned(far, farther)
    assert {a.spec.region: a.spec.replicas for a in found} == {"far": 2, "farther": 2}
    assert all(a.spec.reason.endswith("(target 20 ms, missed)") for a in found)


def test_assigned_replicas_stay_when_the_latency_changes() -> None:
    """The target is an input of new assignments; running replicas are not moved for it."""
    served = AssignmentStatus(observed_epoch=1, replicas=4, bound=4, ready=4, serving=4)
    held = assignment("api", "far", replicas=4, status=served)
    assert shares(HOME, NEAR, FAR, more=(held,)) == {}


@pytest.mark.parametrize(("to_region", "max_ms"), [("", 5.0), ("Not A Region", 5.0), ("home", 0.0), ("home", 1e9)])
def test_invalid_target_is_refused(to_region: str, max_ms: float) -> None:
    rules = PlacementRules(latency=LatencyTarget(to_region=to_region, max_ms=max_ms))
    found: Causes = validate_workload(workload(placement=rules), None)
    assert any("spec.placement.latency" in cause.field for cause in found)


def test_latency_is_known_between_a_region_and_itself_only_without_reports() -> None:
    view = cache_of(region("home"), region("near"))
    assert region_latency.latency_ms("home", "home", view, NOW) == 0.0
    assert region_latency.latency_ms("home", "near", view, NOW) is None
