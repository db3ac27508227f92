"""Health of a region as tables: when it is suspect or lost, who is a witness, and when capacity is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import assignment, cache_of, meta, region

from holdfast.fleet import region_health
from holdfast.fleet.region_health import REGION_CHECK_EVERY_S, assess, lost_zones, suspect_after_s
from holdfast.model.assignment import Purpose
from holdfast.model.meta import Key
from holdfast.model.override import ACTIVE, Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.region import HealthState, PeerProbeResult, Region, RegionHealth, ZoneReport
from holdfast.model.times import micro_text
from holdfast.model.workload import Batch
from holdfast.model.writes import SetStatus

replace = msgspec.structs.replace
NOW_S = 1_790_000_000.0
HEALTHY, SUSPECT, LOST = HealthState.HEALTHY, HealthState.SUSPECT, HealthState.LOST
AWAITING = HealthState.AWAITING_WITNESS


def seen(name: str, silent_s: float = 0.0, *, state: HealthState = HEALTHY, **report: Any) -> Region:
    """A region whose last report came `silent_s` ago."""
    made = region(name)
    health = RegionHealth(
        state=state,
        since=micro_text(NOW_S - 500.0),
        last_contact_at=micro_text(NOW_S - silent_s),
        last_sequence=1,
        reason="Reporting",
    )
    status = replace(made.status, health=health, report=replace(present(made.status.report), **report))
    return replace(made, status=status)


def witness(name: str, reaches: bool | None, silent_s: float = 0.0) -> Region:
    peers = () if reaches is None else (PeerProbeResult("east", reachable=reaches),)
    return seen(name, silent_s, peers=(PeerProbeResult("other", reachable=True), *peers))


EAST = seen("east")
SUSPECT_S, LOST_S = suspect_after_s(EAST), EAST.spec.lost_after_seconds


@pytest.mark.parametrize(
    ("silent_s", "state", "reason", "next_s"),
    [
        (0.0, HEALTHY, "Reporting", SUSPECT_S + 0.05),
        (SUSPECT_S - 0.5, HEALTHY, "Reporting", 0.55),
        (SUSPECT_S, SUSPECT, "NotReporting", LOST_S - SUSPECT_S + 0.05),
        (LOST_S - 0.5, SUSPECT, "NotReporting", 0.55),
        (LOST_S, LOST, "UnreachableConfirmed", REGION_CHECK_EVERY_S),
    ],
)
def test_region_is_suspect_and_then_lost_without_reports(
    silent_s: float, state: HealthState, reason: str, next_s: float
) -> None:
    found = assess(EAST, silent_s, cache_of(EAST, witness("west", False)), NOW_S)
    assert (found.state, found.reason) == (state, reason)
    assert found.next_s == pytest.approx(next_s)


@pytest.mark.parametrize(
    ("others", "state", "reason"),
    [
        pytest.param([], AWAITING, "NoWitness", id="the only region"),
        pytest.param([witness("a", None)], AWAITING, "NoWitness", id="nobody probes it"),
        pytest.param([witness("a", False)], LOST, "UnreachableConfirmed", id="the only witness"),
        pytest.param([witness("a", True)], AWAITING, "WitnessDisagrees", id="it is reached"),
        pytest.param([witness("a", False), witness("b", True)], AWAITING, "WitnessDisagrees", id="half is no majority"),
        pytest.param(
            [witness("a", False), witness("b", False), witness("c", True)], LOST, "UnreachableConfirmed", id="majority"
        ),
        pytest.param([witness("a", False), witness("b", None)], AWAITING, "TooFewWitnesses", id="half does not probe"),
        pytest.param([witness("a", False, SUSPECT_S)], SUSPECT, "GlobalCellIsolated", id="nobody else reports"),
        pytest.param([witness("a", False, SUSPECT_S - 0.5)], LOST, "UnreachableConfirmed", id="a report just in time"),
        pytest.param(
            [witness("a", False), witness("b", True, SUSPECT_S)], LOST, "UnreachableConfirmed", id="a silent witness"
        ),
    ],
)
def test_loss_needs_the_majority_of_the_reporting_regions(
    others: list[Region], state: HealthState, reason: str
) -> None:
    found = assess(EAST, LOST_S, cache_of(EAST, *others), NOW_S)
    assert (found.state, found.reason, found.next_s) == (state, reason, REGION_CHECK_EVERY_S)


def test_regions_that_never_reported_are_no_witnesses() -> None:
    new = replace(seen("new"), status=replace(seen("new").status, report=None))
    assert assess(EAST, LOST_S, cache_of(EAST, new), NOW_S).reason == "NoWitness"


def health_of(*items: Any, now_s: float = NOW_S) -> tuple[RegionHealth | None, float | None]:
    found = region_health.decide(Key("", "east"), cache_of(*items), now_s)
    writes = [write for write in found.writes if isinstance(write, SetStatus)]
    return (of_type(writes[0].blocks["health"], RegionHealth) if writes else None), found.requeue_after_s


def test_new_report_is_the_last_contact_and_an_old_one_is_not() -> None:
    health, _ = health_of(seen("east", 30.0, sequence=2))
    assert health is not None
    assert (health.last_contact_at, health.last_sequence, health.state) == (micro_text(NOW_S), 2, HEALTHY)
    assert health.since == micro_text(NOW_S - 500.0), "the state is the same"
    health, again_s = health_of(seen("east", 30.0))
    assert health is not None and (health.state, health.since) == (SUSPECT, micro_text(NOW_S))
    assert health.last_contact_at == micro_text(NOW_S - 30.0)
    assert again_s == pytest.approx(LOST_S - 30.0 + 0.05)


def test_unchanged_health_is_not_written() -> None:
    item = seen("east", 1.0)
    write = region_health.decide(Key("", "east"), cache_of(item), NOW_S).writes[0]
    assert isinstance(write, SetStatus)
    known = replace(item, status=replace(item.status, conditions=tuple(present(write.conditions))))
    assert health_of(known)[0] is None
    assert health_of(known)[1] == pytest.approx(SUSPECT_S - 1.0 + 0.05)


@pytest.mark.parametrize(
    ("kind", "scope", "left_s", "lost"),
    [
        (OverrideKind.DECLARE_REGION_LOST, "east", 60.0, True),
        (OverrideKind.DECLARE_REGION_LOST, "west", 60.0, False),
        (OverrideKind.DECLARE_REGION_LOST, "east", -60.0, False),
        (OverrideKind.PAUSE_REPAIR, "east", 60.0, False),
    ],
)
def test_operator_declares_a_region_lost(*, kind: OverrideKind, scope: str, left_s: float, lost: bool) -> None:
    spec = OverrideSpec(kind=kind, scope=OverrideScope(region=scope), reason="fire")
    status = OverrideStatus(phase=ACTIVE, expires_at=micro_text(NOW_S + left_s))
    item = Override(meta("declared"), spec, status)
    never = replace(seen("east"), status=replace(seen("east").status, report=None, health=RegionHealth()))
    for where in (seen("east", sequence=2), never):
        health, _ = health_of(where, item)
        if lost:
            assert health is not None and (health.state, health.reason) == (LOST, "DeclaredLost")
        else:
            assert health is None or health.state is HEALTHY


def zones(*counts: tuple[str, int, int]) -> tuple[ZoneReport, ...]:
    return tuple(ZoneReport(name, nodes=nodes, live_nodes=live) for name, nodes, live in counts)


def test_zone_with_nodes_and_none_alive_is_lost() -> None:
    found = seen("east", zones=zones(("a", 2, 0), ("b", 2, 1), ("c", 0, 0)))
    assert lost_zones(found) == ("a",)
    assert lost_zones(replace(found, status=replace(found.status, report=None))) == ()


@pytest.mark.parametrize(
    ("report", "work", "status", "says"),
    [
        ({}, [], "False", "all zones have live nodes"),
        ({"zones": zones(("a", 1, 0))}, [], "True", "zone a has no live node"),
        ({"live_nodes": 1, "capacity": {"cpu": "2"}}, [{}], "True", "cpu is short by"),
        ({"live_nodes": 2, "capacity": {"cpu": "2"}}, [{}], "False", "all zones"),
        ({"live_nodes": 1, "capacity": {"cpu": "99", "memory": "99Gi"}}, [{}], "False", "all zones"),
        ({"live_nodes": 1, "capacity": {"cpu": "2"}}, [{"reclaimable": True}], "False", "all zones"),
        ({"live_nodes": 1, "capacity": {"cpu": "2"}}, [{"purpose": Purpose.RECOVERY}], "False", "all zones"),
        ({"live_nodes": 1, "capacity": {"cpu": "2"}}, [{"batch": Batch(completions=1)}], "False", "all zones"),
        ({"nodes": 0, "live_nodes": 0, "capacity": {}}, [{}], "False", "all zones"),
    ],
)
def test_capacity_is_lost_if_firm_work_does_not_fit_on_live_nodes(
    report: dict[str, Any], work: list[dict[str, Any]], status: str, says: str
) -> None:
    items = [assignment(where="east", replicas=30, **spec) for spec in work]
    found = region_health.decide(Key("", "east"), cache_of(seen("east", sequence=2, **report), *items), NOW_S)
    write = of_type(found.writes[0], SetStatus)
    (condition,) = present(write.conditions)
    assert (condition.type, condition.status) == ("CapacityLost", status) and says in condition.message
    assert condition.reason == ("CapacityLost" if status == "True" else "CapacityPresent")


@pytest.mark.parametrize(
    ("new", "old", "wakes"),
    [
        (EAST, None, True),
        (None, EAST, False),
        (EAST, EAST, False),
        (seen("east", sequence=2), EAST, True),
        (replace(EAST, spec=replace(EAST.spec, cost=1)), EAST, True),
    ],
)
def test_region_is_assessed_after_its_report_or_spec_changed(
    new: Region | None, old: Region | None, *, wakes: bool
) -> None:
    assert list(region_health.woken_by_region(new, old, cache_of())) == ([Key("", "east")] if wakes else [])
