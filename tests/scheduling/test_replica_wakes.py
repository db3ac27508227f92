"""Which changes of a replica wake which controller: only changes that can alter its decision."""

from __future__ import annotations

import msgspec
import pytest
from tests.factories import assignment, bound_status, cache_of, meta, node, replica, serving_status, with_new_revision

from holdfast.model.meta import Key
from holdfast.model.node import ContactState
from holdfast.model.replica import ExecutionBlock, Phase, ReleaseBlock, Replica, ReplicaContact, ReplicaStatus
from holdfast.model.scheduling_request import SchedulingRequest, SchedulingRequestSpec
from holdfast.scheduling import endpoint_membership, node_health, replicate

HELD = assignment()
QUEUED = replica(0, HELD)
STARTING = bound_status(execution=ExecutionBlock(attempt=1, phase=Phase.STARTING))
WORKLOAD = (Key("acme", "api"),)
ASSIGNED = (HELD.key,)


def _at(status: ReplicaStatus) -> Replica:
    found: Replica = with_new_revision(QUEUED, status=status)
    return found


BOUND, BEGUN, READY, SERVING = (
    _at(bound_status()),
    _at(STARTING),
    _at(serving_status(serving=False)),
    _at(serving_status()),
)


@pytest.mark.parametrize(("new", "old"), [(QUEUED, None), (BOUND, QUEUED), (BEGUN, BOUND), (BEGUN, None)])
def test_serve_is_not_woken_by_replica_that_cannot_serve(new: Replica, old: Replica | None) -> None:
    assert endpoint_membership.woken_by_replica(new, old, cache_of()) == ()


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (READY, BEGUN),
        (READY, None),
        (SERVING, READY),
        (BEGUN, SERVING),
        (None, SERVING),
        (None, QUEUED),
        (BOUND, READY),
    ],
)
def test_serve_is_woken_by_replica_that_can_serve_or_is_removed(new: Replica | None, old: Replica | None) -> None:
    assert endpoint_membership.woken_by_replica(new, old, cache_of()) == WORKLOAD


def test_serve_is_woken_by_release_of_serving_replica() -> None:
    leaving = msgspec.structs.replace(SERVING.status, release=ReleaseBlock(attempt=1, reason="Drained"))
    assert (
        endpoint_membership.woken_by_replica(with_new_revision(SERVING, status=leaving), SERVING, cache_of())
        == WORKLOAD
    )


@pytest.mark.parametrize(("new", "old"), [(QUEUED, None), (BEGUN, BOUND), (READY, BEGUN), (BOUND, BEGUN)])
def test_replicate_is_not_woken_while_replica_starts(new: Replica, old: Replica | None) -> None:
    assert replicate.woken_by_replica(new, old, cache_of()) == ()


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (BOUND, QUEUED),
        (SERVING, READY),
        (READY, SERVING),
        (None, QUEUED),
        (BOUND, None),
        (_at(ReplicaStatus(placement=msgspec.structs.replace(QUEUED.status.placement, attempt=2))), None),
        (_at(bound_status(attempt=2)), BOUND),
        (replica(0, HELD, terminating=True), QUEUED),
    ],
)
def test_replicate_is_woken_by_stage_attempt_or_removal(new: Replica | None, old: Replica | None) -> None:
    assert replicate.woken_by_replica(new, old, cache_of()) == ASSIGNED


def test_replicate_is_woken_by_foreign_change_of_scheduling_request() -> None:
    spec = SchedulingRequestSpec(
        workload="api", assignment=HELD.metadata.name, revision=HELD.spec.revision, template=HELD.spec.template
    )
    made = SchedulingRequest(metadata=meta("api", "acme"), spec=spec)
    changed = with_new_revision(made, spec=msgspec.structs.replace(spec, priority=7))
    assert replicate.woken_by_request(made, None, cache_of(QUEUED)) == ()
    assert replicate.woken_by_request(with_new_revision(made), made, cache_of(QUEUED)) == ()
    assert replicate.woken_by_request(changed, made, cache_of(QUEUED)) == ASSIGNED
    assert replicate.woken_by_request(None, made, cache_of(QUEUED)) == ASSIGNED
    assert replicate.woken_by_request(None, made, cache_of(BOUND)) == ()


def test_node_health_is_not_woken_by_replica_on_live_node() -> None:
    assert node_health.woken_by_replica(BOUND, QUEUED, cache_of(node("n1"))) == ()


@pytest.mark.parametrize("contact", [ContactState.EXPIRED, ContactState.FENCED, ContactState.NO_LEASE])
def test_node_health_is_woken_by_replica_on_node_out_of_contact(contact: ContactState) -> None:
    assert node_health.woken_by_replica(BOUND, QUEUED, cache_of(node("n1", contact=contact))) == (Key("", "n1"),)
    assert node_health.woken_by_replica(BOUND, QUEUED, cache_of()) == (Key("", "n1"),)


def test_node_health_is_woken_by_lost_mark_on_live_node() -> None:
    lost = _at(bound_status(contact=ReplicaContact(lost=True, attempt=1, node="n1")))
    assert node_health.woken_by_replica(lost, BOUND, cache_of(node("n1"))) == (Key("", "n1"),)


def test_node_health_keys_include_removed_nodes_with_replicas() -> None:
    orphan = replica(1, HELD, status=bound_status("gone"))
    found = list(node_health.keys(cache_of(node("n2"), node("n1"), BOUND, orphan, QUEUED)))
    assert found == [Key("", "n1"), Key("", "n2"), Key("", "gone")]
