"""Rebalance moves one replica of an unevenly spread service, slowly, within budgets, and only if it helps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories
from tests.expected import of_type, only, present
from tests.factories import assignment, binding, cache_of, meta, node, serving_status, with_new_revision

from holdfast.model import input_freshness, limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import claim_name
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Object
from holdfast.model.node import ContactBlock, ContactState, Node
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.replica import RebalanceBlock, Replica
from holdfast.model.times import micro_text
from holdfast.model.workload import Disruption, Exclusivity, Gang, Rebalance, WorkloadType
from holdfast.model.writes import Outcome, SetStatus
from holdfast.scheduling.eviction import rebalance, release
from holdfast.scheduling.eviction.pending_evictions import pending_evictions

NOW = 1_800_000_000.0
LONG_S = limits.REBALANCE_AFTER_S + 60.0
DECIDE = rebalance.decider("us-east")


def steady(name: str, zone: str, *, since_s: float = LONG_S, **spec: Any) -> Node:
    made = node(name, zone=zone, **spec)
    contact = ContactBlock(state=ContactState.LIVE, since=micro_text(NOW - since_s))
    return with_new_revision(made, status=msgspec.structs.replace(made.status, contact=contact))


def serving(of: Assignment, ordinal: int, where: str, zone: str, *, since_s: float = LONG_S, **status: Any) -> Replica:
    made = factories.replica(ordinal, of)
    found = serving_status(where, name=made.metadata.name)
    placed = msgspec.structs.replace(
        found.placement, zone=zone, bound_at=micro_text(NOW - since_s), binding=claim_name(made.metadata.name, 1)
    )
    return with_new_revision(made, status=msgspec.structs.replace(found, placement=placed, **status))


def world(
    *counts: int,
    nodes: tuple[Node, ...] | None = None,
    since_s: float = LONG_S,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> list[Object]:
    """A service with `counts[i]` replicas on the single node of zone i."""
    of = assignment(replicas=sum(counts), **spec)
    zones = [f"us-east-{letter}" for letter in "abcdef"[: len(counts)]]
    places = [zone for zone, count in zip(zones, counts, strict=True) for _ in range(count)]
    replicas = [
        serving(of, n, f"n-{zone[-1]}", zone, since_s=since_s, **(status or {} if n == 0 else {}))
        for n, zone in enumerate(places)
    ]
    bindings = [binding(r, r.status.placement.node) for r in replicas]
    machines = nodes if nodes is not None else tuple(steady(f"n-{zone[-1]}", zone) for zone in zones)
    return [of, *replicas, *bindings, *machines]


def decided(items: list[Object], now: float = NOW) -> Outcome:
    return DECIDE(rebalance.SINGLE_KEY, cache_of(*items), now)


def requested(items: list[Object]) -> RebalanceBlock | None:
    writes = decided(items).writes
    return present(only(writes, SetStatus).blocks["rebalance"]) if writes else None


def pause(**scope: str) -> Override:
    status = OverrideStatus(phase="Active", expires_at=micro_text(NOW + 60))
    spec = OverrideSpec(kind=OverrideKind.PAUSE_REBALANCE, scope=OverrideScope(**scope), reason="x")
    return Override(metadata=meta("pause"), spec=spec, status=status)


def test_service_in_one_zone_gets_a_replica_moved_after_the_zone_returns() -> None:
    items = world(3, 0)
    block = present(requested(items))
    assert (block.from_zone, block.to_zone, block.to_node) == ("us-east-a", "us-east-b", "n-b")
    assert "zone us-east-a has 3 replicas of the workload, zone us-east-b 0" in block.message
    assert "the planner chooses node n-b (score " in block.message
    assert "a move is requested" in decided(items).notices[0].message


def test_replicas_on_one_node_move_to_an_empty_node_of_the_zone() -> None:
    items = world(3, nodes=(steady("n-a", "us-east-a"), steady("n-b", "us-east-a")))
    block = present(requested(items))
    assert block.to_node == "n-b" and "node n-a has 3 replicas of the workload, node n-b 0" in block.message


@pytest.mark.parametrize("counts", [(2, 1), (1, 1), (1, 0), (2, 2, 1), (3, 3, 2)])
def test_spread_that_differs_by_one_is_left_alone(counts: tuple[int, ...]) -> None:
    assert decided(world(*counts)).writes == ()


def test_moves_end_at_an_even_spread_and_each_improves_it() -> None:
    counts = [9, 0, 1]
    for step in range(20):
        block = requested(world(*counts))
        if block is None:
            break
        before = sum(n * n for n in counts)
        counts["abc".index(block.from_zone[-1])] -= 1
        counts["abc".index(block.to_zone[-1])] += 1
        assert sum(n * n for n in counts) < before, (step, counts)
    assert sorted(counts) == [3, 3, 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"rebalance": Rebalance(after_seconds=0)},
        {"rebalance": Rebalance(after_seconds=LONG_S + 60)},
        {"disruption": Disruption(max_unavailable=0)},
        {"type": WorkloadType.BATCH},
        {"exclusive": Exclusivity()},
        {"gang": Gang(min_available=2)},
    ],
)
def test_workload_that_must_not_move_is_left_alone(changes: dict[str, Any]) -> None:
    assert decided(world(3, 0, **changes)).writes == ()


def test_workload_states_its_own_time() -> None:
    soon = Rebalance(after_seconds=5)
    machines = (steady("n-a", "us-east-a", since_s=6), steady("n-b", "us-east-b", since_s=6))
    assert decided(world(3, 0, nodes=machines, since_s=6)).writes == ()
    assert decided(world(3, 0, nodes=machines, since_s=6, rebalance=soon)).writes


def test_recently_placed_replica_or_returned_node_delays_the_move() -> None:
    assert decided(world(3, 0, since_s=limits.REBALANCE_AFTER_S - 1)).writes == ()
    flapping = (steady("n-a", "us-east-a"), steady("n-b", "us-east-b", since_s=30))
    assert decided(world(3, 0, nodes=flapping)).writes == ()


def test_workload_that_does_not_serve_completely_is_left_alone() -> None:
    of, *rest = world(3, 0)
    first = of_type(rest[0], Replica)
    starting = with_new_revision(first, status=msgspec.structs.replace(first.status, traffic=None))
    assert decided([of, starting, *rest[1:]]).writes == ()


@pytest.mark.parametrize("spec", [{"capacity": {"cpu": "100m", "memory": "32Gi"}}, {"unschedulable": True}])
def test_zone_without_room_gets_nothing(spec: dict[str, Any]) -> None:
    machines = (steady("n-a", "us-east-a"), steady("n-b", "us-east-b", **spec))
    assert decided(world(3, 0, nodes=machines)).writes == ()


def in_zone_a(item: Object) -> Object:
    """The replica with a rule that allows only zone a."""
    if not isinstance(item, Replica):
        return item
    rules = msgspec.structs.replace(item.spec.placement, zones=("us-east-a",))
    return with_new_revision(item, spec=msgspec.structs.replace(item.spec, placement=rules))


def test_replica_that_the_planner_would_bring_back_stays() -> None:
    items = world(3, 0)
    assert decided(items).writes
    assert decided([in_zone_a(item) for item in items]).writes == ()


@pytest.mark.parametrize("scope", [{}, {"region": "us-east"}, {"tenant": "acme", "workload": "api"}])
def test_pause_override_stops_moves_and_withdraws_a_request(scope: dict[str, str]) -> None:
    assert decided([*world(3, 0), pause(**scope)]).writes == ()
    waiting = {"rebalance": RebalanceBlock(attempt=1, from_node="n-a", from_zone="us-east-a", at=micro_text(NOW - 1))}
    outcome = decided([*world(3, 0, status=waiting), pause(**scope)])
    assert only(outcome.writes, SetStatus).blocks["rebalance"] is None
    assert "Override pause pauses rebalancing" in outcome.notices[0].message


def test_pause_override_of_another_region_has_no_effect() -> None:
    assert decided([*world(3, 0), pause(region="eu-west")]).writes


def test_nothing_moves_during_a_recovery_or_without_contact() -> None:
    items = world(3, 0)
    borrowed = assignment("risk", purpose=Purpose.RECOVERY, replicas=2)
    suspended = assignment("risk", suspended=True)
    heard = micro_text(NOW - input_freshness.OVERRIDE.seconds - 1)
    copy = GrantCopy(metadata=meta("grant", "acme"), spec=GrantCopySpec(last_contact_at=heard))
    for reason in (borrowed, suspended, copy):
        assert decided([*items, reason]).writes == (), reason.key
        waiting = {"rebalance": RebalanceBlock(attempt=1, from_node="n-a", at=micro_text(NOW - 1))}
        outcome = decided([*world(3, 0, status=waiting), reason])
        assert only(outcome.writes, SetStatus).blocks["rebalance"] is None


def test_one_move_at_a_time_and_few_per_hour() -> None:
    other = assignment("web", replicas=1)
    block = RebalanceBlock(attempt=1, from_node="n-x", from_zone="x", to_zone="us-east-a", at=micro_text(NOW - 60))
    moving = serving(other, 0, "n-a", "us-east-a")
    placed = msgspec.structs.replace(moving.status.placement, attempt=2)
    status = msgspec.structs.replace(moving.status, placement=placed, traffic=None, rebalance=block)
    assert decided([*world(3, 0), with_new_revision(moving, status=status)]).writes == ()
    done = []
    for n in range(rebalance.MOVES_PER_HOUR):
        there = msgspec.structs.replace(present(moving.status.traffic), attempt=2)
        execution = msgspec.structs.replace(present(moving.status.execution), attempt=2)
        served = msgspec.structs.replace(
            moving.status, placement=placed, traffic=there, execution=execution, rebalance=block
        )
        again = factories.replica(n, assignment("web", replicas=20))
        done.append(with_new_revision(again, status=served))
    assert decided([*world(3, 0), *done[:-1]]).writes
    assert decided([*world(3, 0), *done]).writes == ()


def test_move_that_did_not_help_is_not_repeated_for_a_day() -> None:
    ended_there = RebalanceBlock(
        attempt=0, from_node="n-z", from_zone="us-east-a", to_node="n-b", to_zone="us-east-b", at=micro_text(NOW - 4000)
    )
    assert decided(world(3, 0, status={"rebalance": ended_there})).writes == ()
    long_ago = msgspec.structs.replace(ended_there, at=micro_text(NOW - rebalance.RETRY_AFTER_S - 1))
    assert decided(world(3, 0, status={"rebalance": long_ago})).writes


def test_request_is_released_within_the_budget_and_asks_for_a_share() -> None:
    block = RebalanceBlock(attempt=1, from_node="n-a", from_zone="us-east-a", message="uneven", at=micro_text(NOW))
    items = world(3, 0, status={"rebalance": block})
    of, first = items[0], items[1]
    assert isinstance(of, Assignment) and isinstance(first, Replica)
    view = cache_of(*items)
    write = only(release.decide(first.key, view, NOW).writes, SetStatus)
    assert (write.blocks["release"].reason, write.blocks["release"].requested_by) == ("Rebalanced", "rebalance")
    assert pending_evictions(of, [i for i in items if isinstance(i, Replica)], view) == 1
    assert list(release.woken_by_replica(first, None, view)) == [first.key]
    no_share = with_new_revision(of, spec=msgspec.structs.replace(of.spec, disruption_share=0))
    outcome = release.decide(first.key, cache_of(no_share, *items[1:]), NOW)
    assert outcome.writes == () and outcome.requeue_after_s


def test_request_that_the_budget_never_allows_is_withdrawn() -> None:
    block = RebalanceBlock(attempt=1, from_node="n-a", message="uneven", at=micro_text(NOW))
    items = world(3, 0, status={"rebalance": block})
    assert decided(items, NOW + rebalance.REQUEST_TIMEOUT_S - 1).writes == ()
    outcome = decided(items, NOW + rebalance.REQUEST_TIMEOUT_S + 1)
    assert only(outcome.writes, SetStatus).blocks["rebalance"] is None


def test_workload_that_cannot_be_improved_does_not_hide_others() -> None:
    """More unimprovable workloads than a pass plans: later passes reach the one that can move."""
    blocked: list[Object] = []
    for n in range(rebalance.PLANS_PER_PASS_MAX * 2):
        of = assignment(f"aa{n}", replicas=2)
        tied = [serving(of, ordinal, "n-a", "us-east-a") for ordinal in range(2)]
        blocked += [of, *(in_zone_a(r) for r in tied), *(binding(r, "n-a") for r in tied)]
    items = [*world(3, 0), *blocked]
    passes = [decided(items, NOW + n * rebalance.REBALANCE_CHECK_EVERY_S) for n in range(3)]
    assert any(outcome.writes for outcome in passes)
