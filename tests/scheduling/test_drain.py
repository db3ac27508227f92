"""Node drain: disruption budgets are respected, and the blocking replica is named."""

from __future__ import annotations

import msgspec
import pytest
from tests.expected import of_type, only
from tests.factories import binding, bound_status, cache_of, node, replica, serving_status, with_new_revision

from holdfast.model.binding import DesiredRunState
from holdfast.model.meta import Key
from holdfast.model.node import DrainBlock, NodeExecution, Quarantine
from holdfast.model.placement_api import ReleaseAction
from holdfast.model.placement_rules import PlacementRules, Taint, TaintEffect, Toleration
from holdfast.model.replica import ExecutionBlock, Phase, ReleaseBlock, Replica, TrafficBlock
from holdfast.model.times import micro_text
from holdfast.model.workload import Disruption
from holdfast.model.writes import SetStatus
from holdfast.scheduling.eviction import drain, release

T0 = 1_767_225_600.0


def serving(ordinal: int, where: str = "n1", *, away: int = 1) -> Replica:
    made = replica(ordinal, status=serving_status(where, name=f"api-us-east-{ordinal}"))
    return with_new_revision(made, spec=msgspec.structs.replace(made.spec, disruption=Disruption(max_unavailable=away)))


def starting(ordinal: int, where: str = "n2") -> Replica:
    return replica(ordinal, status=bound_status(where, name=f"api-us-east-{ordinal}"))


def with_release_requested(item: Replica) -> Replica:
    block = ReleaseBlock(attempt=1, reason="Drained")
    return with_new_revision(item, status=msgspec.structs.replace(item.status, release=block))


def is_evicted(item: Replica, *others: Replica) -> bool:
    items = (item, *others)
    found = release.decide(item.key, cache_of(*items, *(binding(i) for i in items), node(drain=True), node("n2")), T0)
    return bool(found.writes)


def test_drain_evicts_within_disruption_budget() -> None:
    siblings = [serving(n, "n2") for n in (1, 2)]
    assert is_evicted(serving(0), *siblings)
    assert not is_evicted(serving(0), with_release_requested(siblings[0]), siblings[1])
    assert not is_evicted(serving(0), siblings[0], starting(2))
    assert is_evicted(serving(0, away=2), siblings[0], starting(2))


def is_evicted_by_taint(item: Replica, *others: Replica, effect: TaintEffect = TaintEffect.NO_EXECUTE) -> str:
    """The reason of the release; empty if the replica stays."""
    items = (item, *others)
    tainted = node(taints=(Taint(key="dirty", effect=effect),))
    found = release.decide(item.key, cache_of(*items, *(binding(i) for i in items), tainted, node("n2")), T0)
    if not found.writes:
        assert found.requeue_after_s or effect is not TaintEffect.NO_EXECUTE, "a blocked eviction is tried again"
    return of_type(only(found.writes, SetStatus).blocks["release"], ReleaseBlock).reason if found.writes else ""


def test_no_execute_taint_evicts_within_disruption_budget() -> None:
    siblings = [serving(n, "n2") for n in (1, 2)]
    assert is_evicted_by_taint(serving(0), *siblings) == "EvictedByTaint"
    assert is_evicted_by_taint(starting(0, "n1"), *siblings) == "EvictedByTaint"
    assert not is_evicted_by_taint(serving(0), with_release_requested(siblings[0]), siblings[1])
    assert not is_evicted_by_taint(serving(0, away=0), *siblings)
    assert not is_evicted_by_taint(serving(0), *siblings, effect=TaintEffect.NO_SCHEDULE)


def test_no_execute_taint_spares_replicas_that_tolerate_it() -> None:
    item = serving(0)
    tolerant = PlacementRules(tolerations=(Toleration(key="dirty", exists=True),))
    item = with_new_revision(item, spec=msgspec.structs.replace(item.spec, placement=tolerant))
    tainted = node(taints=(Taint(key="dirty", effect=TaintEffect.NO_EXECUTE),))
    assert not release.decide(item.key, cache_of(item, binding(item), tainted), T0).writes


def test_node_that_gets_a_taint_wakes_its_replicas() -> None:
    item = serving(0)
    plain, tainted = node(), node(taints=(Taint(key="dirty", effect=TaintEffect.NO_EXECUTE),))
    view = cache_of(item, tainted)
    assert list(release.woken_by_node(tainted, plain, view)) == [item.key]
    assert not list(release.woken_by_node(tainted, tainted, view))
    assert list(release.woken_by_node(tainted, None, view)) == [item.key]


def test_drain_with_zero_budget_evicts_nothing() -> None:
    assert not is_evicted(serving(0, away=0), serving(1, "n2"))


def test_drain_evicts_replica_that_does_not_serve() -> None:
    assert is_evicted(starting(0, "n1"), starting(1))


def test_release_of_not_serving_replica_requires_its_observed_revision() -> None:
    """The replica may start to serve before the decision is committed."""
    for item, guarded in ((starting(0, "n1"), True), (serving(0), False)):
        mate = serving(1, "n2")
        seen = cache_of(item, mate, binding(item), binding(mate), node(drain=True), node("n2"))
        write = only(release.decide(item.key, seen, T0).writes, SetStatus)
        assert write.blocks["release"].reason == "Drained"
        assert write.if_revision == (item.revision if guarded else 0)
    lost = of_type(
        release.decide(starting(0).key, cache_of(item := starting(0), binding(item)), T0).writes[0], SetStatus
    )
    assert lost.blocks["release"].reason == "NodeLost" and not lost.if_revision, (
        "an involuntary release needs no revision"
    )


def drain_after(*items: Replica, seconds: float = 60.0, since: str = "", now: float = T0) -> DrainBlock:
    machine = node(drain=True, drain_seconds=seconds)
    if since:
        machine = with_new_revision(
            machine, status=msgspec.structs.replace(machine.status, drain=DrainBlock(since=since))
        )
    write = only(drain.decide(Key("", "n1"), cache_of(machine, *items), now).writes, SetStatus)
    return of_type(write.blocks["drain"], DrainBlock)


def test_drain_status_names_blocking_replica_and_reason() -> None:
    block = drain_after(serving(0), with_release_requested(serving(1, "n2")))
    assert (block.phase, block.remaining) == ("Draining", 1)
    (who,) = block.blocked
    assert (who.replica, who.reason) == ("acme/api-us-east-0", "BudgetExhausted")
    assert who.message == "disruption budget: 1 of 2 replicas are unavailable (allowed 1): api-us-east-1 is Stopping"
    assert who.message in block.message


def test_drain_past_deadline_is_overdue_and_names_replicas() -> None:
    block = drain_after(serving(0, away=0), since="2026-01-01T00:00:00Z", now=T0 + 61)
    assert block.phase == "Overdue" and "not drained within 60 s" in block.message
    assert "acme/api-us-east-0: disruption budget: disruption.maxUnavailable is 0" in block.message


def test_drain_status_lists_permanently_blocked_replica_first() -> None:
    others = [with_release_requested(serving(n)) if n % 2 else serving(n) for n in range(20)]
    block = drain_after(*others, serving(20, away=0))
    assert block.blocked[0].replica == "acme/api-us-east-20"
    assert block.message.startswith("21 replicas remain: acme/api-us-east-20: disruption budget: ")
    assert not any("stopping" in blocked.message for blocked in block.blocked), "stopping replicas are listed last"


def test_drain_of_empty_node_reports_drained() -> None:
    assert drain_after().phase == "Drained"


def test_drain_status_after_undrain_is_removed() -> None:
    machine = node()
    left = with_new_revision(machine, status=msgspec.structs.replace(machine.status, drain=DrainBlock(phase="Drained")))
    write = only(drain.decide(Key("", "n1"), cache_of(left), T0).writes, SetStatus)
    assert write.blocks == {"drain": None}


def test_release_waits_for_drain_delay_before_stop() -> None:
    item = with_release_requested(serving(0))
    withdrawn = TrafficBlock(serving=False, attempt=1, since="2026-01-01T00:00:00Z")
    item = with_new_revision(item, status=msgspec.structs.replace(item.status, traffic=withdrawn))
    early = release.decide(item.key, cache_of(item, binding(item), node()), T0 + 0.5)
    assert early.releases == () and early.requeue_after_s == pytest.approx(1.5)
    (ask,) = release.decide(item.key, cache_of(item, binding(item), node()), T0 + 2.1).releases
    assert ask.action is ReleaseAction.STOP
    told = binding(item, desired=DesiredRunState.STOP)
    assert release.decide(item.key, cache_of(item, told, node()), T0 + 0.5).releases == ()


def test_replica_that_cannot_start_is_released_from_quarantined_node() -> None:
    failing = ExecutionBlock(phase=Phase.BACKING_OFF, attempt=1, reason="DiskFull", message="no room")
    item = replica(0, status=bound_status("n1", name="api-us-east-0", execution=failing))
    well, ill = node(), node()
    evidence = NodeExecution(epoch=1, reconciled=True, quarantine=Quarantine(reason="DiskFull"))
    ill = with_new_revision(ill, status=msgspec.structs.replace(ill.status, execution=evidence))
    assert release.decide(item.key, cache_of(item, binding(item), well), T0).writes == ()
    write = only(release.decide(item.key, cache_of(item, binding(item), ill), T0).writes, SetStatus)
    assert write.blocks["release"].reason == "NodeQuarantined"


@pytest.mark.parametrize(
    ("reason", "attempt", "after_s", "released"),
    [
        ("AssignedPortInUse", 1, 6.0, True),
        ("AssignedPortInUse", 1, 1.0, False),
        ("AssignedPortInUse", 4, 39.0, False),
        ("AssignedPortInUse", 4, 41.0, True),
        ("AssignedPortInUse", 500, 299.0, False),
        ("AssignedPortInUse", 500, 301.0, True),
        ("PortInUse", 1, 600.0, False),
    ],
)
def test_replica_whose_chosen_port_is_taken_is_placed_again(
    reason: str, attempt: int, after_s: float, released: bool
) -> None:
    """A new placement chooses another port (`test_dynamic_ports_are_allocated_in_rotation`); a fixed port has none."""
    failing = ExecutionBlock(
        phase=Phase.BACKING_OFF, attempt=attempt, reason=reason, message="port 20000 (http): in use"
    )
    bound = bound_status("n1", name="api-us-east-0", execution=failing)
    placed = msgspec.structs.replace(bound.placement, bound_at=micro_text(T0), attempt=attempt)
    item = replica(0, status=msgspec.structs.replace(bound, placement=placed))
    writes = release.decide(item.key, cache_of(item, binding(item), node()), T0 + after_s).writes
    assert [w.blocks["release"].reason for w in writes if isinstance(w, SetStatus)] == [reason] * released
