"""Reports on exclusive work do not depend on a lagging watch (S7)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import present
from tests.gate.conftest import World, assignment, by, make_world, replica, tenant, with_spec

from holdfast.controllers.cache import Cache
from holdfast.controllers.informer import CacheChange, Informers
from holdfast.gate.local_client import LocalClient
from holdfast.link.ordinal_report import refresh_replicas
from holdfast.link.report import assignment_writes, woken_by_restore
from holdfast.model.assignment import Assignment
from holdfast.model.election_term import INCARNATION_TERM, RESTORE_COMPLETE, RESTORE_IN_PROGRESS, Term, TermSpec
from holdfast.model.errors import Unavailable
from holdfast.model.meta import ObjectMeta
from holdfast.model.workload import Exclusivity
from holdfast.model.writes import SetStatus, Update, Write


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

    async def reports(self) -> list[Write]:
        key = assignment().key
        await refresh_replicas(key, self.there, self.here, self.client)
        return list(assignment_writes(key, self.there, self.here.cache))

    async def reported_ordinals(self) -> Any:
        (write,) = await self.reports()
        assert isinstance(write, SetStatus)
        return write.blocks

    def becomes(self, holder: str, revision: int) -> CacheChange[Term]:
        """The state of this region's own restore changes."""
        meta = ObjectMeta(name=INCARNATION_TERM, resource_version=str(revision))
        old = self.here.cache.get(Term, INCARNATION_TERM)
        new = Term(metadata=meta, spec=TermSpec(holder=holder, term=2))
        self.here.of(Term).apply_commit([new])
        return CacheChange(new, old)


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


async def test_restored_region_reports_exclusive_work_only_when_its_agents_hold_no_earlier_lease(
    region: Region,
) -> None:
    """The backup has no replica of the withdrawn ordinal, but an agent may still run it."""
    began = region.becomes(RESTORE_IN_PROGRESS, 900)
    await region.assigned_ordinals(0)
    await region.assigned_ordinals()
    assert not await region.reports()
    ended = region.becomes(RESTORE_COMPLETE, 901)
    said = await region.reported_ordinals()
    assert (said["observedEpoch"], said["ordinals"]) == (2, ())
    assert not woken_by_restore(began.new, began.old, region.here.cache)
    assert list(woken_by_restore(ended.new, ended.old, region.here.cache)) == [assignment().key]
