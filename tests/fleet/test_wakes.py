"""Which changes wake which controllers above regions: a change that decides nothing wakes none."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.factories import assignment, cache_of, meta, priority, region, tenant, with_new_revision, workload

from holdfast.fleet import grants, region_health
from holdfast.fleet.recovery import backing, recover
from holdfast.fleet.recovery.backing import ALL_OBJECTIVES
from holdfast.model.assignment import AssignmentStatus
from holdfast.model.meta import Condition, Key
from holdfast.model.override import ACTIVE, Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery import Recovery, RecoverySpec
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec
from holdfast.model.region import Region, ZoneReport
from holdfast.model.times import micro_text
from holdfast.model.workload import RecoveryObjective
from holdfast.model.writes import SetStatus

NOW = 1_800_000_000.0
EMPTY = cache_of()


def override(kind: OverrideKind, phase: str = "", **scope: Any) -> Override:
    spec = OverrideSpec(kind=kind, scope=OverrideScope(**scope), reason="test")
    return Override(metadata=meta("o"), spec=spec, status=OverrideStatus(phase=phase))


def recovery(where: str) -> Recovery:
    return Recovery(metadata=meta(f"{where}-1"), spec=RecoverySpec(region=where))


def test_recovery_wakes_its_region_when_it_is_created_or_deleted() -> None:
    item = recovery("x")
    assert list(recover.woken_by_recovery(item, None, EMPTY)) == [Key("", "x")]
    assert list(recover.woken_by_recovery(None, item, EMPTY)) == [Key("", "x")]
    assert list(recover.woken_by_recovery(with_new_revision(item), item, EMPTY)) == []
    assert list(recover.woken_by_recovery(None, None, EMPTY)) == []


def test_budget_wakes_its_region() -> None:
    item = RecoveryBudget(metadata=meta("b"), spec=RecoveryBudgetSpec(region="y"))
    for new, old in ((item, None), (None, item), (item, item)):
        assert list(recover.woken_by_budget(new, old, EMPTY)) == [Key("", "y")]
    assert list(recover.woken_by_budget(None, None, EMPTY)) == []


def test_new_generation_of_a_workload_wakes_the_regions_that_recover() -> None:
    seen, item = cache_of(recovery("x")), workload()
    newer = with_new_revision(item, metadata=msgspec.structs.replace(item.metadata, generation=2))
    assert list(recover.woken_by_workload(newer, item, seen)) == [Key("", "x")]
    assert list(recover.woken_by_workload(item, None, seen)) == [Key("", "x")]
    assert list(recover.woken_by_workload(with_new_revision(item), item, seen)) == []


def test_objectives_are_judged_again_when_an_avoidance_starts_or_ends() -> None:
    waiting = override(OverrideKind.AVOID_REGION, region="x")
    active = override(OverrideKind.AVOID_REGION, ACTIVE, region="x")
    assert list(backing.woken_by_override(active, waiting, EMPTY)) == [ALL_OBJECTIVES]
    assert list(backing.woken_by_override(None, active, EMPTY)) == [ALL_OBJECTIVES]
    assert list(backing.woken_by_override(with_new_revision(active), active, EMPTY)) == []
    assert list(backing.woken_by_override(None, None, EMPTY)) == []
    quota = override(OverrideKind.EMERGENCY_QUOTA, ACTIVE, tenant="acme")
    assert list(backing.woken_by_override(quota, None, EMPTY)) == []


def test_emergency_quota_wakes_the_quota_of_its_tenant() -> None:
    quota = override(OverrideKind.EMERGENCY_QUOTA, ACTIVE, tenant="acme")
    for new, old in ((quota, None), (None, quota), (quota, quota)):
        assert list(grants.woken_by_override(new, old, EMPTY)) == [Key("acme", "quota")]
    assert list(grants.woken_by_override(override(OverrideKind.AVOID_REGION, ACTIVE), None, EMPTY)) == []
    assert list(grants.woken_by_override(None, None, EMPTY)) == []


def test_quota_is_divided_again_when_demand_changes_and_not_when_replicas_become_ready() -> None:
    before = assignment(replicas=2, status=AssignmentStatus(observed_epoch=1, replicas=2, bound=2, updated=2))
    ready = with_new_revision(before, status=msgspec.structs.replace(before.status, ready=2))
    more = with_new_revision(before, spec=msgspec.structs.replace(before.spec, replicas=3))
    extra = with_new_revision(before, status=msgspec.structs.replace(before.status, bound=3))
    assert list(grants.woken_by_any(ready, before, EMPTY)) == []
    for changed in (more, extra):
        assert list(grants.woken_by_any(changed, before, EMPTY)) == [Key("acme", "quota")]
    assert list(grants.woken_by_any(None, before, EMPTY)) == [Key("acme", "quota")]
    quota = Quota(metadata=meta("quota", "acme"), spec=QuotaSpec(hard={"cpu": "1"}))
    assert list(grants.woken_by_any(quota, None, EMPTY)) == [Key("acme", "quota")]
    assert list(grants.woken_by_any(workload(), None, EMPTY)) == []


def test_override_wakes_every_region_because_its_health_may_be_declared() -> None:
    seen = cache_of(region("x"), region("y"))
    assert sorted(region_health.woken_by_override(None, None, seen)) == [Key("", "x"), Key("", "y")]


def without_a_zone(*, lost_s: float, zones: int = 1) -> Region:
    """A healthy region that reports zones without live nodes, for so long."""
    item = region("x")
    names = [ZoneReport(zone=f"x-{'ab'[n]}", nodes=1, live_nodes=0 if n < zones else 1) for n in range(2)]
    report = msgspec.structs.replace(item.status.report, zones=tuple(names)) if item.status.report else None
    lost = Condition(
        type=region_health.CAPACITY_LOST,
        status="True",
        reason="CapacityLost",
        message="zone x-a has no live node",
        last_transition_time=micro_text(NOW - lost_s),
    )
    return with_new_revision(item, status=msgspec.structs.replace(item.status, report=report, conditions=(lost,)))


def test_lost_zone_opens_a_recovery_after_a_grace_if_an_objective_needs_one() -> None:
    objective = RecoveryObjective(min_serving=2)
    half = AssignmentStatus(observed_epoch=1, replicas=2, bound=1, ready=1, serving=1, queued=1)
    items = (tenant(), priority(), workload(replicas=2, recovery=objective), region("y"))
    there = assignment(where="x", replicas=2, status=half)

    def evidence(where: Region, *more: Any) -> recover.LossEvidence | None:
        return recover.loss_evidence(where, cache_of(*items, where, *more), NOW)

    assert evidence(without_a_zone(lost_s=5.0), there) is None, "within the grace"
    found = evidence(without_a_zone(lost_s=60.0), there)
    assert found is not None and (found.cause, found.zone) == ("CapacityLost", "x-a")
    both = evidence(without_a_zone(lost_s=60.0, zones=2), there)
    assert both is not None and both.zone == "", "more than one zone"
    assert evidence(without_a_zone(lost_s=60.0)) is None, "no critical workload is assigned there"


def test_condition_capacity_lost_names_the_zone_or_what_is_short() -> None:
    def condition(where: Region, *more: Any) -> Condition:
        write = region_health.decide(Key("", "x"), cache_of(where, *more), NOW).writes[0]
        assert isinstance(write, SetStatus)
        return write.conditions[0]

    lost = condition(without_a_zone(lost_s=0.0))
    assert (lost.status, lost.message) == ("True", "zone x-a has no live node")
    fine = condition(region("x"))
    assert (fine.status, fine.message) == ("False", "all zones have live nodes")
    item = region("x", cpu="1")
    report = msgspec.structs.replace(item.status.report, live_nodes=1) if item.status.report else None
    small = with_new_revision(item, status=msgspec.structs.replace(item.status, report=report))
    work = assignment(where="x", replicas=40)
    assert "cpu is short by" in condition(small, work).message
    assert condition(item, work).status == "False", "all nodes live: the region was too small from the start"
    spare = with_new_revision(work, spec=msgspec.structs.replace(work.spec, reclaimable=True))
    assert condition(small, spare).status == "False", "reclaimable work is not missed"
