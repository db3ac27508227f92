"""The authority's background jobs on a real store: orphans, usage reports, repeated binds, and the end of a restore."""

from __future__ import annotations

import pytest
from tests.authority.cell import TENANT, WHO, Cell
from tests.expected import present
from tests.factories import meta

from holdfast.model.binding import DesiredRunState
from holdfast.model.election_term import INCARNATION_TERM, RESTORE_IN_PROGRESS, Term, TermSpec
from holdfast.model.errors import Unavailable
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.placement_api import BindItem, BindRequest, PlacementOutcome, ReleaseAction
from holdfast.model.quota import GrantClass
from holdfast.model.replica import Phase


@pytest.mark.parametrize(("stopped", "reason"), [(False, "OwnerDeleted"), (True, "Drained")])
async def test_binding_of_a_deleted_replica_is_stopped_and_keeps_its_node_until_it_ended(
    cell: Cell, *, stopped: bool, reason: str
) -> None:
    replica = await cell.replica()
    await cell.place(replica)
    if stopped:
        await cell.release(cell.get_replica(), ReleaseAction.STOP)
    await cell.remove(cell.get_replica())
    await cell.authority.tick()
    order = present(cell.binding("web-0.1")).spec
    assert (order.desired, order.stop_reason, order.quota_released) == (DesiredRunState.STOP, reason, False)
    assert cell.authority.ledger.used[TENANT, GrantClass.NORMAL]
    await cell.change_node(fence=1)
    await cell.authority.tick()
    order = present(cell.binding("web-0.1")).spec
    assert (order.stop_reason, order.quota_released) == (reason, True)
    assert not cell.authority.ledger.used and list(cell.authority.ledger.quota_released) == [f"{TENANT}/web-0.1"]
    cell.check_ledger()
    await cell.acknowledge("web-0.1", Phase.STOPPED)
    await cell.authority.tick()
    assert cell.binding("web-0.1") is None and not cell.authority.ledger.claims
    cell.check_ledger()


@pytest.mark.parametrize("normal", [True, False], ids=["with a normal grant", "with emergency quota alone"])
async def test_usage_is_reported_once_on_the_normal_grant_if_there_is_one(cell: Cell, *, normal: bool) -> None:
    await cell.grant(grant_class=GrantClass.EMERGENCY)
    await cell.place(await cell.replica())
    copies = {copy.spec.grant_class: copy for copy in cell.every(GrantCopy)}
    if not normal:
        await cell.remove(copies[GrantClass.NORMAL])
    await cell.authority.tick()
    found = {copy.spec.grant_class: copy.status.used for copy in cell.every(GrantCopy)}
    used = {"cpu": "1", "memory": "1Gi"}
    expected = {GrantClass.NORMAL: used, GrantClass.EMERGENCY: {}} if normal else {GrantClass.EMERGENCY: used}
    assert found == expected


async def test_bind_of_one_replica_twice_in_a_request_is_accepted_once(cell: Cell) -> None:
    replica = await cell.replica()
    item = cell.item(replica)
    await cell.reserve(item, bind=False)
    twice = BindItem(TENANT, "web-0", intent=item.intent)
    answers = (await cell.authority.bind(WHO, BindRequest((twice, twice)))).results
    assert sorted(answer.result for answer in answers) == sorted((PlacementOutcome.ACCEPTED, PlacementOutcome.ALREADY))
    cell.check_ledger()


def is_restoring(cell: Cell) -> bool:
    return cell.authority.restore_in_progress


async def test_restore_ends_when_no_lease_of_the_former_life_can_be_held(cell: Cell) -> None:
    await cell.put(Term(meta(INCARNATION_TERM), TermSpec(holder=RESTORE_IN_PROGRESS, term=2)))
    await cell.lead()
    assert is_restoring(cell) and cell.authority.incarnation == 2
    replica = await cell.replica()
    with pytest.raises(Unavailable, match="restored from a backup"):
        await cell.place(replica)
    await cell.authority.tick()
    assert is_restoring(cell), "the time has not passed"
    cell.clock.monotonic_s += 3600.0
    cell.clock.wall_s += 3600.0
    await cell.authority.tick()
    assert not is_restoring(cell) and cell.authority.incarnation == 2
