"""Histories recorded by real stores, checked by the simulation's checkers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.authority.cell import Cell
from tests.expected import of_type, present
from tests.factories import assignment, meta, replica, serving_status

from holdfast.model import codec
from holdfast.model.binding import Binding
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec, ScoreComponent
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.placement_api import PlacementOutcome, ReleaseAction
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, ReleaseBlock
from holdfast.model.workload import Disruption, Exclusivity
from holdfast.sim.checkers.decisions import BUILT_IN
from holdfast.sim.recorded_history import check_histories, check_platform, read_sqlite
from holdfast.store.contract import Compare, Put, Txn
from holdfast.store.sqlite import SqliteStore


async def put(cell: Cell, item: Object) -> None:
    """Writes to the store directly, past authority and gate."""
    key = kind_of(item).store_key(item.metadata.namespace, item.metadata.name)
    await cell.objects.commit(None, Txn(writes=(Put(key, codec.encode(item), item),)))


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    """A region with two nodes, a grant and a leading authority."""
    opened = await Cell.open(tmp_path / "store.sqlite")
    await opened.node()
    await opened.node("n2")
    copy = await opened.grant(limit={"cpu": "4", "memory": "100Gi"})
    # The checker finds limits by the name that grant-sync uses.
    named = msgspec.structs.replace(copy.metadata, name="normal", uid="copy")
    await put(opened, msgspec.structs.replace(copy, metadata=named))
    await opened.lead()
    yield opened
    await opened.close()


def violated_invariants(tmp_path: Path) -> list[str]:
    """The violated invariants, without the missing audit records of the test's own writes."""
    verdict = check_histories([read_sqlite("us-east", tmp_path / "store.sqlite")])
    assert verdict.commits > 5
    return sorted({v.invariant for v in verdict.violations if "without an audit record" not in v.message})


async def test_history_of_an_authority_has_no_violation(cell: Cell, tmp_path: Path) -> None:
    for name in ("web-0", "web-1"):
        assert (await cell.place(await cell.replica(name))).result is PlacementOutcome.ACCEPTED
    assert violated_invariants(tmp_path) == []


async def test_second_binding_of_one_replica_violates_s1(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica())
    binding = present(cell.binding("web-0.1"))
    duplicate_meta = msgspec.structs.replace(binding.metadata, name="web-0.9", uid="another")
    spec = msgspec.structs.replace(binding.spec, node="n2")
    await put(cell, msgspec.structs.replace(binding, metadata=duplicate_meta, spec=spec))
    assert violated_invariants(tmp_path) == ["S1", "S5"], "bound twice, and the second time not by the authority"


async def test_use_above_the_limit_violates_s3(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica())
    copy = next(c for c in cell.every(GrantCopy) if c.metadata.name == "normal")
    lowered = msgspec.structs.replace(copy.spec, limit={"cpu": "500m", "memory": "100Gi"})
    await put(cell, msgspec.structs.replace(copy, spec=lowered))
    await cell.place(await cell.replica("web-1"))
    assert "S3" in violated_invariants(tmp_path)


async def test_commit_with_stale_fencing_token_violates_s5(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cell.place(await cell.replica())
    await cell.elect()  # another leader, unknown to this authority, whose term comparison is removed below
    monkeypatch.setattr("holdfast.authority.commits.Compare", lambda key, revision: _any(cell, key, revision))
    await cell.place(await cell.replica("web-1"))
    assert "S5" in violated_invariants(tmp_path)


def _any(cell: Cell, key: str, revision: int) -> Compare:
    from holdfast.store.contract import Compare

    if key == "/terms/authority":
        return Compare(
            key, next(e.revision for e in of_type(cell.store.inner, SqliteStore)._head.range("/terms/", "", 0)[0])
        )
    return Compare(key, revision)


async def test_changed_binding_violates_s10(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica())
    binding = present(cell.binding("web-0.1"))
    moved = msgspec.structs.replace(binding.spec, node="n2")
    await put(cell, msgspec.structs.replace(binding, spec=moved))
    assert {"S10", "S5"} <= set(violated_invariants(tmp_path))


async def test_decision_scored_by_unnamed_policy_violates_s10(cell: Cell, tmp_path: Path) -> None:
    entry = DecisionEntry(replica="web-0", uid="u", scores=(ScoreComponent("Packing", 1, 5),))
    spec = DecisionSpec(request="web", workload="web", policy_revision=BUILT_IN, entries=(entry,))
    await put(cell, Decision(metadata=meta("web-x", "acme"), spec=spec))
    assert "S10" in violated_invariants(tmp_path)


async def test_evictions_beyond_disruption_budget_are_found(cell: Cell, tmp_path: Path) -> None:
    assignment_object = assignment(where="us-east", disruption=Disruption(max_unavailable=1))
    await put(cell, assignment_object)
    opened = [replica(number, assignment_object, status=serving_status()) for number in range(2)]
    for item in opened:
        await put(cell, item)
    for number, item in enumerate(opened):
        assert "budget" not in violated_invariants(tmp_path), f"{number} evicted, budget 1"
        block = ReleaseBlock(reason=Reason.DRAINED, attempt=1)
        await put(cell, msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, release=block)))
    assert "budget" in violated_invariants(tmp_path)


async def test_exclusive_successor_without_confirmed_stop_violates_s7(cell: Cell, tmp_path: Path) -> None:
    replica = await cell.replica(exclusive=Exclusivity())
    await cell.place(replica)
    first = present(cell.binding("web-0.1"))
    assert first.spec.exclusive is not None
    await cell.remove(first)  # without acknowledged stop and without fencing
    again = msgspec.structs.replace(first.metadata, name="web-0.2", uid="another")
    await put(cell, msgspec.structs.replace(first, metadata=again, spec=msgspec.structs.replace(first.spec, node="n2")))
    assert "S7" in violated_invariants(tmp_path)


async def test_exclusive_successor_after_acknowledged_stop_is_allowed(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica(exclusive=Exclusivity()))
    await cell.release(cell.get_replica(), ReleaseAction.STOP)
    binding = present(cell.binding("web-0.1"))
    status = msgspec.structs.replace(binding.status, phase=Phase.STOPPED, acknowledged_at="2026-09-21T14:13:20Z")
    await put(cell, msgspec.structs.replace(binding, status=status))
    await cell.release(cell.get_replica(), ReleaseAction.FREE)
    assert (await cell.place(cell.get_replica(), "n2")).result is PlacementOutcome.ACCEPTED
    assert [b.spec.node for b in cell.every(Binding)] == ["n2"]
    assert "S7" not in violated_invariants(tmp_path)


async def test_directory_and_its_single_store_give_the_same_result(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica())
    item, whole = check_platform(tmp_path / "store.sqlite"), check_platform(tmp_path)
    assert item.commits == whole.commits > 5
