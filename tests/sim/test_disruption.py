"""The disruption checker: what counts against the disruption budget."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import assignment, meta, replica, serving_status, with_new_revision, workload

from holdfast.model.kinds import kind_of
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
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


class CheckedHistory:
    def __init__(self, budget: int) -> None:
        self.checker = DisruptionChecker()
        item = workload(disruption=Disruption(max_unavailable=budget))
        self.uid = item.uid
        self.state: dict[str, Any] = {}
        self.commit("global", Workload, None, item)

    def commit(self, cell: str, kind: type[Any], old: Any, new: Any) -> list[str]:
        item = new if new is not None else old
        change = ObservedChange(f"/{kind_of(kind).plural}/{item.key}", kind_of(kind), old, new)
        commit = ObservedCommit(cell, 1.0, 1.0, Txn(writes=()), (change,), self.state)
        return [what for invariant, what, _ in self.checker.check(commit) if invariant == "budget"]

    def serves(self, cell: str, ordinal: int, **spec: Any) -> Replica:
        item = replica(ordinal, assignment(where=cell), status=serving_status())
        item = replace(item, spec=replace(item.spec, workload_uid=self.uid, **spec))
        self.commit(cell, Replica, None, item)
        return item

    def evict(
        self, cell: str, old: Replica, reason: Reason = Reason.DRAINED, at: str = "2027-01-15T08:00:00Z"
    ) -> tuple[Replica, list[str]]:
        block = ReleaseBlock(reason=reason, attempt=old.status.placement.attempt, at=at)
        new = with_new_revision(old, status=replace(old.status, release=block))
        return new, self.commit(cell, Replica, old, new)


def test_evictions_of_two_regions_count_together() -> None:
    history = CheckedHistory(1)
    east, west = history.serves("east", 0), history.serves("west", 1)
    assert not history.evict("east", east)[1]
    assert history.evict("west", west)[1], "two evicted at once, budget 1"


def test_replica_serving_again_or_deleted_is_not_unavailable() -> None:
    history = CheckedHistory(1)
    evicted, found = history.evict("east", history.serves("east", 0))
    assert not found
    history.commit("east", Replica, evicted, with_new_revision(evicted, status=replace(evicted.status, release=None)))
    evicted, found = history.evict("west", history.serves("west", 1))
    assert not found
    history.commit("west", Replica, evicted, None)
    assert not history.evict("east", history.serves("east", 3))[1]


def test_over_quota_eviction_counts_until_the_replica_waits_for_quota() -> None:
    history = CheckedHistory(1)
    evicted, found = history.evict("east", history.serves("east", 0), Reason.OVER_QUOTA)
    assert not found
    assert history.evict("west", history.serves("west", 1), Reason.OVER_QUOTA)[1], "the first one still stops"
    history = CheckedHistory(1)
    evicted, found = history.evict("east", history.serves("east", 0), Reason.OVER_QUOTA)
    placed = replace(evicted.status.placement, binding="", reservation="", node="", attempt=2)
    queued = with_new_revision(evicted, status=replace(evicted.status, placement=placed))
    history.commit("east", Replica, evicted, queued)
    assert not history.evict("west", history.serves("west", 1), Reason.OVER_QUOTA)[1]


@pytest.mark.parametrize(("released_at", "over"), [("2027-01-15T08:01:30Z", False), ("2027-01-15T08:00:30Z", True)])
def test_over_quota_eviction_is_free_of_budgets_only_after_its_deadline(released_at: str, over: bool) -> None:
    spec = OverrideSpec(kind=OverrideKind.EMERGENCY_QUOTA, scope=OverrideScope(tenant="acme"), drain_seconds=60.0)
    ended = Override(meta("more"), spec, OverrideStatus(phase="Expired", expires_at="2027-01-15T08:00:00Z"))
    history = CheckedHistory(0)
    history.state = {"/overrides/more": ended}
    assert bool(history.evict("east", history.serves("east", 0), Reason.OVER_QUOTA, at=released_at)[1]) is over


@pytest.mark.parametrize(
    "reason", [Reason.NODE_LOST, Reason.EXITED, Reason.RESCHEDULED_BY_REPAIR, Reason.REVISION_REPLACED]
)
def test_failures_do_not_count_against_the_budget(reason: Reason) -> None:
    history = CheckedHistory(0)
    assert not history.evict("east", history.serves("east", 0), reason)[1]


def test_reclaimable_replica_is_evicted_regardless_of_budget() -> None:
    history = CheckedHistory(0)
    assert not history.evict("east", history.serves("east", 0, reclaimable=True), Reason.PREEMPTED)[1]
    assert history.evict("east", history.serves("east", 1))[1]


@pytest.mark.slow
def test_budget_per_region_mutation_violates_budget() -> None:
    scenario = load_scenario("drained-in-turn")
    with applied_mutation("budget-per-region") as patch:
        (played,) = run_variants(scenario, 1)
    assert patch.executed and not patch.mutation_error
    assert {v.invariant for v in played.outcome.violations} == {"budget"}
    (played,) = run_variants(scenario, 1)
    assert played.ok
