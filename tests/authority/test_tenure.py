"""A renewal tells the node how long exclusive work of scope Global may run: what is left of a tenure that names it."""

from __future__ import annotations

import pytest
from tests.authority.cell import TENANT, Cell

from holdfast.model import limits, tenure
from holdfast.model.placement import Result
from holdfast.model.workload import ExclusiveScope, Exclusivity

ASSIGNMENT = f"{TENANT}/web.us-east.normal"
GLOBAL = Exclusivity(scope=ExclusiveScope.GLOBAL)


async def bound(cell: Cell, exclusive: Exclusivity = GLOBAL) -> str:
    replica = await cell.replica("web-0", exclusive=exclusive, ordinal=0)
    assert (await cell.place(replica)).result is Result.ACCEPTED
    binding = cell.binding("web-0.1")
    assert binding is not None
    return binding.uid


async def test_without_a_tenure_nothing_may_run(cell: Cell) -> None:
    await bound(cell)
    answer = await cell.renew("n1", 1)
    assert answer.result is Result.ACCEPTED and answer.tenures == {}


async def test_what_is_left_of_it_is_what_the_node_gets(cell: Cell) -> None:
    uid = await bound(cell)
    asked_s = cell.clock.now() - 15.0
    await cell.put(tenure.tenure_lease("us-east", asked_s, {ASSIGNMENT: (0,)}))
    assert (await cell.renew("n1", 1)).tenures == {uid: pytest.approx(limits.TENURE_S - 15.0, abs=1.0)}
    await cell.clock.advance(limits.TENURE_S)
    assert (await cell.renew("n1", 1)).tenures == {}


@pytest.mark.parametrize("covered", [{}, {ASSIGNMENT: (1,)}, {"team-b/web.us-east.normal": (0,)}])
async def test_what_it_does_not_name_gets_none(cell: Cell, covered: tenure.Covered) -> None:
    await bound(cell)
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), covered))
    assert (await cell.renew("n1", 1)).tenures == {}


async def test_scope_region_needs_none(cell: Cell) -> None:
    await bound(cell, Exclusivity())
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    assert (await cell.renew("n1", 1)).tenures == {}


async def test_a_new_authority_knows_which_claims_need_it(cell: Cell) -> None:
    uid = await bound(cell)
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    await cell.lead()
    assert (await cell.renew("n1", 1)).tenures == {}, "how old that tenure is, a new authority cannot know"
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    assert list((await cell.renew("n1", 1)).tenures) == [uid]
    cell.check_ledger()


async def test_a_clock_set_back_while_nothing_ran_prolongs_no_tenure(cell: Cell) -> None:
    await bound(cell)
    await cell.put(tenure.tenure_lease("us-east", cell.clock.now(), {ASSIGNMENT: (0,)}))
    assert (await cell.renew("n1", 1)).tenures
    await cell.clock.advance(2 * limits.TENURE_S)
    cell.clock.wall_s -= 2 * limits.TENURE_S
    await cell.lead()
    answer = await cell.renew("n1", 1)
    assert answer.result is Result.ACCEPTED and answer.tenures == {}
