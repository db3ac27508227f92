"""Reports on exclusive work do not depend on a lagging watch (S7)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import present
from tests.gate.conftest import World, assignment, by, make_world, replica, tenant, with_spec

from holdfast.controllers.cache import Cache
from holdfast.controllers.informer import Informers
from holdfast.gate.local_client import LocalClient
from holdfast.link.ordinal_report import refresh_replicas
from holdfast.link.report import assignment_writes
from holdfast.model.assignment import Assignment
from holdfast.model.errors import Unavailable
from holdfast.model.workload import Exclusivity
from holdfast.model.writes import SetStatus, Update


class Region:
    """A region whose replica watch delivers nothing, so that the link must list replicas."""

    def __init__(self, north: World) -> None:
        self.north = north
        self.client = LocalClient(north.gate, by("link", "north"))
        self.here = Informers(self.client, north.ports)
        self.there = Cache()

    async def assigned_ordinals(self, *ordinals: int) -> None:
        """The global cell assigns these ordinals, and the region has received the Assignment."""
        known = self.north.get(Assignment, "web.north.normal", "shop")
        spec = msgspec.structs.replace(
            assignment().spec,
            exclusive=Exclusivity(),
            ordinals=ordinals,
            replicas=len(ordinals),
            epoch=known.spec.epoch + 1 if known is not None else 1,
        )
        link = by("link", "north")
        if known is None:
            copy = await self.north.create(link, msgspec.structs.replace(assignment(), spec=spec))
        else:
            copy = await self.north.do(link, Update(msgspec.structs.replace(known, spec=spec)))
        self.here.of(Assignment).apply_commit([copy])
        self.there.put(copy)

    async def reported_ordinals(self) -> Any:
        key = assignment().key
        await refresh_replicas(key, self.there, self.here, self.client)
        (write,) = assignment_writes(key, self.there, self.here.cache)
        assert isinstance(write, SetStatus)
        return write.blocks


@pytest.fixture
async def region() -> Any:
    north = await make_world("north")
    await north.create(by("link", "north"), tenant("shop"))
    yield Region(north)
    await north.gate.close()
    await north.objects.close()


async def test_replica_missed_by_the_watch_is_reported(region: Region) -> None:
    await region.assigned_ordinals(0)
    made = with_spec(replica(), exclusive=Exclusivity(), ordinal=0)
    await region.north.create(by("replicate", "north"), made)
    await region.assigned_ordinals()
    said = await region.reported_ordinals()
    assert (said["observedEpoch"], said["replicas"], said["ordinals"]) == (2, 1, (0,))


async def test_list_older_than_the_assignment_is_not_reported(region: Region) -> None:
    await region.assigned_ordinals(0)
    ahead = msgspec.structs.replace(
        present(region.here.cache.get(Assignment, "web.north.normal", "shop")),
        metadata=msgspec.structs.replace(assignment().metadata, resource_version="999"),
    )
    region.here.of(Assignment).apply_commit([ahead])
    with pytest.raises(Unavailable, match="expected revision 999"):
        await region.reported_ordinals()
