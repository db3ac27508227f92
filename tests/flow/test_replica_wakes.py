"""Which changes of a replica wake which controller: only changes that can alter its decision."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.flow import node_health, replicate, serve
from holdfast.model.meta import Key
from holdfast.model.node import Contact
from holdfast.model.replica import ExecutionBlock, Phase, ReleaseBlock, Replica, ReplicaContact, ReplicaStatus
from holdfast.model.scheduling_request import SchedulingRequest, SchedulingRequestSpec
from making import again, assignment, bound_status, meta, node, replica, serving_status, view

HELD = assignment()
QUEUED = replica(0, HELD)
STARTING = bound_status(execution=ExecutionBlock(attempt=1, phase=Phase.STARTING))
WORKLOAD = (Key("acme", "api"),)
ASSIGNED = (HELD.key,)


def _at(status: ReplicaStatus) -> Replica:
    found: Replica = again(QUEUED, status=status)
    return found


BOUND, BEGUN, READY, SERVING = (
    _at(bound_status()),
    _at(STARTING),
    _at(serving_status(serving=False)),
    _at(serving_status()),
)


@pytest.mark.parametrize(("new", "old"), [(QUEUED, None), (BOUND, QUEUED), (BEGUN, BOUND), (BEGUN, None)])
def test_serve_is_not_woken_by_replica_that_cannot_serve(new: Replica, old: Replica | None) -> None:
    assert serve.woken_by_replica(new, old, view()) == ()


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
    assert serve.woken_by_replica(new, old, view()) == WORKLOAD


def test_serve_is_woken_by_release_of_serving_replica() -> None:
    leaving = msgspec.structs.replace(SERVING.status, release=ReleaseBlock(attempt=1, reason="Drained"))
    assert serve.woken_by_replica(again(SERVING, status=leaving), SERVING, view()) == WORKLOAD


@pytest.mark.parametrize(("new", "old"), [(QUEUED, None), (BEGUN, BOUND), (READY, BEGUN), (BOUND, BEGUN)])
def test_replicate_is_not_woken_while_replica_starts(new: Replica, old: Replica | None) -> None:
    assert replicate.woken_by_replica(new, old, view()) == ()


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
    assert replicate.woken_by_replica(new, old, view()) == ASSIGNED


def test_replicate_is_woken_by_foreign_change_of_scheduling_request() -> None:
    spec = SchedulingRequestSpec(
        workload="api", assignment=HELD.metadata.name, revision=HELD.spec.revision, template=HELD.spec.template
    )
    made = SchedulingRequest(metadata=meta("api", "acme"), spec=spec)
    changed = again(made, spec=msgspec.structs.replace(spec, rank=7))
    assert replicate.woken_by_request(made, None, view(QUEUED)) == ()
    assert replicate.woken_by_request(again(made), made, view(QUEUED)) == ()
    assert replicate.woken_by_request(changed, made, view(QUEUED)) == ASSIGNED
    assert replicate.woken_by_request(None, made, view(QUEUED)) == ASSIGNED
    assert replicate.woken_by_request(None, made, view(BOUND)) == ()


def test_node_health_is_not_woken_by_replica_on_live_node() -> None:
    assert node_health.woken_by_replica(BOUND, QUEUED, view(node("n1"))) == ()


@pytest.mark.parametrize("contact", [Contact.LAPSED, Contact.FENCED, Contact.UNSEEN])
def test_node_health_is_woken_by_replica_on_node_out_of_contact(contact: Contact) -> None:
    assert node_health.woken_by_replica(BOUND, QUEUED, view(node("n1", contact=contact))) == (Key("", "n1"),)
    assert node_health.woken_by_replica(BOUND, QUEUED, view()) == (Key("", "n1"),)


def test_node_health_is_woken_by_lost_mark_on_live_node() -> None:
    lost = _at(bound_status(contact=ReplicaContact(lost=True, attempt=1, node="n1")))
    assert node_health.woken_by_replica(lost, BOUND, view(node("n1"))) == (Key("", "n1"),)


def test_node_health_keys_include_removed_nodes_with_replicas() -> None:
    orphan = replica(1, HELD, status=bound_status("gone"))
    found = list(node_health.keys(view(node("n2"), node("n1"), BOUND, orphan, QUEUED)))
    assert found == [Key("", "n1"), Key("", "n2"), Key("", "gone")]
