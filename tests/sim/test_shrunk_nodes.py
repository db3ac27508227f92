"""S2 on a node that shrank below its claims: existing claims and binding them are allowed, new claims violate S2."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.factories import TEMPLATE, replica

from holdfast.model.binding import (
    Binding,
    BindingSpec,
    Intent,
    Reservation,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import Node, NodeSpec
from holdfast.model.template import Port, Protocol
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.placement import PlacementChecker
from holdfast.store.contract import Txn


class Region:
    def __init__(self) -> None:
        self.checker = PlacementChecker("us-east")
        self.state: dict[str, Any] = {}
        self.commit(Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(zone="z", capacity={"cpu": "1"})))

    def commit(self, *items: Object) -> list[str]:
        """The invariants that this commit violates."""
        changed = []
        for item in items:
            kind = kind_of(item)
            key = kind.store_key(item.metadata.namespace, item.metadata.name)
            changed.append(ObservedChange(key, kind, self.state.get(key), item))
            self.state[key] = item
        commit = ObservedCommit("us-east", 1.0, 1.0, Txn(), tuple(changed), self.state)
        return [invariant for invariant, _, _ in self.checker.check(commit)]

    def shrink(self) -> list[str]:
        node = self.state["/nodes/n1"]
        return self.commit(
            msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, capacity={"cpu": "0"}))
        )


def intent(uid: str) -> Intent:
    return Intent(replica_uid=uid, template_hash="h", attempt=1)


def reservation(name: str, uid: str, phase: ReservationPhase = ReservationPhase.FIRM) -> Reservation:
    spec = ReservationSpec(replica=name, intent=intent(uid), node="n1", resources={"cpu": "500m"})
    return Reservation(
        metadata=ObjectMeta(name=f"{name}.1", namespace="acme"), spec=spec, status=ReservationStatus(phase=phase)
    )


def bound_binding(name: str, uid: str) -> Binding:
    spec = BindingSpec(replica=name, intent=intent(uid), node="n1", template=TEMPLATE, resources={"cpu": "500m"})
    return Binding(metadata=ObjectMeta(name=f"{name}.1", namespace="acme"), spec=spec)


def test_firm_reservation_may_be_bound_after_node_shrank() -> None:
    region, member = Region(), replica()
    name = member.metadata.name
    assert region.commit(member) == []
    assert region.commit(reservation(name, member.uid)) == []
    assert region.shrink() == []
    assert (
        region.commit(reservation(name, member.uid, ReservationPhase.CONSUMED), bound_binding(name, member.uid)) == []
    )


def test_new_claim_on_shrunk_node_violates_s2() -> None:
    region, member = Region(), replica()
    name = member.metadata.name
    assert region.commit(member) == []
    assert region.shrink() == []
    assert region.commit(reservation(name, member.uid)) == ["S2"]
    other = Region()
    assert other.commit(member, reservation(name, member.uid, ReservationPhase.NOMINATED)) == []
    assert other.shrink() == []
    assert other.commit(reservation(name, member.uid)) == ["S2"], (
        "a nomination claims capacity only when it becomes firm"
    )
    third = Region()
    assert third.commit(member) == []
    assert third.shrink() == []
    assert third.commit(bound_binding(name, member.uid)) == ["S2"]


def test_claim_on_shrunk_node_may_ask_for_other_resources() -> None:
    region, member = Region(), replica()
    assert region.commit(member, reservation(member.metadata.name, member.uid)) == []
    assert region.shrink() == []
    other = replica(2)
    claim = reservation(other.metadata.name, other.uid)
    idle = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, resources={"cpu": "0"}))
    assert region.commit(other, idle) == []
    grown = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, resources={"cpu": "1m"}))
    assert region.commit(grown) == ["S2"]


def test_ports_conflict_only_within_a_protocol() -> None:
    """One TCP and one UDP claim may have the same port number; two of a protocol violate S2."""
    for protocol, violated in ((Protocol.UDP, []), (Protocol.TCP, ["S2"])):
        region = Region()
        for number, used in enumerate((Protocol.TCP, protocol)):
            member = replica(number)
            item = bound_binding(member.metadata.name, member.uid)
            template = msgspec.structs.replace(TEMPLATE, ports=(Port("p", 53, used),))
            spec = msgspec.structs.replace(item.spec, template=template, ports={"p": 53})
            found = region.commit(member, msgspec.structs.replace(item, spec=spec))
        assert found == violated
