"""S2 is judged where something more is claimed: a node that shrank under its claims breaks nothing, nor does binding
what was firm there before; to claim more of it is a breach."""

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
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.placement import PlacementChecker
from holdfast.store.contract import Txn


class Region:
    def __init__(self) -> None:
        self.checker = PlacementChecker("us-east")
        self.state: dict[str, Any] = {}
        self.commit(Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(zone="z", capacity={"cpu": "1"})))

    def commit(self, *items: Object) -> list[str]:
        """The promises that this commit breaks."""
        changed = []
        for item in items:
            kind = kind_of(item)
            key = kind.store_key(item.metadata.namespace, item.metadata.name)
            changed.append(ObservedChange(key, kind, self.state.get(key), item))
            self.state[key] = item
        commit = ObservedCommit("us-east", 1.0, 1.0, Txn(), tuple(changed), self.state)
        return [promise for promise, _, _ in self.checker.check(commit)]

    def shrink(self) -> list[str]:
        node = self.state["/nodes/n1"]
        return self.commit(
            msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, capacity={"cpu": "0"}))
        )


def intent(uid: str) -> Intent:
    return Intent(replica_uid=uid, template_hash="h", attempt=1)


def held(name: str, uid: str, phase: ReservationPhase = ReservationPhase.FIRM) -> Reservation:
    spec = ReservationSpec(replica=name, intent=intent(uid), node="n1", resources={"cpu": "500m"})
    return Reservation(
        metadata=ObjectMeta(name=f"{name}.1", namespace="acme"), spec=spec, status=ReservationStatus(phase=phase)
    )


def bound(name: str, uid: str) -> Binding:
    spec = BindingSpec(replica=name, intent=intent(uid), node="n1", template=TEMPLATE, resources={"cpu": "500m"})
    return Binding(metadata=ObjectMeta(name=f"{name}.1", namespace="acme"), spec=spec)


def test_what_was_firm_before_the_node_shrank_may_be_bound() -> None:
    region, mine = Region(), replica()
    name = mine.metadata.name
    assert region.commit(mine) == []
    assert region.commit(held(name, mine.uid)) == []
    assert region.shrink() == []
    assert region.commit(held(name, mine.uid, ReservationPhase.CONSUMED), bound(name, mine.uid)) == []


def test_more_may_not_be_claimed_of_it() -> None:
    region, mine = Region(), replica()
    name = mine.metadata.name
    assert region.commit(mine) == []
    assert region.shrink() == []
    assert region.commit(held(name, mine.uid)) == ["S2"]
    other = Region()
    assert other.commit(mine, held(name, mine.uid, ReservationPhase.NOMINATED)) == []
    assert other.shrink() == []
    assert other.commit(held(name, mine.uid)) == ["S2"], "it waited for others to leave, and takes its place only now"
    third = Region()
    assert third.commit(mine) == []
    assert third.shrink() == []
    assert third.commit(bound(name, mine.uid)) == ["S2"]
