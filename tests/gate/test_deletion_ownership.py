"""Deletion has owners, per kind: operators delete what people made, and nothing that a component recorded."""

from __future__ import annotations

import pytest
from tests.factories import binding, replica
from tests.gate.conftest import OPERATOR, World, by

from holdfast.gate.garbage_collection import Collector
from holdfast.gate.scope import FREELY_DELETED
from holdfast.model.binding import Reservation, ReservationSpec
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.errors import Forbidden
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import ALL, kind_of
from holdfast.model.lease_page import LeasePage, LeasePageSpec
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.ownership import CLEANUP, DELETERS, INITIAL_FINALIZERS, INSTEAD_OF_DELETION, OWNERS, deleters
from holdfast.model.ownership import OPERATOR as OPERATOR_ROLE
from holdfast.model.quota import GrantClass
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec
from holdfast.model.writes import Delete

RUNNING = replica(1)
CLAIM = binding(RUNNING)
RECORDS: tuple[Object, ...] = (
    CLAIM,
    Reservation(
        metadata=ObjectMeta(name="api-1.1", namespace="acme"),
        spec=ReservationSpec(replica="api-1", intent=CLAIM.spec.intent, node="n1"),
    ),
    RecoverySlot(metadata=ObjectMeta(name="kept-0-0"), spec=RecoverySlotSpec(budget="kept", node="n1")),
    GrantCopy(metadata=ObjectMeta(name="normal", namespace="acme"), spec=GrantCopySpec(grant_class=GrantClass.NORMAL)),
    LeasePage(metadata=ObjectMeta(name="page-0"), spec=LeasePageSpec(page=0)),
    Decision(metadata=ObjectMeta(name="decision-1", namespace="acme"), spec=DecisionSpec(request="r", workload="api")),
    Term(metadata=ObjectMeta(name="authority"), spec=TermSpec(holder="cell", term=3)),
)


@pytest.mark.parametrize("item", RECORDS, ids=lambda item: kind_of(item).name)
async def test_operator_deleting_a_record_of_a_component_is_refused(north: World, item: Object) -> None:
    kind = kind_of(item)
    stored = await north.plant(item)
    for who in (OPERATOR, by("scheduler", "north"), by("collect", "north")):
        if who.roles & deleters(kind.name):
            continue
        with pytest.raises(Forbidden) as refused:
            await north.do(who, Delete(kind.name, stored.key, stored.uid))
        if kind.name != "Term" or who is not OPERATOR:  # an operator may not write a Term at all
            assert f"next: {INSTEAD_OF_DELETION[kind.name]}" in refused.value.message
    assert north.get(type(item), item.metadata.name, item.metadata.namespace) is not None


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_each_kind_names_its_deleters(kind: object) -> None:
    """Operators delete a kind only if people write its spec, or if the table gives the reason beside it."""
    name = kind.name  # type: ignore[attr-defined]
    if name in FREELY_DELETED:
        assert name not in DELETERS
        return
    assert name in DELETERS, f"{name}: who may delete it?"
    assert (OPERATOR_ROLE in DELETERS[name]) != (name in INSTEAD_OF_DELETION)
    if name in OWNERS and OPERATOR_ROLE in DELETERS[name]:
        made_by_people = OPERATOR_ROLE in OWNERS[name].get("spec", frozenset()) | OWNERS[name]["metadata"]
        assert made_by_people or name in ("Endpoint", "NodeIdentity", "Replica", "Server", "Volume")


@pytest.mark.parametrize("cell", ["global", "north"])
def test_garbage_collection_only_deletes_kinds_that_it_may_delete(cell: str) -> None:
    for kind in Collector(cell).own_kinds:
        assert kind.name in (*FREELY_DELETED, "Grant") or "collect" in deleters(kind.name)


def test_every_kind_states_its_cleanup() -> None:
    assert set(CLEANUP) == {kind.name for kind in ALL}
    for name in INITIAL_FINALIZERS:
        assert "finalizer" in CLEANUP[name]
