"""A renewal carries the remaining run time of exclusive work of scope Global, from the tenure that lists it."""

from __future__ import annotations

import pytest
from tests.authority.cell import TENANT, Cell

from holdfast.model import limits, tenure
from holdfast.model.placement_api import PlacementOutcome
from holdfast.model.workload import ExclusiveScope, Exclusivity

ASSIGNMENT = f"{TENANT}/web.us-east.normal"
GLOBAL = Exclusivity(scope=ExclusiveScope.GLOBAL)


async def bound(cell: Cell, exclusive: Exclusivity = GLOBAL) -> str:
    replica = await cell.replica("web-0", exclusive=exclusive, ordinal=0)
    assert (await cell.place(replica)).result is PlacementOutcome.ACCEPTED
    binding = cell.binding("web-0.1")
    assert binding is not None
    return binding.uid


async def test_renewal_without_tenure_grants_no_run_time(cell: Cell) -> None:
    await bound(cell)
    answer = await cell.renew("n1", 1)
    assert answer.result is PlacementOutcome.ACCEPTED and answer.tenures == {}


async def test_renewal_grants_remaining_tenure_time(cell: Cell) -> None:
    uid = await bound(cell)
    asked_s = cell.clock.now() - 15.0
    await cell.put(tenure.tenure_lease("us-east", asked_s, {ASSIGNMENT: (0,)}))
    assert (await cell.renew("n1", 1)).tenures == {uid: pytest.approx(limits.TENURE_S - 15.0, abs=1.0)}
    await cell.clock.advance(limits.TENURE_S)
    assert (await cell.renew("n1", 1)).tenures == {}


@pytest.mark.parametrize("covered", [{}, {ASSIGNMENT: (1,)}, {"team-b/web.us-east.normal": (0,)}])
async def test_renewal_grants_no_time_to_claims_outside_tenure(cell: Cell, covered: tenure.CoveredOrdinals) -> None:
    await bound(cell)
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), covered))
    assert (await cell.renew("n1", 1)).tenures == {}


async def test_exclusive_claim_of_scope_region_needs_no_tenure(cell: Cell) -> None:
    await bound(cell, Exclusivity())
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    assert (await cell.renew("n1", 1)).tenures == {}


async def test_new_authority_waits_for_fresh_tenure(cell: Cell) -> None:
    uid = await bound(cell)
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    await cell.lead()
    assert (await cell.renew("n1", 1)).tenures == {}, "the age of an inherited tenure is unknown"
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    assert list((await cell.renew("n1", 1)).tenures) == [uid]
    cell.check_ledger()


async def test_wall_clock_set_back_does_not_extend_tenure(cell: Cell) -> None:
    await bound(cell)
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    assert (await cell.renew("n1", 1)).tenures
    await cell.clock.advance(2 * limits.TENURE_S)
    cell.clock.wall_s -= 2 * limits.TENURE_S
    await cell.lead()
    answer = await cell.renew("n1", 1)
    assert answer.result is PlacementOutcome.ACCEPTED and answer.tenures == {}


@pytest.mark.parametrize("recreated", [False, True])
async def test_tenure_gives_no_time_to_the_task_of_a_deleted_replica(cell: Cell, *, recreated: bool) -> None:
    """A replica of the same name is another one: the tenure covers its ordinal, not the former task."""
    await bound(cell)
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    assert (await cell.renew("n1", 1)).tenures
    await cell.remove(cell.get_replica())
    if recreated:
        await cell.replica("web-0", exclusive=GLOBAL, ordinal=0)
    assert (await cell.renew("n1", 1)).tenures == {}
