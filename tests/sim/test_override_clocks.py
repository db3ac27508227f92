"""Overrides end in true time regardless of a region's wall clock, and the expiry checker detects late ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.fleet.override_kinds import RULES
from holdfast.model.core import Lease
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.override import ACTIVE, Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.times import micro_text
from holdfast.sim import parallel_runs, scenario_runs
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.expiry import WRITE_DELAY_MAX_S, ExpiryChecker
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.scenario_files import load_scenario
from holdfast.store.contract import Txn


@pytest.mark.slow
def test_region_trusting_its_wall_clock_violates_s8() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("override-by-wall-clock"):
        (played,) = scenario_runs.run_variants(load_scenario("override-by-skewed-clock"), 1)
    found = played.outcome.violations
    assert any(violation.invariant == "S8" and "in true time" in violation.message for violation in found), found


# The checker: what a cell whose count was lost may do

WALL_S = 1_800_000_000.0
TTL_S = 30.0


class CheckedCells:
    """The stored state of the global cell and one region, with their checkers."""

    def __init__(self, kind: OverrideKind) -> None:
        ends: dict[str, float] = {}
        self.at_s = 0.0
        self.checkers = {
            name: ExpiryChecker(name, ends, clock=lambda: WALL_S + self.at_s) for name in ("global", "west")
        }
        self.disks: dict[str, dict[str, Any]] = {"global": {}, "west": {}}
        spec = OverrideSpec(
            kind=kind, scope=OverrideScope(region="west"), reason="x", requester="ann", ttl_seconds=TTL_S
        )
        status = OverrideStatus(phase=ACTIVE, expires_at=micro_text(WALL_S + TTL_S))
        self.override = Override(metadata=ObjectMeta(name="o", uid="u"), spec=spec, status=status)

    def commit(self, cell: str, at_s: float, *items: Object) -> list[str]:
        self.at_s = at_s
        changed = []
        for item in items:
            kind = kind_of(type(item))
            key = kind.store_key(item.metadata.namespace, item.metadata.name)
            changed.append(ObservedChange(key, kind, self.disks[cell].get(key), item))
            self.disks[cell][key] = item
        commit = ObservedCommit(cell, at_s, WALL_S + at_s, Txn(), tuple(changed), self.disks[cell])
        return [what for invariant, what, _ in self.checkers[cell].check(commit) if invariant == "S8"]

    def elect(self, at_s: float, wall_s: float, cell: str = "west") -> None:
        """Another process of the cell becomes leader and restarts the count. Its wall clock shows `wall_s`."""
        at = micro_text(wall_s)
        lease = Lease(metadata=ObjectMeta(name="controllers", namespace="holdfast-system"))
        lease = msgspec.structs.replace(lease, spec=msgspec.structs.replace(lease.spec, renew_time=at))
        term = Term(metadata=ObjectMeta(name="controllers"), spec=TermSpec(holder="west"))
        assert not self.commit(cell, at_s, lease, term)


@pytest.mark.parametrize("kind", [OverrideKind.AVOID_ZONE, OverrideKind.RAISE_PRIORITY])
def test_override_with_uninterrupted_count_ends_at_its_ttl(kind: OverrideKind) -> None:
    cells = CheckedCells(kind)
    assert not cells.commit("global", 0.0, cells.override)
    assert not cells.commit("west", TTL_S, cells.override)
    assert cells.commit("west", TTL_S * 1.05 + WRITE_DELAY_MAX_S, cells.override)


@pytest.mark.parametrize("kind", [OverrideKind.AVOID_ZONE, OverrideKind.RAISE_PRIORITY])
def test_restrictive_override_restarts_its_ttl_after_count_is_lost(kind: OverrideKind) -> None:
    cells = CheckedCells(kind)
    cells.commit("global", 0.0, cells.override)
    cells.commit("west", 1.0, cells.override)
    cells.elect(at_s=100.0, wall_s=WALL_S - 120.0)
    found = cells.commit("west", 101.0, cells.override)
    assert bool(found) is RULES[kind].permissive
    assert cells.commit("west", 101.0 + TTL_S * 1.05 + WRITE_DELAY_MAX_S, cells.override)


@pytest.mark.parametrize("kind", [OverrideKind.AVOID_ZONE, OverrideKind.RAISE_PRIORITY])
def test_restrictive_override_extends_in_all_cells_after_global_timer_loss(kind: OverrideKind) -> None:
    cells = CheckedCells(kind)
    cells.commit("global", 0.0, cells.override)
    cells.elect(at_s=100.0, wall_s=WALL_S + 20.0, cell="global")
    found = cells.commit("west", 108.0 + WRITE_DELAY_MAX_S, cells.override)
    assert bool(found) is RULES[kind].permissive
    assert cells.commit("west", 112.0 + WRITE_DELAY_MAX_S, cells.override)


def test_override_with_lost_count_and_correct_clock_ends_in_time() -> None:
    cells = CheckedCells(OverrideKind.AVOID_ZONE)
    cells.commit("global", 0.0, cells.override)
    cells.commit("west", 1.0, cells.override)
    cells.elect(at_s=100.0, wall_s=WALL_S + 100.0)
    assert cells.commit("west", 102.0 + WRITE_DELAY_MAX_S, cells.override)


@pytest.mark.parametrize("result", ["Accepted", "Unplaced"])
def test_unplaced_decision_written_late_is_judged_by_its_decision_time(result: str) -> None:
    cells = CheckedCells(OverrideKind.RAISE_PRIORITY)
    cells.commit("global", 0.0, cells.override)
    cells.commit("west", 1.0, cells.override)

    def commit_decision(name: str, decided_s: float, at_s: float, *, stamped_s: float | None = None) -> list[str]:
        spec = DecisionSpec(
            request="r",
            workload="w",
            overrides=("o",),
            decided_at=micro_text(WALL_S + decided_s),
            entries=(DecisionEntry(replica="w-0", uid=name, result=result),),
        )
        created = micro_text(WALL_S + (at_s if stamped_s is None else stamped_s))
        meta = ObjectMeta(name=name, namespace="acme", creation_timestamp=created)
        return cells.commit("west", at_s, Decision(metadata=meta, spec=spec))

    after_expiry_s = TTL_S * 1.05 + WRITE_DELAY_MAX_S
    assert bool(commit_decision("in-time", TTL_S - 5, after_expiry_s)) is (result == "Accepted")
    paused = commit_decision("paused-at-the-commit", TTL_S - 5, after_expiry_s, stamped_s=TTL_S - 5)
    assert bool(paused) is (result == "Accepted")
    assert commit_decision("too-late", after_expiry_s, after_expiry_s)
