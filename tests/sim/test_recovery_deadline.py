"""Critical workloads of a lost region serve in another region before their recovery deadline."""

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


class WorkloadHistory:
    """History of one critical workload with two replicas in west, the lost region."""

    def __init__(self) -> None:
        self.history = CommitHistory()
        self.workload = workload()
        objective = RecoveryObjective(min_serving=2)
        self.workload = replace(self.workload, spec=replace(self.workload.spec, replicas=2, recovery=objective))
        self.add(1.0, "global", self.workload)
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


def test_workload_serving_in_another_region_before_deadline_has_recovered() -> None:
    history = WorkloadHistory()
    history.serve(LOST_S + WITHIN_S - 1.0, "east", 2)
    assert not history.missed()


@pytest.mark.parametrize(("late_s", "count"), [(1.0, 2), (-1.0, 1)], ids=["too late", "too few"])
def test_late_or_incomplete_recovery_is_reported(late_s: float, count: int) -> None:
    history = WorkloadHistory()
    history.serve(LOST_S + WITHIN_S + late_s, "east", count)
    (what,) = history.missed()
    assert "expected 2 in another region" in what and "after the loss of west" in what


def test_replica_lost_again_before_deadline_does_not_count() -> None:
    history = WorkloadHistory()
    history.serve(LOST_S + 30.0, "east", 2)
    history.add(LOST_S + 60.0, "east", replica(0, assignment(where="east")))
    assert len(history.missed()) == 1


def test_changed_workload_is_excluded_and_loss_without_others_is_reported() -> None:
    history = WorkloadHistory()
    changed = replace(history.workload, spec=replace(history.workload.spec, replicas=3))
    history.add(LOST_S + 50.0, "global", changed, history.workload)
    (what,) = history.missed()
    assert what.startswith("no unchanged critical workload")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "within_s", "text"),
    [("east", 15.0, "expected 4 in another region, found 0"), ("west", 300.0, "no unchanged critical workload")],
    ids=["deadline before detection", "wrong region"],
)
def test_scenario_with_unmet_deadline_or_wrong_region_fails(target: str, within_s: float, text: str) -> None:
    silence_logs()
    declared = load_scenario("critical-region-lost")
    lost = replace(declared.faults[0], target=target)
    expects = replace(declared.expects, recovers_within_s=within_s)
    (played,) = scenario_runs.run_variants(replace(declared, faults=(lost,), expects=expects), seed=1)
    assert played.outcome.ok and any(text in unmet for unmet in played.unmet), played.unmet
