"""Recovery goes where `holdfast plan --lose-region` says, and recovery slots come first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import assignment, meta, region, with_new_revision, workload
from tests.fleet.test_recover import Fleet

from holdfast.fleet.recovery.backing import Loss
from holdfast.fleet.recovery.target_plan import plan_targets
from holdfast.model.assignment import AssignmentStatus, Purpose
from holdfast.model.meta import Object
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.region import HealthState, RecoverySlotReport, Region, RegionReport
from holdfast.model.template import Template
from holdfast.model.workload import RecoveryObjective

ONE_CPU = Template(command=("x",), resources={"cpu": "1"})
OTHERS = ("b", "c", "d")


def with_slots(name: str, slots: int, *, cost: int = 1, free_cpu: int = 0, consumed: int = 0) -> list[Object]:
    """A region with recovery slots of one cpu and free capacity beside them, and its budget."""
    item = region(name)
    report = RegionReport(
        at="2027-01-15T08:00:00Z",
        sequence=1,
        nodes=1,
        live_nodes=1,
        capacity={"cpu": str(100)},
        used={"cpu": str(100 - slots - free_cpu)},
        recovery_reserved={"cpu": str(slots)},
        recovery_slots=(
            RecoverySlotReport(
                budget=name, zone="z", shape_index=0, resources={"cpu": "1"}, admitted=slots, consumed=consumed
            ),
        ),
    )
    spec = msgspec.structs.replace(item.spec, cost=cost)
    status = msgspec.structs.replace(item.status, report=report)
    shapes = (SlotShape(resources={"cpu": "1"}, count=slots),)
    budget = RecoveryBudget(meta(name), RecoveryBudgetSpec(region=name, slot_shapes=shapes, starts_per_second=1000.0))
    return [with_new_revision(item, spec=spec, status=status), budget]


def critical(name: str, wanted: int, *, elsewhere: dict[str, int] | None = None) -> list[Object]:
    """A workload that runs in `a`, and a few replicas of it elsewhere."""
    made = workload(
        name,
        replicas=wanted,
        template=ONE_CPU,
        priority_class_name="critical",
        recovery=RecoveryObjective(min_serving=wanted),
    )
    items: list[Object] = [made]
    for where, count in {"a": wanted, **(elsewhere or {})}.items():
        status = AssignmentStatus(observed_epoch=1, replicas=count, bound=count, ready=count, serving=count)
        items.append(assignment(name, where, replicas=count, template=ONE_CPU, status=status))
    return items


def fleet_of(*groups: list[Object], allowance: str = "100") -> Fleet:
    quota = Quota(meta("quota", "acme"), QuotaSpec(hard={"cpu": "100"}, recovery_allowance={"cpu": allowance}))
    return Fleet(region("a"), quota, *(item for group in groups for item in group))


def planned_and_real(fleet: Fleet) -> tuple[dict[str, str], dict[str, str]]:
    """Targets by workload: of the plan before the loss, and of the recovery after it."""
    planned = {key.name: where for key, where in plan_targets(Loss("a"), fleet.cache, fleet.now).targets.items()}
    fleet.health("a", HealthState.LOST)
    fleet.step("a")
    fleet.step("a")
    rows = {row.workload: row.target for row in fleet.recovery.status.workloads}
    real = {name: where for name, where in rows.items() if (name, where) in fleet.assignments(Purpose.RECOVERY)}
    return planned, real


def test_recovery_prefers_slots_to_a_cheaper_region() -> None:
    """Region b is cheaper and has room for the rest; c has a slot for every replica."""
    fleet = fleet_of(with_slots("b", 1, cost=1, free_cpu=20), with_slots("c", 4, cost=9), critical("api", 4))
    assert planned_and_real(fleet) == ({"api": "c"}, {"api": "c"})


def test_two_workloads_are_matched_to_slots_together() -> None:
    """The small one would take slots of the only region that the large one fits into."""
    fleet = fleet_of(with_slots("b", 4, cost=1), with_slots("c", 2, cost=9), critical("p", 2), critical("q", 4))
    expected = {"p": "c", "q": "b"}
    assert planned_and_real(fleet) == (expected, expected)


@pytest.mark.parametrize("slots", [0, 3])
def test_workload_without_enough_slots_is_planned_where_recovery_tries_it(slots: int) -> None:
    fleet = fleet_of(with_slots("b", 0, free_cpu=1), with_slots("c", slots, free_cpu=5, cost=9), critical("api", 4))
    plan = plan_targets(Loss("a"), fleet.cache, fleet.now)
    assert plan.forecast.match.shortages and [(c.name, where) for c, where, _ in plan.uncovered] == [("api", "c")]
    assert planned_and_real(fleet) == ({"api": "c"}, {"api": "c"})


def test_workload_with_enough_replicas_in_a_full_region_starts_none_elsewhere() -> None:
    """Region c has what `kept` needs already. `api` takes all the room that is left there."""
    fleet = fleet_of(
        with_slots("b", 3, cost=3),
        with_slots("c", 3, cost=2),
        critical("api", 5),
        critical("kept", 2, elsewhere={"c": 2}),
    )
    assert planned_and_real(fleet) == ({"api": "c"}, {"api": "c"})


regions = st.fixed_dictionaries(
    {
        name: st.fixed_dictionaries(
            {"slots": st.integers(0, 6), "cost": st.integers(1, 3), "free_cpu": st.integers(0, 6)}
        )
        for name in OTHERS
    }
)
workloads = st.lists(
    st.tuples(st.integers(1, 5), st.dictionaries(st.sampled_from(OTHERS), st.integers(1, 3), max_size=2)),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(regions=regions, workloads=workloads, allowance=st.sampled_from(["3", "100"]))
def test_recovery_goes_where_the_plan_says(
    regions: dict[str, dict[str, Any]], workloads: list[tuple[int, dict[str, int]]], allowance: str
) -> None:
    fleet = fleet_of(
        *(with_slots(name, **spec) for name, spec in regions.items()),
        *(critical(f"w{n}", wanted, elsewhere=there) for n, (wanted, there) in enumerate(workloads)),
        allowance=allowance,
    )
    planned, real = planned_and_real(fleet)
    assert real == planned
    assert all(fleet.cache.get(Region, where) is not None for where in real.values())
