"""release and serve: each step of a release waits for proof of the previous one."""

from __future__ import annotations

import msgspec
import pytest
from tests.expected import of_type, only, present
from tests.factories import (
    assignment,
    binding,
    bound_status,
    cache_of,
    meta,
    node,
    replica,
    serving_status,
    with_new_revision,
)

from holdfast.model.binding import BindingStatus, DesiredRunState
from holdfast.model.endpoint import Endpoint
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec, GrantCopyStatus
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.meta import Key
from holdfast.model.node import ContactState, FenceBlock, Node
from holdfast.model.placement_api import ReleaseAction
from holdfast.model.replica import ExecutionBlock, Phase, ReleaseBlock, Replica, ReplicaContact
from holdfast.model.times import micro_text, parse_time
from holdfast.model.workload import Disruption
from holdfast.model.writes import Create, SetStatus, Update
from holdfast.scheduling import disruption_budget, endpoint_membership, node_health
from holdfast.scheduling.eviction import release

serve_here = endpoint_membership.decider("us-east")


MADE_S = parse_time(node().metadata.creation_timestamp)


def leased(at_s: float) -> LeasePage:
    return LeasePage(metadata=meta("0"), spec=LeasePageSpec(page=0, leases={"n1": NodeLease(1, at_s, 15.0)}))


def released(item: Replica, reason: str = "ScaledDown") -> Replica:
    block = ReleaseBlock(attempt=item.status.placement.attempt, reason=reason)
    return with_new_revision(item, status=msgspec.structs.replace(item.status, release=block))


def test_release_of_healthy_replica_writes_nothing() -> None:
    item = replica(status=serving_status())
    assert release.decide(item.key, cache_of(item, binding(item), node()), 1.0).writes == ()


@pytest.mark.parametrize(
    ("why", "item", "machine"),
    [
        ("OwnerDeleted", replica(status=serving_status(), terminating=True), node()),
        ("NodeLost", replica(status=serving_status()), None),
    ],
)
def test_release_records_decision_before_acting(why: str, item: Replica, machine: Node | None) -> None:
    items = [item, binding(item), *([machine] if machine else [])]
    outcome = release.decide(item.key, cache_of(*items), 1.0)
    (write,) = outcome.writes
    assert isinstance(write, SetStatus) and write.blocks["release"].reason == why and outcome.releases == ()


def test_release_reason_of_deleted_replica_depends_on_assignment() -> None:
    going = replica(status=serving_status(), terminating=True)
    for web_assignment, why in ((1, "Deleted"), (0, "OwnerDeleted")):
        items = [going, binding(going), node(), assignment(replicas=web_assignment)]
        write = only(release.decide(going.key, cache_of(*items), 1.0).writes, SetStatus)
        assert write.blocks["release"].reason == why
    mate = replica(1, status=serving_status())
    write = only(
        release.decide(going.key, cache_of(going, binding(going), node(), assignment(replicas=1), mate), 1.0).writes,
        SetStatus,
    )
    assert write.blocks["release"].reason == "ScaledDown"


def test_unconfirmed_provisional_replica_is_released() -> None:
    now = 1_800_000_000.0
    item = replica(status=serving_status())
    claim = binding(item, run_until=micro_text(now + 60))
    spec = GrantCopySpec(limit={"cpu": "6"}, provisional={"cpu": "3"}, lease_expires_at=micro_text(now + 60))
    for used, why in (("3", ""), ("5", "ProvisionalWithdrawn")):
        status = GrantCopyStatus(used={"cpu": used}, observed_generation=1)
        copy = GrantCopy(metadata=meta("normal", "acme", generation=1), spec=spec, status=status)
        writes = release.decide(item.key, cache_of(item, claim, node(), copy), now).writes
        assert [of_type(w, SetStatus).blocks["release"].reason for w in writes] == ([why] if why else [])
    over = msgspec.structs.replace(claim, status=BindingStatus(phase=Phase.STOPPED))
    write = only(release.decide(item.key, cache_of(item, over, node()), now + 61).writes, SetStatus)
    assert write.blocks["release"].reason == "ProvisionalExpired"


def test_release_withdraws_traffic_before_stop() -> None:
    item = released(replica(status=serving_status()))
    claim = binding(item)
    assert release.decide(item.key, cache_of(item, claim, node()), 1.0).releases == ()
    outcome = serve_here(Key("acme", "api"), cache_of(item), 1.0)
    assert any(isinstance(w, SetStatus) and w.blocks["traffic"].serving is False for w in outcome.writes)
    quiet = with_new_revision(item, status=msgspec.structs.replace(item.status, traffic=None))
    (ask,) = release.decide(item.key, cache_of(quiet, claim, node()), 1.0).releases
    assert ask.action is ReleaseAction.STOP and ask.attempt == 1


def test_release_frees_claims_only_after_stop_acknowledged() -> None:
    item = released(replica(status=bound_status()))
    stopping = binding(item, desired=DesiredRunState.STOP)
    assert release.decide(item.key, cache_of(item, stopping, node()), 1.0).releases == ()
    acknowledged = msgspec.structs.replace(stopping, status=BindingStatus(phase=Phase.STOPPED))
    (ask,) = release.decide(item.key, cache_of(item, acknowledged, node()), 1.0).releases
    assert ask.action is ReleaseAction.FREE


def test_release_for_lost_node_requires_fence() -> None:
    item = replica(status=bound_status())
    claim = binding(item, node_epoch=3)
    silent = node(epoch=3, contact=ContactState.EXPIRED)
    assert release.decide(item.key, cache_of(item, claim, silent), 1.0).writes == ()
    fenced = with_new_revision(silent, status=msgspec.structs.replace(silent.status, fence=FenceBlock(fenced_epoch=3)))
    write = only(release.decide(item.key, cache_of(item, claim, fenced), 1.0).writes, SetStatus)
    assert write.blocks["release"].reason == "NodeLost"


def test_release_removes_finalizer_of_unplaced_terminating_replica() -> None:
    item = replica(terminating=True)
    (write,) = release.decide(item.key, cache_of(item), 1.0).writes
    assert isinstance(write, Update) and write.object.metadata.finalizers == ()


def test_failed_service_replica_is_released() -> None:
    ran = ExecutionBlock(attempt=1, phase=Phase.FAILED, message="gave up")
    item = replica(status=bound_status(execution=ran))
    write = only(release.decide(item.key, cache_of(item, binding(item), node()), 1.0).writes, SetStatus)
    assert write.blocks["release"].reason == "Exited"


def test_drain_releases_second_replica_only_after_first() -> None:
    web_assignment = assignment(replicas=2)
    both = [replica(n, web_assignment, status=serving_status(name=f"api-us-east-{n}")) for n in range(2)]
    draining = node(drain=True)
    claims = [binding(r) for r in both]
    write = only(release.decide(both[0].key, cache_of(*both, *claims, draining), 1.0).writes, SetStatus)
    assert write.blocks["release"].reason == "Drained"
    first_gone = released(both[0])
    waits = release.decide(both[1].key, cache_of(first_gone, both[1], *claims, draining), 1.0)
    assert waits.writes == () and waits.requeue_after_s


def test_eviction_beyond_disruption_share_is_blocked() -> None:
    """The disruption budget covers all regions; a region uses only its share."""
    web_assignment = assignment(replicas=3, disruption=Disruption(max_unavailable=2))
    all_ = [replica(n, web_assignment, status=serving_status(name=f"api-us-east-{n}")) for n in range(3)]
    draining = node(drain=True)

    def why(share: int | None, *replicas: Replica) -> tuple[str, int]:
        given = with_new_revision(
            web_assignment, spec=msgspec.structs.replace(web_assignment.spec, disruption_share=share)
        )
        return disruption_budget.eviction_blocked_reason(
            replicas[0], cache_of(given, *replicas, draining)
        ), disruption_budget.blocked_node_evictions(replicas, cache_of(given, *replicas, draining))

    assert why(None, *all_) == ("", 0), "without a share the whole budget applies"
    assert why(1, *all_) == ("", 0)
    words, held = why(0, *all_)
    assert "this region has no share of maxUnavailable 2" in words and held == 3
    words, held = why(1, all_[0], released(all_[1]), all_[2])
    assert "1 of 3 replicas are unavailable (allowed 1): api-us-east-1 is Stopping" in words and held == 2
    assert why(5, all_[0], released(all_[1]), all_[2])[0] == "", "never above the budget itself"
    assert why(5, all_[0], released(all_[1]), released(all_[2]))[0], "never above the budget itself"
    changed = with_new_revision(
        web_assignment, spec=msgspec.structs.replace(web_assignment.spec, disruption=Disruption(max_unavailable=0))
    )
    assert "disruption.maxUnavailable is 0" in disruption_budget.eviction_blocked_reason(
        all_[0], cache_of(changed, *all_, draining)
    ), "the Assignment's current value counts"


def test_endpoint_lists_only_eligible_replicas() -> None:
    web_assignment = assignment(replicas=5)
    good = replica(0, web_assignment, status=serving_status(serving=False))
    lost = replica(1, web_assignment, status=serving_status(contact=ReplicaContact(lost=True, attempt=1)))
    going = replica(2, web_assignment, status=serving_status(), terminating=True)
    stale = replica(3, web_assignment, status=serving_status(attempt=2))
    stale = with_new_revision(
        stale,
        status=msgspec.structs.replace(
            stale.status, execution=msgspec.structs.replace(present(stale.status.execution), attempt=1)
        ),
    )
    bound = replica(4, web_assignment, status=bound_status())
    outcome = serve_here(Key("acme", "api"), cache_of(good, lost, going, stale, bound), 10.0)
    (slice_,) = [w.object for w in outcome.writes if isinstance(w, Create)]
    assert isinstance(slice_, Endpoint) and [a.replica for a in slice_.spec.addresses] == ["api-us-east-0"]


def test_lost_mark_of_former_node_does_not_stop_serving() -> None:
    web_assignment = assignment(replicas=1)
    moved = replica(
        0, web_assignment, status=serving_status(attempt=2, contact=ReplicaContact(lost=True, attempt=1, node="n0"))
    )
    assert stage(moved) is Stage.SERVING
    assert endpoint_membership.serving_eligibility(moved, 10.0) == (True, None)
    page = leased(MADE_S + 100.0)
    heard = node_health.decide(Key("", "n1"), cache_of(node(), page, moved), MADE_S + 110.0)
    assert not [w for w in heard.writes if of_type(w, SetStatus).kind == "Replica"], (
        "the mark of the former node does not count"
    )
    (_, marked) = node_health.decide(Key("", "n1"), cache_of(node(), page, moved), MADE_S + 116.0).writes
    contact = of_type(marked, SetStatus).blocks["contact"]
    assert (contact.lost, contact.attempt, contact.node) == (True, 2, "n1")
    assert node_health.woken_by_replica(
        moved, replica(0, web_assignment, status=serving_status(attempt=1)), cache_of()
    ) == (Key("", "n1"),)


def test_late_renewal_is_told_once_and_stops_nothing() -> None:
    """A hung agent is visible before its lease ends."""
    machine = node()
    item = replica(status=serving_status())
    page = leased(MADE_S + 100.0)
    timely = node_health.decide(Key("", "n1"), cache_of(machine, page, item), MADE_S + 107.0)
    assert timely.writes == () and timely.requeue_after_s == pytest.approx(1.05)
    late = node_health.decide(Key("", "n1"), cache_of(machine, page, item), MADE_S + 108.1)
    contact = of_type(only(late.writes, SetStatus), SetStatus).blocks["contact"]
    assert (contact.state, contact.reason) == (ContactState.LIVE, "RenewalLate")
    assert late.notices[0].warning and "no heartbeat for 8 s" in late.notices[0].message
    told = with_new_revision(machine, status=msgspec.structs.replace(machine.status, contact=contact))
    assert node_health.decide(Key("", "n1"), cache_of(told, page, item), MADE_S + 109.0).writes == ()
    renewed = leased(MADE_S + 109.5)
    assert list(node_health.woken_by_page(renewed, page, cache_of())) == [Key("", "n1")]
    held = node_health.decide(Key("", "n1"), cache_of(told, renewed, item), MADE_S + 109.6)
    assert held.writes == () and held.requeue_after_s == pytest.approx(7.95), "often late renewals are told once"
    renewed = leased(MADE_S + 165.0)
    again = node_health.decide(Key("", "n1"), cache_of(told, renewed, item), MADE_S + 168.2)
    assert of_type(only(again.writes, SetStatus), SetStatus).blocks["contact"].reason == "LeaseRenewed"


def test_first_lease_and_a_new_epoch_wake_their_node_and_a_timely_renewal_none() -> None:
    page = leased(MADE_S + 100.0)
    other = msgspec.structs.replace(page.spec, leases={**page.spec.leases, "n2": NodeLease(1, MADE_S + 100.0, 15.0)})
    both = with_new_revision(page, spec=other)
    assert list(node_health.woken_by_page(page, None, cache_of())) == [Key("", "n1")]
    assert list(node_health.woken_by_page(both, page, cache_of())) == [Key("", "n2")]
    assert list(node_health.woken_by_page(leased(MADE_S + 105.0), page, cache_of())) == []
    again = msgspec.structs.replace(page.spec, leases={"n1": NodeLease(2, MADE_S + 105.0, 15.0)})
    assert list(node_health.woken_by_page(with_new_revision(page, spec=again), page, cache_of())) == [Key("", "n1")]


def test_node_wakes_its_failure_detector_by_fence_contact_creation_and_removal_alone() -> None:
    machine = node()
    status = machine.status
    labelled = with_new_revision(machine, spec=msgspec.structs.replace(machine.spec, zone="other"))
    fenced = with_new_revision(machine, status=msgspec.structs.replace(status, fence=FenceBlock(fenced_epoch=1)))
    expired = msgspec.structs.replace(status.contact, state=ContactState.EXPIRED)
    silent = with_new_revision(machine, status=msgspec.structs.replace(status, contact=expired))
    assert node_health.woken_by_node(labelled, machine, cache_of()) == ()
    for new, old in ((fenced, machine), (silent, machine), (machine, None), (None, machine)):
        assert node_health.woken_by_node(new, old, cache_of()) == (Key("", "n1"),)


def test_replicas_of_a_removed_node_are_marked_lost() -> None:
    item = replica(status=serving_status())
    (write,) = node_health.decide(Key("", "n1"), cache_of(item), MADE_S).writes
    contact = of_type(write, SetStatus).blocks["contact"]
    assert (contact.lost, contact.reason) == (True, "NodeNotFound")


def test_fenced_node_is_fenced_at_the_epoch_of_its_lease_and_live_above_it() -> None:
    page = leased(MADE_S + 100.0)
    for epoch, state in ((0, ContactState.LIVE), (1, ContactState.FENCED), (2, ContactState.FENCED)):
        status = msgspec.structs.replace(node().status, fence=FenceBlock(fenced_epoch=epoch))
        machine = with_new_revision(node(contact=ContactState.NO_LEASE), status=status)
        unknown = msgspec.structs.replace(machine.status.contact, state=ContactState.NO_LEASE)
        machine = with_new_revision(machine, status=msgspec.structs.replace(machine.status, contact=unknown))
        outcome = node_health.decide(Key("", "n1"), cache_of(machine, page), MADE_S + 101.0)
        assert of_type(outcome.writes[0], SetStatus).blocks["contact"].state is state


def test_expired_lease_marks_node_and_replica() -> None:
    machine = node(contact=ContactState.NO_LEASE)
    item = replica(status=serving_status())
    page = leased(MADE_S + 100.0)
    live = node_health.decide(Key("", "n1"), cache_of(machine, page, item), MADE_S + 110.0)
    write = of_type(live.writes[0], SetStatus)
    assert write.observed_generation == machine.metadata.generation == 1
    contact = write.blocks["contact"]
    assert contact.state is ContactState.LIVE and live.requeue_after_s == pytest.approx(5.05)
    heard = with_new_revision(machine, status=msgspec.structs.replace(machine.status, contact=contact))
    late = node_health.decide(Key("", "n1"), cache_of(heard, page, item), MADE_S + 116.0)
    assert of_type(late.writes[0], SetStatus).blocks["contact"].state is ContactState.EXPIRED
    assert of_type(late.writes[1], SetStatus).blocks["contact"].lost is True


def test_lease_of_removed_node_does_not_affect_new_node_of_same_name() -> None:
    machine = node(contact=ContactState.NO_LEASE)
    before = replica(status=serving_status(contact=ReplicaContact(lost=True, attempt=1, node="n1")))
    early = node_health.decide(Key("", "n1"), cache_of(machine, leased(MADE_S - 100.0), before), MADE_S + 1.0)
    assert early.writes == (), "the old lease marks neither the node nor its replicas"
    late = node_health.decide(Key("", "n1"), cache_of(machine, leased(MADE_S - 10.0), before), MADE_S + 6.0)
    assert of_type(late.writes[0], SetStatus).blocks["contact"].state is ContactState.EXPIRED, (
        "a lease that expires after the creation counts"
    )
