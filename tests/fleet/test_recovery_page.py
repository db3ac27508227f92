"""Statements of docs/recovery.md about decisions: health of a silent region, slots, proof of backing, the deadline.

`tests/tidy/test_page_figures.py` compares the figures of the page with the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.expected import only, present
from tests.factories import cache_of, meta, priority, region, with_new_revision, workload
from tests.fleet.test_backing import world

from holdfast.fleet import region_health
from holdfast.fleet.recovery import backing, recover
from holdfast.fleet.recovery.backing import SEARCH_GAVE_UP
from holdfast.fleet.recovery.recovery_status import budget_writes
from holdfast.model.meta import Key
from holdfast.model.quantity import Amount
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.region import HealthState, PeerProbeResult, RecoverySlotReport, Region, RegionHealth
from holdfast.model.times import micro_text
from holdfast.model.workload import Batch, Exclusivity, RecoveryObjective, WorkloadType, validate_workload
from holdfast.model.writes import Create, SetStatus

NOW = 1_767_225_600.0
CPU: dict[str, Amount] = {"cpu": "500m", "memory": "1Gi"}


def health_of_silent_region(probes: Mapping[str, bool | None]) -> RegionHealth:
    """Health of region `silent`, which last reported 46 s ago, with the probe results of the other regions."""
    silent = region("silent")
    items: list[Region] = [
        with_new_revision(silent, status=msgspec.structs.replace(silent.status, health=health(NOW - 46)))
    ]
    for name, reachable in probes.items():
        there = region(name)
        peers = () if reachable is None else (PeerProbeResult(region="silent", reachable=reachable),)
        report = msgspec.structs.replace(present(there.status.report), peers=peers)
        status = msgspec.structs.replace(there.status, report=report, health=health(NOW))
        items.append(with_new_revision(there, status=status))
    outcome = region_health.decide(Key("", "silent"), cache_of(*items), NOW)
    write = only(outcome.writes, SetStatus)
    assert write.observed_generation == silent.metadata.generation == 1
    found = write.blocks["health"]
    assert isinstance(found, RegionHealth)
    return found


def health(last_contact_s: float) -> RegionHealth:
    return RegionHealth(state=HealthState.HEALTHY, last_sequence=1, last_contact_at=micro_text(last_contact_s))


@pytest.mark.parametrize(
    ("probes", "state", "reason"),
    [
        ({"a": False, "b": False}, HealthState.LOST, Reason.UNREACHABLE_CONFIRMED),
        ({"a": False, "b": False, "c": True}, HealthState.LOST, Reason.UNREACHABLE_CONFIRMED),
        ({"a": False, "b": True}, HealthState.AWAITING_WITNESS, Reason.WITNESS_DISAGREES),
        ({"a": True, "b": None, "c": None}, HealthState.AWAITING_WITNESS, Reason.WITNESS_DISAGREES),
        ({"a": False, "b": None}, HealthState.AWAITING_WITNESS, Reason.TOO_FEW_WITNESSES),
        ({"a": False, "b": None, "c": None}, HealthState.AWAITING_WITNESS, Reason.TOO_FEW_WITNESSES),
        ({"a": None, "b": None}, HealthState.AWAITING_WITNESS, Reason.NO_WITNESS),
        ({}, HealthState.AWAITING_WITNESS, Reason.NO_WITNESS),
    ],
)
def test_health_of_silent_region_follows_its_witnesses(
    probes: dict[str, bool | None], state: HealthState, reason: Reason
) -> None:
    found = health_of_silent_region(probes)
    assert (found.state, found.reason) == (state, reason)
    for name in (n for n, reachable in probes.items() if reachable is False and state is HealthState.LOST):
        assert name in found.message


def slots_condition(shapes: tuple[SlotShape, ...], *admitted: tuple[int, str, int]) -> tuple[str, str]:
    """Status and reason of SlotsAdmitted for slots admitted as (shape, zone, count)."""
    there = region("x")
    slots = tuple(RecoverySlotReport(budget="b", zone=z, shape_index=i, admitted=n) for i, z, n in admitted)
    report = msgspec.structs.replace(present(there.status.report), recovery_slots=slots)
    there = with_new_revision(there, status=msgspec.structs.replace(there.status, report=report))
    budget = RecoveryBudget(metadata=meta("b"), spec=RecoveryBudgetSpec(region="x", slot_shapes=shapes))
    (write,) = budget_writes(there, cache_of(there, budget))
    assert isinstance(write, SetStatus)
    (condition,) = write.conditions
    return condition.status, condition.reason


@pytest.mark.parametrize(
    ("admitted", "status"),
    [
        (((0, "a", 2), (1, "a", 1), (1, "b", 1)), "False"),  # shape 0 is in one zone only
        (((0, "a", 1), (0, "b", 1), (1, "a", 1), (1, "b", 1)), "True"),
        (((0, "a", 2), (0, "b", 1), (1, "b", 1)), "False"),  # a surplus of shape 0 does not replace shape 1
    ],
)
def test_slots_admitted_counts_zones_and_slots_of_each_shape(
    admitted: tuple[tuple[int, str, int], ...], status: str
) -> None:
    shapes = tuple(SlotShape(resources=CPU, count=2, min_zones=2) for _ in range(2))
    reason = Reason.SLOTS_ADMITTED if status == "True" else Reason.SLOTS_UNSCHEDULABLE
    assert slots_condition(shapes, *admitted) == (status, reason)


def test_backing_says_that_its_search_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def message() -> str:
        outcome = backing.decide(backing.ALL_OBJECTIVES, world(kept=0), NOW)
        block = only(outcome.writes, SetStatus).blocks["backing"]
        assert block.reason == Reason.NOT_BACKED
        return str(block.message)

    assert SEARCH_GAVE_UP not in message()
    monkeypatch.setattr("holdfast.fleet.recovery.slot_matching.SLOT_SEARCH_CLASSES_MAX", 0)
    assert message().endswith(SEARCH_GAVE_UP)


def test_recovery_has_the_shortest_deadline_of_all_critical_workloads() -> None:
    lost = region("a", state=HealthState.LOST)
    critical = [
        workload(name, priority_class_name="critical", recovery=RecoveryObjective(min_serving=4, deadline_seconds=s))
        for name, s in (("fast", 60.0), ("slow", 600.0))
    ]
    view = cache_of(priority("critical"), lost, region("b"), *critical)
    opened = only(recover.decide(Key("", "a"), view, NOW).writes, Create).object
    assert isinstance(opened, Recovery) and opened.spec.deadline_seconds == 60.0


@pytest.mark.parametrize("spec", [{"exclusive": Exclusivity()}, {"type": WorkloadType.BATCH, "batch": Batch()}])
def test_recovery_objective_of_exclusive_or_batch_work_is_refused(spec: dict[str, Any]) -> None:
    item = workload(recovery=RecoveryObjective(), **spec)
    assert "spec.recovery" in {cause.field for cause in validate_workload(item, None)}
    alone = workload(**spec)
    assert "spec.recovery" not in {cause.field for cause in validate_workload(alone, None)}
