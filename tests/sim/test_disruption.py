"""The checker of the one disruption budget: what counts and what does not, and that a budget of each region is seen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import assignment, replica, serving_status, with_new_revision, workload

from holdfast.model.kinds import kind_of
from holdfast.model.reasons import Reason
from holdfast.model.replica import ReleaseBlock, Replica
from holdfast.model.workload import Disruption, Workload
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.disruption import DisruptionChecker
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.scenario_files import load_scenario
from holdfast.sim.scenario_runs import run_variants
from holdfast.store.contract import Txn

replace = msgspec.structs.replace


class Seen:
    def __init__(self, budget: int) -> None:
        self.checker = DisruptionChecker()
        made = workload(disruption=Disruption(max_unavailable=budget))
        self.uid = made.uid
        self.see("global", Workload, None, made)

    def see(self, cell: str, kind: type[Any], old: Any, new: Any) -> list[str]:
        item = new if new is not None else old
        change = ObservedChange(f"/{kind_of(kind).plural}/{item.key}", kind_of(kind), old, new)
        commit = ObservedCommit(cell, 1.0, 1.0, Txn(writes=()), (change,), {})
        return [what for promise, what, _ in self.checker.check(commit) if promise == "budget"]

    def serves(self, cell: str, ordinal: int, **spec: Any) -> Replica:
        made = replica(ordinal, assignment(where=cell), status=serving_status())
        made = replace(made, spec=replace(made.spec, workload_uid=self.uid, **spec))
        self.see(cell, Replica, None, made)
        return made

    def let_go(self, cell: str, old: Replica, reason: Reason = Reason.DRAINED) -> tuple[Replica, list[str]]:
        block = ReleaseBlock(reason=reason, attempt=old.status.placement.attempt)
        new = with_new_revision(old, status=replace(old.status, release=block))
        return new, self.see(cell, Replica, old, new)


def test_what_is_let_go_in_two_regions_counts_together():
    seen = Seen(1)
    east, west = seen.serves("east", 0), seen.serves("west", 1)
    assert not seen.let_go("east", east)[1]
    assert seen.let_go("west", west)[1], "two at once, of one that may"


def test_who_serves_again_or_is_deleted_is_not_away():
    seen = Seen(1)
    gone, found = seen.let_go("east", seen.serves("east", 0))
    assert not found
    seen.see("east", Replica, gone, with_new_revision(gone, status=replace(gone.status, release=None)))
    gone, found = seen.let_go("west", seen.serves("west", 1))
    assert not found
    seen.see("west", Replica, gone, None)
    assert not seen.let_go("east", seen.serves("east", 3))[1]


@pytest.mark.parametrize(
    "reason", [Reason.NODE_LOST, Reason.EXITED, Reason.RESCHEDULED_BY_REPAIR, Reason.REVISION_REPLACED]
)
def test_accidents_are_nobodys_choice(reason):
    seen = Seen(0)
    assert not seen.let_go("east", seen.serves("east", 0), reason)[1]


def test_reclaimable_work_makes_way_whatever_its_budget():
    seen = Seen(0)
    assert not seen.let_go("east", seen.serves("east", 0, reclaimable=True), Reason.PREEMPTED)[1]
    assert seen.let_go("east", seen.serves("east", 1))[1]


@pytest.mark.slow
def test_a_budget_of_each_region_is_seen():
    scenario = load_scenario("drained-in-turn")
    with applied_mutation("budget-per-region") as patch:
        (played,) = run_variants(scenario, 1)
    assert patch.executed and not patch.mutation_error
    assert {v.invariant for v in played.outcome.violations} == {"budget"}
    (played,) = run_variants(scenario, 1)
    assert played.ok
