"""Rebalancing in simulations: services return to an even spread; the checker finds moves that break the rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import assignment, replica, serving_status, with_new_revision

from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.kinds import kind_of
from holdfast.model.reasons import Reason
from holdfast.model.replica import ReleaseBlock, Replica
from holdfast.model.workload import Rebalance
from holdfast.sim.actors import zones_of
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.rebalancing import RECOVERY_GRACE_S, RebalancingChecker
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.scenario_files import load_scenario
from holdfast.sim.scenario_runs import run_variants
from holdfast.sim.simulation import Simulation
from holdfast.store.contract import Txn

replace = msgspec.structs.replace


class CheckedRegion:
    """A region in which replicas of workload api move between zones."""

    def __init__(self, **spec: Any) -> None:
        self.checker = RebalancingChecker()
        self.state: dict[str, Any] = {}
        self.at_s = 0.0
        self.assignment = assignment(where="east", replicas=4, **spec)
        self.commit(None, self.assignment)

    def commit(self, old: Any, new: Any) -> list[str]:
        kind = kind_of(type(new))
        key = f"/{kind.plural}/{new.key}"
        self.state[key] = new
        change = ObservedChange(key, kind, old, new)
        commit = ObservedCommit("east", self.at_s, self.at_s, Txn(writes=()), (change,), self.state)
        return [what for invariant, what, _ in self.checker.check(commit) if invariant == "rebalance"]

    def serves(self, ordinal: int, zone: str) -> Replica:
        item = replica(ordinal, self.assignment, status=serving_status(f"n-{zone}"))
        item = replace(item, status=replace(item.status, placement=replace(item.status.placement, zone=zone)))
        self.commit(None, item)
        return item

    def leave(self, old: Replica) -> tuple[Replica, list[str]]:
        block = ReleaseBlock(reason=Reason.REBALANCED, attempt=old.status.placement.attempt)
        new = with_new_revision(old, status=replace(old.status, release=block))
        return new, self.commit(old, new)

    def bind(self, old: Replica, zone: str) -> tuple[Replica, list[str]]:
        attempt = old.status.placement.attempt + 1
        queued = replace(old.status.placement, attempt=attempt, node="", zone="", binding="", reservation="")
        waiting = with_new_revision(old, status=replace(old.status, placement=queued))
        self.commit(old, waiting)
        bound = serving_status(f"n-{zone}", attempt=attempt)
        new = with_new_revision(waiting, status=replace(bound, placement=replace(bound.placement, zone=zone)))
        return new, self.commit(waiting, new)


def test_useful_moves_are_accepted() -> None:
    region = CheckedRegion(rebalance=Rebalance(after_seconds=10))
    replicas = [region.serves(n, "a") for n in range(4)]
    for item in replicas[:2]:
        left, found = region.leave(item)
        assert found == []
        assert region.bind(left, "b")[1] == []
        region.at_s += 10


def test_second_move_without_gain_is_an_oscillation() -> None:
    region = CheckedRegion(rebalance=Rebalance(after_seconds=10))
    item, _ = region.serves(0, "a"), region.serves(1, "b")
    left, _ = region.leave(item)
    item, found = region.bind(left, "a")
    assert found == [], "one useless move is tolerated"
    region.at_s += 10
    left, _ = region.leave(item)
    assert "did not make its spread more even" in region.bind(left, "c")[1][0]


def test_move_while_another_moves_is_found() -> None:
    region = CheckedRegion(rebalance=Rebalance(after_seconds=0.5))
    first, second = region.serves(0, "a"), region.serves(1, "a")
    region.leave(first)
    region.at_s += 1
    assert "still moves" in region.leave(second)[1][0]


def test_move_during_a_recovery_is_found_after_a_moment() -> None:
    for purpose in ({"purpose": Purpose.RECOVERY, "replicas": 1}, {"suspended": True}):
        region = CheckedRegion()
        item = region.serves(0, "a")
        region.commit(None, assignment("risk", "east", **purpose))
        region.at_s = RECOVERY_GRACE_S + 1
        assert "although a recovery uses the region" in region.leave(item)[1][0]


def test_move_that_the_workload_forbids_or_too_soon_is_found() -> None:
    region = CheckedRegion(rebalance=Rebalance(after_seconds=0))
    assert "although its workload forbids it" in region.leave(region.serves(0, "a"))[1][0]
    region = CheckedRegion()
    left, found = region.leave(region.serves(0, "a"))
    moved, _ = region.bind(left, "b")
    region.at_s = limits.REBALANCE_AFTER_S - 2
    assert found == [] and "s after the last move" in region.leave(moved)[1][0]


def _is_of(item: Replica, of: Assignment) -> bool:
    return (item.metadata.namespace, item.spec.assignment) == (of.metadata.namespace, of.metadata.name)


@pytest.mark.slow
def test_services_are_spread_evenly_after_zones_return() -> None:
    scenario = load_scenario("uneven-spread")
    ((_, faults),) = scenario.variants()
    simulation = Simulation(1, scenario.size, enabled=(), planned=faults)
    outcome = simulation.run()
    assert outcome.violations == () and outcome.failures == () and outcome.unconverged == ()
    assert "Rebalanced" in simulation.checkers.coverage.reasons
    judged = 0
    for region in scenario.size.regions:
        state = list(simulation.checkers.state(region).values())
        moving = [a for a in state if isinstance(a, Assignment) and a.spec.rebalance and a.spec.rebalance.after_seconds]
        for item in moving:
            placed = [r.status.placement.zone for r in state if isinstance(r, Replica) and _is_of(r, item)]
            counts = [placed.count(zone) for zone in zones_of(region)]
            assert max(counts) - min(counts) <= 1, (item.key, counts)
            judged += 1
    assert judged


@pytest.mark.slow
def test_move_without_gain_mutation_violates_rebalance() -> None:
    scenario = load_scenario("uneven-spread")
    with applied_mutation("moved-without-gain") as patch:
        (played,) = run_variants(scenario, 1)
    assert patch.executed and not patch.mutation_error
    assert "rebalance" in {v.invariant for v in played.outcome.violations}
