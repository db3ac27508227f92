"""Persistent volumes at the commit: one node per volume, one user at a time, space and quota that count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.authority.cell import TENANT, Cell
from tests.expected import present

from holdfast.model.meta import Object
from holdfast.model.placement_api import PlacementOutcome, ReleaseAction
from holdfast.model.quantity import STORAGE
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.template_volume import ClaimVolume, TemplateVolume
from holdfast.model.volume import DataPhase, Volume, VolumeData

GIB = 1024**3
LIMIT = {"cpu": "100", "memory": "100Gi", "storage": "3Gi"}
CAPACITY = {"cpu": "8", "memory": "16Gi", "storage": "2Gi"}


@pytest.fixture
async def cell() -> AsyncIterator[Cell]:
    made = await open_cell()
    yield made
    await made.close()


async def open_cell() -> Cell:
    made = await Cell.open()
    await made.grant(limit=LIMIT)
    for name in ("n1", "n2", "n3"):
        await made.node(name, capacity=CAPACITY)
    await made.lead()
    return made


async def stateful(cell: Cell, name: str = "web-0", size: str = "1Gi") -> Replica:
    volume = TemplateVolume(name="data", mount_path="/data", claim=ClaimVolume("orders", size))
    return await cell.replica(name, template={"volumes": (volume,)})


async def released(cell: Cell, name: str = "web-0") -> Replica:
    """Stops and frees the replica's attempt, as its agent and `release` do."""
    replica = cell.get_replica(name)
    await cell.release(replica, ReleaseAction.STOP)
    await cell.acknowledge(replica.status.placement.binding)
    await cell.release(cell.get_replica(name), ReleaseAction.FREE)
    return cell.get_replica(name)


def the_volume(cell: Cell) -> Volume:
    (found,) = cell.every(Volume)
    assert isinstance(found, Volume)
    return found


async def change(cell: Cell, item: Object, **meta: Any) -> None:
    await cell.put(msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, **meta)))


async def test_first_bind_creates_the_volume_on_its_node_and_counts_its_space(cell: Cell) -> None:
    answer = await cell.place(await stateful(cell), "n2")
    assert answer.result is PlacementOutcome.ACCEPTED
    volume = the_volume(cell)
    assert (volume.metadata.name, volume.spec.node, volume.spec.size) == ("orders.web-0", "n2", "1Gi")
    (bound,) = present(cell.binding("web-0.1")).spec.volumes
    assert (bound.uid, bound.new) == (volume.uid, True)
    assert cell.authority.ledger.used[TENANT, GrantClass.NORMAL][STORAGE] == GIB
    assert cell.authority.ledger.nodes["n2"].firm[STORAGE] == GIB
    cell.check_ledger()


async def test_volume_keeps_space_quota_and_node_after_its_replica_was_released(cell: Cell) -> None:
    await cell.place(await stateful(cell), "n2")
    replica = await released(cell)
    assert cell.authority.ledger.used[TENANT, GrantClass.NORMAL] == {STORAGE: GIB}
    cell.check_ledger()
    elsewhere = await cell.place(replica, "n1")
    assert (elsewhere.result, elsewhere.reason) == (PlacementOutcome.REJECTED, Reason.VOLUME_ON_OTHER_NODE)
    assert "on node n2" in elsewhere.message
    again = await cell.place(replica, "n2")
    assert again.result is PlacementOutcome.ACCEPTED
    assert len(cell.every(Volume)) == 1
    assert cell.authority.ledger.used[TENANT, GrantClass.NORMAL][STORAGE] == GIB
    cell.check_ledger()


async def test_reported_data_is_never_new_again(cell: Cell) -> None:
    await cell.place(await stateful(cell), "n2")
    volume = the_volume(cell)
    data = VolumeData(phase=DataPhase.PRESENT)
    await cell.put(msgspec.structs.replace(volume, status=msgspec.structs.replace(volume.status, data=data)))
    await cell.place(await released(cell), "n2")
    assert [v.new for v in present(cell.binding("web-0.2")).spec.volumes] == [False]


async def test_node_without_space_and_tenant_without_quota_are_refused(cell: Cell) -> None:
    await cell.place(await stateful(cell, "web-0", "2Gi"), "n1")
    full = await cell.place(await stateful(cell, "web-1"), "n1")
    assert (full.result, full.reason) == (PlacementOutcome.REJECTED, Reason.INSUFFICIENT_STORAGE)
    beyond = await cell.place(await stateful(cell, "web-2", "2Gi"), "n2")
    assert (beyond.result, beyond.reason) == (PlacementOutcome.REJECTED, Reason.QUOTA_EXCEEDED)
    assert [v.spec.replica for v in cell.every(Volume)] == ["web-0"], "a refused bind leaves no volume"
    cell.check_ledger()


async def test_volume_that_is_being_deleted_gets_no_new_user(cell: Cell) -> None:
    await cell.place(await stateful(cell), "n2")
    replica = await released(cell)
    await change(cell, the_volume(cell), deletion_timestamp="2026-01-01T00:00:00Z")
    answer = await cell.place(replica, "n2")
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, Reason.VOLUME_TERMINATING)


async def test_volume_that_a_lost_task_may_use_gets_no_second_user(cell: Cell) -> None:
    """The node was fenced: the replica is free, and its Binding stays until the stop is proven."""
    await cell.place(await stateful(cell), "n2")
    await cell.change_node("n2", fence=1)
    await cell.release(cell.get_replica(), ReleaseAction.FREE)
    assert present(cell.binding("web-0.1")).spec.quota_released
    await cell.change_node("n2", fence=0)
    answer = await cell.place(cell.get_replica(), "n2")
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, Reason.VOLUME_IN_USE)


async def test_new_volume_is_bound_at_once_or_not_at_all(cell: Cell) -> None:
    (answer,) = await cell.reserve(cell.item(await stateful(cell), "n1"), bind=False)
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, Reason.VOLUME_NOT_BOUND)
    assert cell.every(Volume) == []


async def test_space_is_free_again_when_the_volume_is_gone(cell: Cell) -> None:
    await cell.lead(run=True)
    await cell.place(await stateful(cell, size="2Gi"), "n1")
    await released(cell)
    await cell.remove(the_volume(cell))
    for _ in range(20):
        await cell.clock.advance(0.05)
    assert (TENANT, GrantClass.NORMAL) not in cell.authority.ledger.used
    cell.check_ledger()


async def test_removed_node_that_joins_again_still_counts_its_volumes(cell: Cell) -> None:
    await cell.place(await stateful(cell), "n2")
    await released(cell)
    ledger = cell.authority.ledger
    ledger.forget("n2")
    assert ledger.account_for(cell.get_node("n2")).firm == {STORAGE: GIB}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.sampled_from(["place", "release"]), st.integers(0, 2), st.integers(1, 3)), max_size=14)
)
async def test_volume_is_never_on_two_nodes_and_never_has_two_users(steps: list[tuple[str, int, int]]) -> None:
    cell = await open_cell()
    try:
        held: dict[str, str] = {}
        for ordinal in range(3):
            await stateful(cell, f"web-{ordinal}")
        for what, ordinal, node in steps:
            name = f"web-{ordinal}"
            if what == "place":
                await cell.place(cell.get_replica(name), f"n{node}")
            elif cell.get_replica(name).status.placement.binding:
                await released(cell, name)
            for volume in cell.every(Volume):
                assert held.setdefault(volume.uid, volume.spec.node) == volume.spec.node
            bindings = [
                cell.binding(f"web-{o}.{cell.get_replica(f'web-{o}').status.placement.attempt}") for o in range(3)
            ]
            used = [(v.uid, b.spec.node) for b in bindings if b is not None for v in b.spec.volumes]
            assert len({uid for uid, _ in used}) == len(used)
            assert all(held[uid] == node_name for uid, node_name in used)
            cell.check_ledger()
    finally:
        await cell.close()
