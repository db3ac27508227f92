"""Histories that real stores recorded, judged by the checkers of simulated worlds: whole ones pass, others do not."""

from __future__ import annotations

import msgspec
import pytest
from tests.authority.cell import Cell
from tests.factories import assignment, meta, replica, serving_status

from holdfast.model import codec
from holdfast.model.binding import Binding
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec, ScoreComponent
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of
from holdfast.model.placement_api import PlacementOutcome, ReleaseAction
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, ReleaseBlock
from holdfast.model.workload import Disruption, Exclusivity
from holdfast.sim.checkers.decisions import BUILT_IN
from holdfast.sim.recorded_history import check_histories, check_platform, read_sqlite
from holdfast.store.contract import Put, Txn


async def put(cell: Cell, item) -> None:
    """Behind everyone's back."""
    key = kind_of(item).store_key(item.metadata.namespace, item.metadata.name)
    await cell.objects.commit(None, Txn(writes=(Put(key, codec.encode(item), item),)))


@pytest.fixture
async def cell(tmp_path):
    """A region whose authority placed two replicas, one of them exclusive, and released it."""
    made = await Cell.open(tmp_path / "store.sqlite")
    await made.node()
    await made.node("n2")
    copy = await made.grant(limit={"cpu": "4", "memory": "100Gi"})
    # The checker knows limits by the name that grant-sync gives them.
    named = msgspec.structs.replace(copy.metadata, name="normal", uid="copy")
    await put(made, msgspec.structs.replace(copy, metadata=named))
    await made.lead()
    yield made
    await made.close()


def promises(tmp_path) -> list[str]:
    """Which promises the history breaks, leaving out what the tests themselves wrote without a record."""
    verdict = check_histories([read_sqlite("us-east", tmp_path / "store.sqlite")])
    assert verdict.commits > 5
    return sorted({v.invariant for v in verdict.violations if "without an audit record" not in v.message})


async def test_what_an_authority_did_is_whole(cell, tmp_path):
    for name in ("web-0", "web-1"):
        assert (await cell.place(await cell.replica(name))).result is PlacementOutcome.ACCEPTED
    assert promises(tmp_path) == []


async def test_a_second_binding_of_one_replica_is_found(cell, tmp_path):
    await cell.place(await cell.replica())
    binding = cell.binding("web-0.1")
    twin = msgspec.structs.replace(binding.metadata, name="web-0.9", uid="another")
    spec = msgspec.structs.replace(binding.spec, node="n2")
    await put(cell, msgspec.structs.replace(binding, metadata=twin, spec=spec))
    assert promises(tmp_path) == ["S1", "S5"], "bound twice, and not by the authority"


async def test_spending_above_the_limit_is_found(cell, tmp_path):
    await cell.place(await cell.replica())
    copy = next(c for c in cell.every(GrantCopy) if c.metadata.name == "normal")
    lowered = msgspec.structs.replace(copy.spec, limit={"cpu": "500m", "memory": "100Gi"})
    await put(cell, msgspec.structs.replace(copy, spec=lowered))
    await cell.place(await cell.replica("web-1"))
    assert "S3" in promises(tmp_path)


async def test_a_commit_under_a_token_of_the_past_is_found(cell, tmp_path, monkeypatch):
    await cell.place(await cell.replica())
    await cell.elect()  # somebody else, of whom this authority does not hear; and its compare is left out
    monkeypatch.setattr("holdfast.authority.commits.Compare", lambda key, revision: _any(cell, key, revision))
    await cell.place(await cell.replica("web-1"))
    assert "S5" in promises(tmp_path)


def _any(cell: Cell, key: str, revision: int):
    from holdfast.store.contract import Compare

    if key == "/terms/authority":
        return Compare(key, next(e.revision for e in cell.store.inner._head.range("/terms/", "", 0)[0]))
    return Compare(key, revision)


async def test_a_decision_that_was_changed_is_found(cell, tmp_path):
    await cell.place(await cell.replica())
    binding = cell.binding("web-0.1")
    moved = msgspec.structs.replace(binding.spec, node="n2")
    await put(cell, msgspec.structs.replace(binding, spec=moved))
    assert {"S10", "S5"} <= set(promises(tmp_path))


async def test_a_decision_that_was_weighed_by_another_policy_than_it_names_is_found(cell, tmp_path):
    entry = DecisionEntry(replica="web-0", uid="u", scores=(ScoreComponent("Packing", 1, 5),))
    spec = DecisionSpec(request="web", workload="web", policy_revision=BUILT_IN, entries=(entry,))
    await put(cell, Decision(metadata=meta("web-x", "acme"), spec=spec))
    assert "S10" in promises(tmp_path)


async def test_more_let_go_at_once_than_may_is_found(cell, tmp_path):
    mine = assignment(where="us-east", disruption=Disruption(max_unavailable=1))
    await put(cell, mine)
    made = [replica(number, mine, status=serving_status()) for number in range(2)]
    for one in made:
        await put(cell, one)
    for number, one in enumerate(made):
        assert "budget" not in promises(tmp_path), f"{number} of one that may"
        block = ReleaseBlock(reason=Reason.DRAINED, attempt=1)
        await put(cell, msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, release=block)))
    assert "budget" in promises(tmp_path)


async def test_a_successor_of_exclusive_work_without_proof_of_its_end_is_found(cell, tmp_path):
    replica = await cell.replica(exclusive=Exclusivity())
    await cell.place(replica)
    first = cell.binding("web-0.1")
    assert first.spec.exclusive is not None
    await cell.remove(first)  # nobody acknowledged anything, and nobody was fenced
    again = msgspec.structs.replace(first.metadata, name="web-0.2", uid="another")
    await put(cell, msgspec.structs.replace(first, metadata=again, spec=msgspec.structs.replace(first.spec, node="n2")))
    assert "S7" in promises(tmp_path)


async def test_after_the_stop_was_acknowledged_a_successor_is_right(cell, tmp_path):
    await cell.place(await cell.replica(exclusive=Exclusivity()))
    await cell.release(cell.get_replica(), ReleaseAction.STOP)
    binding = cell.binding("web-0.1")
    status = msgspec.structs.replace(binding.status, phase=Phase.STOPPED, acknowledged_at="2026-09-21T14:13:20Z")
    await put(cell, msgspec.structs.replace(binding, status=status))
    await cell.release(cell.get_replica(), ReleaseAction.FREE)
    assert (await cell.place(cell.get_replica(), "n2")).result is PlacementOutcome.ACCEPTED
    assert [b.spec.node for b in cell.every(Binding)] == ["n2"]
    assert "S7" not in promises(tmp_path)


async def test_a_directory_is_judged_by_what_it_holds(cell, tmp_path):
    await cell.place(await cell.replica())
    one, whole = check_platform(tmp_path / "store.sqlite"), check_platform(tmp_path)
    assert one.commits == whole.commits > 5
