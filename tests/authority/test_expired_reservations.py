"""A Reservation that expires frees only the replica that holds it."""

from __future__ import annotations

import msgspec
import pytest
from tests.authority.cell import TENANT, WHO, Cell

from holdfast.authority.heartbeats import ENDED_LEASE_RETENTION_S
from holdfast.model.binding import Reservation
from holdfast.model.lease_page import LeasePage
from holdfast.model.placement_api import BindItem, BindRequest, PlacementOutcome


@pytest.mark.parametrize("recreated", [False, True])
async def test_reservation_of_a_removed_replica_expires_and_leaves_its_successor_alone(
    cell: Cell, *, recreated: bool
) -> None:
    first = await cell.replica()
    await cell.reserve(cell.item(first), bind=False)
    await cell.remove(first)
    if recreated:
        second = await cell.replica()
        assert second.uid != first.uid
    await cell.clock.advance(60)
    await cell.authority.tick()
    assert not cell.every(Reservation) and not cell.authority.ledger.claims
    if recreated:
        placed = cell.get_replica().status.placement
        assert (placed.attempt, placed.released_reason) == (1, ""), "it held nothing that expired"
    cell.check_ledger()


async def test_bound_replica_names_the_decision_of_its_reservation(cell: Cell) -> None:
    """A bind without a Decision of its own keeps the one under which the replica was reserved."""
    replica = await cell.replica()
    item = cell.item(replica)
    await cell.reserve(item, bind=False)
    reserved = cell.get_replica()
    placed = msgspec.structs.replace(reserved.status.placement, decision="web-d1")
    await cell.put(msgspec.structs.replace(reserved, status=msgspec.structs.replace(reserved.status, placement=placed)))
    bound = (await cell.authority.bind(WHO, BindRequest((BindItem(TENANT, "web-0", item.intent),)))).results[0]
    assert bound.result is PlacementOutcome.ACCEPTED
    assert cell.get_replica().status.placement.decision == "web-d1"


async def test_lease_of_a_removed_node_is_forgotten_after_its_retention(cell: Cell) -> None:
    await cell.remove(cell.get_node())
    await cell.clock.advance(60)
    await cell.authority.tick()
    assert "n1" in cell.every(LeasePage)[0].spec.leases, "a late agent still finds that its epoch has ended"
    await cell.clock.advance(ENDED_LEASE_RETENTION_S)
    await cell.authority.tick()
    assert "n1" not in cell.every(LeasePage)[0].spec.leases
    assert (await cell.renew("n1", 1)).reason == "NodeFenced"
