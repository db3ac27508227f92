"""The agent's upkeep of volumes with a real cell: it reports data, and deletes it only when nothing can use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.authority.cell import TENANT, Cell

from holdfast.agent.drivers.local_volumes import LocalVolumes
from holdfast.agent.volume_upkeep import VolumeUpkeep
from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.meta import ObjectMeta
from holdfast.model.ownership import VOLUME_DATA_FINALIZER
from holdfast.model.principal import from_identity
from holdfast.model.template import Template
from holdfast.model.volume import BoundVolume, DataPhase, Volume, VolumeSpec

UID = "9f0e2d8e-6a56-4df0-8f0c-0f3d5b1a7c11"
BOUND = BoundVolume("orders", "orders.web-0", UID, "16Mi", new=True)


@pytest.fixture
async def cell() -> AsyncIterator[Cell]:
    made = await Cell.open()
    await made.node("n1")
    yield made
    await made.close()


def volume(*, deleted: bool = False) -> Volume:
    meta = ObjectMeta(name="orders.web-0", namespace=TENANT, uid=UID, finalizers=(VOLUME_DATA_FINALIZER,))
    if deleted:
        meta = msgspec.structs.replace(meta, deletion_timestamp="2026-01-01T00:00:00Z")
    return Volume(meta, VolumeSpec(claim="orders", workload="web", replica="web-0", node="n1", size="16Mi"))


def binding() -> Binding:
    spec = BindingSpec(
        replica="web-0", intent=Intent("u", "h", 1), node="n1", template=Template(command=("x",)), volumes=(BOUND,)
    )
    return Binding(ObjectMeta(name="web-0.1", namespace=TENANT), spec)


class Upkeep:
    def __init__(self, cell: Cell, root: Path) -> None:
        self.cell, self.store = cell, LocalVolumes(root, limit="measured", can_mount=False)
        who = from_identity("holdfast:node:us-east:n1", ("holdfast:nodes",), credential="c")
        client = LocalClient(Gate("us-east", cell.objects, cell.ports), who)
        self._upkeep = VolumeUpkeep("n1", client, SystemPorts(), self.store, running=list)

    def stored(self) -> Volume:
        (found,) = self.cell.every(Volume)
        assert isinstance(found, Volume)
        return found

    async def round(self) -> DataPhase | None:
        """One look at the stored volume. Returns the phase that is stored afterwards."""
        await self._upkeep._keep(self.stored())
        data = self.stored().status.data
        return data.phase if data is not None else None


async def test_data_is_reported_once_it_exists(cell: Cell, tmp_path: Path) -> None:
    await cell.put(volume())
    node = Upkeep(cell, tmp_path)
    assert await node.round() is None
    node.store.stage(TENANT, BOUND, 0, 0)
    assert await node.round() is DataPhase.PRESENT


async def test_data_is_deleted_only_when_no_binding_uses_it(cell: Cell, tmp_path: Path) -> None:
    node = Upkeep(cell, tmp_path)
    node.store.stage(TENANT, BOUND, 0, 0)
    await cell.put(binding(), volume(deleted=True))
    assert await node.round() is None and node.store.has(UID)
    await cell.remove(binding())
    assert await node.round() is DataPhase.DELETED
    assert not node.store.has(UID)


async def test_data_without_an_object_is_left_alone(cell: Cell, tmp_path: Path) -> None:
    node = Upkeep(cell, tmp_path)
    node.store.stage(TENANT, BOUND, 0, 0)
    running = asyncio.create_task(node._upkeep.run())
    await asyncio.sleep(0.3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert node.store.has(UID)
