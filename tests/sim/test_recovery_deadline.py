"""Critical work of a lost region serves elsewhere in time: shown by a scenario, and by what that would fail for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import assignment, replica, serving_status, workload

from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.workload import RecoveryObjective
from holdfast.sim import scenario_runs
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.recovery_deadline import missed_recoveries
from holdfast.sim.commit_history import CommitHistory
from holdfast.sim.parallel_runs import silence_logs
from holdfast.sim.scenario_files import load_scenario
from holdfast.store.contract import Txn

replace = msgspec.structs.replace
LOST_S, WITHIN_S = 100.0, 300.0


class Told:
    """A history of one critical workload with two replicas in west, which is lost."""

    def __init__(self) -> None:
        self.history = CommitHistory()
        self.made = workload()
        promise = RecoveryObjective(min_serving=2)
        self.made = replace(self.made, spec=replace(self.made.spec, replicas=2, recovery=promise))
        self.add(1.0, "global", self.made)
        self.serve(10.0, "west", 2)

    def add(self, at_s: float, cell: str, new: Object, old: Any = None) -> None:
        kind = kind_of(type(new))
        key = kind.store_key(new.metadata.namespace, new.metadata.name)
        self.history.add(
            ObservedCommit(cell, at_s, at_s, Txn(), (ObservedChange(key, kind, old, new),), {}), "somebody"
        )

    def serve(self, at_s: float, cell: str, count: int) -> None:
        for ordinal in range(count):
            self.add(at_s, cell, replica(ordinal, assignment(where=cell), status=serving_status()))

    def missed(self) -> list[str]:
        return list(missed_recoveries(self.history, "west", LOST_S, WITHIN_S))


def test_work_that_serves_elsewhere_in_time_has_recovered() -> None:
    told = Told()
    told.serve(LOST_S + WITHIN_S - 1.0, "east", 2)
    assert not told.missed()


@pytest.mark.parametrize(("late_s", "count"), [(1.0, 2), (-1.0, 1)], ids=["too late", "too few"])
def test_work_that_does_not_is_told(late_s: float, count: int) -> None:
    told = Told()
    told.serve(LOST_S + WITHIN_S + late_s, "east", count)
    (what,) = told.missed()
    assert "expected 2 in another region" in what and "after the loss of west" in what


def test_what_went_again_before_the_time_was_up_does_not_count() -> None:
    told = Told()
    told.serve(LOST_S + 30.0, "east", 2)
    told.add(LOST_S + 60.0, "east", replica(0, assignment(where="east")))
    assert len(told.missed()) == 1


def test_work_that_people_changed_meanwhile_is_not_judged_and_a_loss_without_any_proves_nothing() -> None:
    told = Told()
    changed = replace(told.made, spec=replace(told.made.spec, replicas=3))
    told.add(LOST_S + 50.0, "global", changed, told.made)
    (what,) = told.missed()
    assert what.startswith("no unchanged critical workload")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "within_s", "says"),
    [("west", 15.0, "expected 4 in another region, found 0"), ("east", 300.0, "no unchanged critical workload")],
    ids=["before the loss can be known", "of the other region"],
)
def test_the_scenario_can_fail(target: str, within_s: float, says: str) -> None:
    silence_logs()
    declared = load_scenario("critical-region-lost")
    lost = replace(declared.faults[0], target=target)
    expects = replace(declared.expects, recovers_within_s=within_s)
    (played,) = scenario_runs.run_variants(replace(declared, faults=(lost,), expects=expects), seed=1)
    assert played.outcome.ok and any(says in text for text in played.unmet), played.unmet
