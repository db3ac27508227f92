"""Services without recovery objective in a lost region are assigned elsewhere after the stated time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import present
from tests.factories import cache_of, meta, priority, region, tenant, with_new_revision, workload

from holdfast.cell.controller_table import global_controllers
from holdfast.controllers.cache import Cache
from holdfast.controllers.declared_view import DeclaredView
from holdfast.fleet import assign, workload_progress
from holdfast.model.assignment import Assignment, AssignmentStatus
from holdfast.model.meta import Key
from holdfast.model.region import HealthState, Region, RegionHealth
from holdfast.model.times import micro_text, seconds_text
from holdfast.model.workload import (
    Batch,
    Exclusivity,
    ReassignAfterLoss,
    RecoveryObjective,
    Workload,
    WorkloadType,
    validate_workload,
)
from holdfast.model.writes import Create, Delete, SetStatus, Update

NOW = 1_800_000_000.0
AFTER_S = 120.0
STAYS = ReassignAfterLoss(after_seconds=AFTER_S)
RETURNS = ReassignAfterLoss(after_seconds=AFTER_S, failback=True)


def declared(name: str, cache: Cache) -> DeclaredView:
    """What this controller of the global cell may read."""
    (found,) = [c for c in global_controllers() if c.name == name]
    return DeclaredView(name, cache, frozenset({*found.wakes, *found.reads}))


class Fleet:
    """One workload in three regions; its Assignments are applied at once, and healthy regions serve them."""

    def __init__(self, class_after_s: float = 0.0, **spec: Any) -> None:
        made = workload("api", **{"replicas": 6, **spec})
        rank = priority("standard", reassign_after_seconds=class_after_s)
        self.cache = cache_of(tenant(), rank, made, *(region(name) for name in ("a", "b", "c")))
        self.now = NOW
        self.again_s: float | None = None

    def settle(self, serving: tuple[str, ...] = ("a", "b", "c")) -> None:
        for _ in range(8):
            outcome = assign.decide(Key("acme", "api"), declared("assign", self.cache), self.now)
            self.again_s = outcome.requeue_after_s
            for write in outcome.writes:
                match write:
                    case Create():
                        stored = meta(write.object.metadata.name, "acme")
                        self.cache.put(msgspec.structs.replace(write.object, metadata=stored))
                    case Update(object=Assignment()):
                        self.cache.put(with_new_revision(write.object))
                    case Delete():
                        self.cache.remove(Assignment, write.key, int(meta("gone").resource_version))
            for item in self.cache.list(Assignment):
                if item.spec.region in serving and self.state(item.spec.region) is HealthState.HEALTHY:
                    n = item.spec.replicas
                    self.report(item.spec.region, replicas=n, bound=n, started=n, ready=n, serving=n)

    def state(self, name: str) -> HealthState:
        return present(self.cache.get(Region, name)).status.health.state

    def health(self, name: str, state: HealthState) -> None:
        item = present(self.cache.get(Region, name))
        health = RegionHealth(state=state, since=micro_text(self.now), last_sequence=1)
        self.cache.put(with_new_revision(item, status=msgspec.structs.replace(item.status, health=health)))

    def shares(self) -> dict[str, int]:
        return {a.spec.region: a.spec.replicas for a in self.cache.list(Assignment)}

    def lose(self, name: str, for_s: float) -> None:
        self.health(name, HealthState.LOST)
        self.settle()
        self.now += for_s
        self.settle()

    def progress(self) -> SetStatus:
        view = declared("workload-status", self.cache)
        writes = workload_progress.decide(Key("acme", "api"), view, self.now).writes
        (found,) = [w for w in writes if isinstance(w, SetStatus) and "summary" in w.blocks]
        return found

    def conditions(self) -> dict[str, str]:
        """The messages of the workload's conditions, as far as they are not met."""
        return {c.type: c.message for c in self.progress().conditions if c.status != "True"}

    def report(self, name: str, **counts: Any) -> None:
        (item,) = [a for a in self.cache.list(Assignment) if a.spec.region == name]
        self.cache.put(with_new_revision(item, status=AssignmentStatus(observed_epoch=item.spec.epoch, **counts)))


@pytest.mark.parametrize("promise", ["workload", "class"])
def test_replicas_of_a_lost_region_are_assigned_elsewhere_after_the_stated_time(promise: str) -> None:
    fleet = Fleet(reassign=STAYS) if promise == "workload" else Fleet(class_after_s=AFTER_S)
    fleet.settle()
    assert fleet.shares() == {"a": 2, "b": 2, "c": 2}
    fleet.lose("a", AFTER_S - 5)
    assert fleet.shares() == {"a": 2, "b": 2, "c": 2}
    assert fleet.again_s is not None and fleet.again_s <= 5.0, "it wakes by itself when the time is over"
    fleet.now += 5
    fleet.settle()
    assert fleet.shares() == {"a": 0, "b": 3, "c": 3}
    reasons = [a.spec.reason for a in fleet.cache.list(Assignment) if a.spec.region == "b"]
    assert "region a is lost since" in reasons[0]


def test_lost_region_gives_its_share_up_only_when_the_others_serve() -> None:
    fleet = Fleet(reassign=STAYS)
    fleet.settle()
    fleet.health("a", HealthState.LOST)
    fleet.now += AFTER_S
    fleet.settle(serving=("b",))
    assert fleet.shares() == {"a": 2, "b": 3, "c": 3}


def test_reassigned_replicas_stay_when_the_region_returns() -> None:
    fleet = Fleet(reassign=STAYS)
    fleet.settle()
    fleet.lose("a", AFTER_S)
    fleet.health("a", HealthState.HEALTHY)
    fleet.settle()
    assert fleet.shares() == {"b": 3, "c": 3}, "the drained Assignment is deleted"


def test_failback_gives_the_region_its_replicas_back_when_it_serves() -> None:
    fleet = Fleet(reassign=RETURNS)
    fleet.settle()
    fleet.lose("a", AFTER_S)
    assert fleet.shares() == {"a": 2, "b": 3, "c": 3}
    away = present(next(a for a in fleet.cache.list(Assignment) if a.spec.region == "a"))
    fleet.cache.put(with_new_revision(away, status=AssignmentStatus(observed_epoch=away.spec.epoch, replicas=2)))
    fleet.health("a", HealthState.HEALTHY)
    fleet.settle(serving=("b", "c"))
    assert fleet.shares() == {"a": 2, "b": 3, "c": 3}, "its replicas start; the others keep theirs meanwhile"
    fleet.settle()
    assert fleet.shares() == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize(
    "spec",
    [
        {"recovery": RecoveryObjective(min_serving=2)},
        {"exclusive": Exclusivity()},
        {"type": WorkloadType.BATCH, "batch": Batch(completions=6, parallelism=6)},
    ],
    ids=["recovery objective", "exclusive", "batch"],
)
def test_work_with_another_rule_for_losses_is_not_reassigned(spec: dict[str, Any]) -> None:
    fleet = Fleet(class_after_s=AFTER_S, **spec)
    fleet.settle()
    before = fleet.shares()
    fleet.lose(max(before, key=lambda name: before[name]), 10 * AFTER_S)
    assert fleet.shares() == before
    conflicting = workload("api", **spec, reassign=STAYS)
    causes = [c for c in validate_workload(conflicting, None) if c.field == "spec.reassign"]
    assert len(causes) == 1


def test_zero_seconds_and_loss_of_all_regions_reassign_nothing() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.lose("a", 10 * AFTER_S)
    assert fleet.shares() == {"a": 2, "b": 2, "c": 2}
    fleet = Fleet(reassign=STAYS)
    fleet.settle()
    for name in ("a", "b", "c"):
        fleet.lose(name, 0)
    fleet.now += AFTER_S
    fleet.settle()
    assert fleet.shares() == {"a": 2, "b": 2, "c": 2}


def test_placement_rules_limit_the_regions_of_reassigned_replicas() -> None:
    fleet = Fleet(reassign=STAYS)
    fleet.settle()
    item = present(fleet.cache.get(Workload, "api", "acme"))
    rules = msgspec.structs.replace(item.spec.placement, excluded_regions=("c",))
    fleet.cache.put(with_new_revision(item, spec=msgspec.structs.replace(item.spec, placement=rules)))
    fleet.settle()
    fleet.lose("a", AFTER_S)
    assert fleet.shares() == {"a": 0, "b": 6}


def test_condition_says_when_other_regions_take_over_or_that_replicas_wait_for_the_region() -> None:
    fleet = Fleet(class_after_s=AFTER_S)
    fleet.settle()
    fleet.lose("a", 0)
    due = seconds_text(NOW + AFTER_S)
    assert fleet.conditions()["Serving"] == (
        f"4 of 6 replicas serve; pending: 2 in a: RegionLost (other regions take over from {due} on)"
    )
    waiting = Fleet()
    waiting.settle()
    waiting.lose("a", 0)
    assert waiting.conditions()["Serving"].endswith("pending: 2 in a: RegionLost (waits for the region)")
    promised = Fleet(recovery=RecoveryObjective(min_serving=2))
    promised.settle()
    promised.lose("a", 0)
    assert promised.conditions()["Serving"].endswith("pending: 2 in a: RegionLost")


def test_workload_serves_although_a_lost_region_is_to_have_its_replicas_back() -> None:
    fleet = Fleet(reassign=RETURNS)
    fleet.settle()
    fleet.lose("a", AFTER_S)
    assert fleet.shares() == {"a": 2, "b": 3, "c": 3} and "Serving" not in fleet.conditions()
    fleet.report("b", replicas=3, bound=3, started=3, ready=3, serving=2)
    assert fleet.conditions()["Serving"].startswith("5 of 6 replicas serve; pending: 2 in a: RegionLost")


def test_lost_region_without_replicas_is_not_named() -> None:
    fleet = Fleet(reassign=STAYS)
    fleet.settle()
    fleet.lose("a", AFTER_S)
    fleet.report("b", replicas=3, bound=3, started=3, ready=3, serving=2)
    assert fleet.conditions()["Serving"] == "5 of 6 replicas serve"


def test_batch_in_a_lost_region_says_that_it_waits_until_it_is_complete() -> None:
    fleet = Fleet(type=WorkloadType.BATCH, batch=Batch(completions=6, parallelism=2))
    fleet.settle()
    ((name, replicas),) = fleet.shares().items()
    fleet.report(name, replicas=2, bound=2, succeeded=4)
    fleet.lose(name, 0)
    assert fleet.conditions()["Complete"] == (
        f"4 of 6 completions, 0 failed; pending: {replicas} in {name}: RegionLost (waits for the region)"
    )
    fleet.report(name, succeeded=6)
    assert [r.pending_reason for r in fleet.progress().blocks["summary"].regions] == [""]
