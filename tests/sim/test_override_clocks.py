"""Overrides end in true time, whatever a region's wall clock says; a world in which they do not is seen to fail."""

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
from holdfast.store.contract import Txn


@pytest.mark.slow
def test_a_region_that_trusts_its_wall_clock_lets_an_override_act_past_its_end() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("override-by-wall-clock"):
        (played,) = scenario_runs.run_variants(scenario_runs.load_scenario("override-by-skewed-clock"), 1)
    found = played.outcome.violations
    assert any(broken.invariant == "S8" and "in true time" in broken.message for broken in found), found


# The checker itself: what a cell that lost count may do, and no more

WALL_S = 1_800_000_000.0
TTL_S = 30.0


class West:
    """The disks of the global cell and of a region, as the checker is shown them."""

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
        return [what for promise, what, _ in self.checkers[cell].check(commit) if promise == "S8"]

    def wins(self, at_s: float, wall_s: float, cell: str = "west") -> None:
        """Another process of the cell begins to count, by whose wall clock it is `wall_s`."""
        at = micro_text(wall_s)
        lease = Lease(metadata=ObjectMeta(name="controllers", namespace="holdfast-system"))
        lease = msgspec.structs.replace(lease, spec=msgspec.structs.replace(lease.spec, renew_time=at))
        term = Term(metadata=ObjectMeta(name="controllers"), spec=TermSpec(holder="west"))
        assert not self.commit(cell, at_s, lease, term)


@pytest.mark.parametrize("kind", [OverrideKind.AVOID_ZONE, OverrideKind.RAISE_PRIORITY])
def test_while_the_count_goes_on_nothing_acts_for_longer_than_was_asked(kind: OverrideKind) -> None:
    west = West(kind)
    assert not west.commit("global", 0.0, west.override)
    assert not west.commit("west", TTL_S, west.override)
    assert west.commit("west", TTL_S * 1.05 + WRITE_DELAY_MAX_S, west.override)


@pytest.mark.parametrize("kind", [OverrideKind.AVOID_ZONE, OverrideKind.RAISE_PRIORITY])
def test_where_the_count_was_lost_and_the_clock_set_back_what_forbids_has_its_whole_time_and_no_more(
    kind: OverrideKind,
) -> None:
    west = West(kind)
    west.commit("global", 0.0, west.override)
    west.commit("west", 1.0, west.override)
    west.wins(at_s=100.0, wall_s=WALL_S - 120.0)
    found = west.commit("west", 101.0, west.override)
    assert bool(found) is RULES[kind].permissive
    assert west.commit("west", 101.0 + TTL_S * 1.05 + WRITE_DELAY_MAX_S, west.override)


@pytest.mark.parametrize("kind", [OverrideKind.AVOID_ZONE, OverrideKind.RAISE_PRIORITY])
def test_where_its_home_lost_count_what_forbids_goes_on_in_all_cells_for_as_long_and_no_more(
    kind: OverrideKind,
) -> None:
    west = West(kind)
    west.commit("global", 0.0, west.override)
    west.wins(at_s=100.0, wall_s=WALL_S + 20.0, cell="global")
    found = west.commit("west", 108.0 + WRITE_DELAY_MAX_S, west.override)
    assert bool(found) is RULES[kind].permissive
    assert west.commit("west", 112.0 + WRITE_DELAY_MAX_S, west.override)


def test_where_the_count_was_lost_and_the_clock_is_right_nothing_goes_on() -> None:
    west = West(OverrideKind.AVOID_ZONE)
    west.commit("global", 0.0, west.override)
    west.commit("west", 1.0, west.override)
    west.wins(at_s=100.0, wall_s=WALL_S + 100.0)
    assert west.commit("west", 102.0 + WRITE_DELAY_MAX_S, west.override)


@pytest.mark.parametrize("result", ["Accepted", "Unplaced"])
def test_a_try_in_vain_that_is_written_down_late_is_judged_by_when_it_was_made(result: str) -> None:
    west = West(OverrideKind.RAISE_PRIORITY)
    west.commit("global", 0.0, west.override)
    west.commit("west", 1.0, west.override)

    def written(name: str, decided_s: float, at_s: float, *, stamped_s: float | None = None) -> list[str]:
        spec = DecisionSpec(
            request="r", workload="w", overrides=("o",), decided_at=micro_text(WALL_S + decided_s),
            entries=(DecisionEntry(replica="w-0", uid=name, result=result),),
        )  # fmt: skip
        created = micro_text(WALL_S + (at_s if stamped_s is None else stamped_s))
        meta = ObjectMeta(name=name, namespace="acme", creation_timestamp=created)
        return west.commit("west", at_s, Decision(metadata=meta, spec=spec))

    late_s = TTL_S * 1.05 + WRITE_DELAY_MAX_S
    assert bool(written("in-time", TTL_S - 5, late_s)) is (result == "Accepted")
    paused = written("paused-at-the-commit", TTL_S - 5, late_s, stamped_s=TTL_S - 5)
    assert bool(paused) is (result == "Accepted")
    assert written("too-late", late_s, late_s)
