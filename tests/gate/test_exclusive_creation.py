"""Exclusive replicas are created only while their region holds the ordinal, checked in the same transaction (S7)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.gate.conftest import World, assignment, by, replica, with_spec

from holdfast.gate.write_plan import WritePlan
from holdfast.model.errors import Conflict
from holdfast.model.replica import Replica
from holdfast.model.workload import Exclusivity
from holdfast.model.writes import Create, Update

REPLICATE = by("replicate", "north")
LINK = by("link", "north")


def given(*ordinals: int) -> Any:
    return with_spec(assignment(), exclusive=Exclusivity(), ordinals=ordinals, replicas=len(ordinals))


def exclusive(ordinal: int) -> Any:
    return with_spec(replica(f"web-north-{ordinal}"), exclusive=Exclusivity(), ordinal=ordinal)


async def test_replica_of_unassigned_ordinal_is_not_created(north: World) -> None:
    with pytest.raises(Conflict, match=r"web\.north\.normal no longer contains"):
        await north.create(REPLICATE, exclusive(0))
    await north.create(LINK, given(0))
    await north.create(REPLICATE, exclusive(0))
    with pytest.raises(Conflict, match="no longer contains ordinal 1"):
        await north.create(REPLICATE, exclusive(1))
    assert north.get(Replica, "web-north-1", "shop") is None


async def test_ordinary_replica_needs_no_assignment(north: World) -> None:
    await north.create(REPLICATE, replica())


async def test_replica_creation_in_flight_fails_after_ordinal_withdrawal(north: World) -> None:
    """Planned while the region held the ordinal, committed after the region reported that it does not."""
    held = await north.create(LINK, given(0))
    plan = WritePlan("north", north.objects, north.ports, REPLICATE, north.gate.sealer)
    plan.add([Create(exclusive(0))], None)
    late = plan.transaction(())
    taken = msgspec.structs.replace(held.spec, ordinals=(), replicas=0, epoch=2)
    await north.do(LINK, Update(msgspec.structs.replace(held, spec=taken)))
    assert not plan.is_current()
    with pytest.raises(Conflict):
        await north.objects.commit(plan.kind, late)
    assert north.get(Replica, "web-north-0", "shop") is None
