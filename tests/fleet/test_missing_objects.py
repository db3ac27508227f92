"""Decisions about objects that do not exist, or not any more, write nothing."""

from __future__ import annotations

from tests.factories import cache_of, priority, region, tenant, workload

from holdfast.fleet import assign, assign_wakes, region_health
from holdfast.fleet.recovery import backing, need, recover
from holdfast.fleet.recovery.need import critical_workloads
from holdfast.model.assignment import Assignment
from holdfast.model.meta import Key, Object
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.workload import RecoveryObjective
from holdfast.model.writes import NO_CHANGES, Create
from holdfast.scheduling import node_health


def test_deleted_region_has_no_health_and_opens_no_recovery() -> None:
    assert region_health.decide(Key("", "gone"), cache_of(region("a")), 1.0) == NO_CHANGES
    assert recover.decide(Key("", "gone"), cache_of(region("a")), 1.0) == NO_CHANGES


def test_change_without_an_object_wakes_nothing() -> None:
    seen = cache_of()
    for woken in (
        backing.woken_by_assignment(None, None, seen),
        assign_wakes.woken_by_assignment(None, None, seen),
        node_health.woken_by_node(None, None, seen),
        node_health.woken_by_page(None, None, seen),
        node_health.woken_by_replica(None, None, seen),
    ):
        assert list(woken) == []


def test_workload_is_assigned_only_when_its_priority_class_exists() -> None:
    web = workload("web", replicas=2)
    items = (tenant(), web, region("a"))

    def assigned(*more: Object) -> int:
        seen = cache_of(*items, *more)
        writes = assign.decide(web.key, seen, 1_800_000_000.0).writes
        return sum(isinstance(write, Create) and isinstance(write.object, Assignment) for write in writes)

    assert assigned() == 0 and assigned(priority()) == 1


def test_recovery_targets_are_limited_to_the_named_regions() -> None:
    objective = RecoveryObjective(min_serving=2, regions=("b",))
    seen = cache_of(tenant(), priority(), workload("web", replicas=2, recovery=objective), region("a"), region("b"))
    (critical,) = critical_workloads(seen)
    assert need.target_refusal_reason(critical, region("a"), ()) == "not in spec.recovery.regions"
    assert need.target_refusal_reason(critical, region("b"), ()) == ""


def test_assignment_says_how_much_of_the_workload_it_is_and_which_rules_led_to_the_region() -> None:
    rules = PlacementRules(residency=("eu",), regions=("a", "b"))
    web = workload("web", replicas=5, placement=rules)
    seen = cache_of(tenant(), priority(), web, region("a", residency=("eu",)))
    made = assign.assignment_spec(web, "a", 2, seen)
    assert made is not None and made.reason == "2 of 5; residency eu; allowed regions a, b"
    plain = assign.assignment_spec(workload("plain", replicas=5), "a", 3, seen)
    assert plain is not None and plain.reason == "3 of 5"
