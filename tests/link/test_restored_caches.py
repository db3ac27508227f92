"""A link acts on nothing that it read from the global cell before a restore, even if its watches are stalled."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.controllers.scripted import ScriptedCell, ScriptedClient
from tests.controllers.virtual import VirtualPorts, run, until
from tests.factories import meta, region

from holdfast.cell.controller_table import link_controllers
from holdfast.controllers.informer import Informers
from holdfast.controllers.runner import Runner
from holdfast.link import recognition
from holdfast.link.link import REGION_REPORT_EVERY_S, Link
from holdfast.link.override_expiry import OverrideExpiry
from holdfast.model.cell_identity import CellIdentity, identity_term
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.grant_copy import NOT_RENEWED, GrantCopy, GrantCopySpec
from holdfast.model.meta import Key
from holdfast.model.quota import Grant, GrantSpec
from holdfast.model.region import Region
from holdfast.model.writes import Update

EAST = "us-east"
FIRST = CellIdentity("global", "one", "era-1", 1)
RESTORED = CellIdentity("global", "one", "era-2", 2)
UNDONE = Grant(meta(f"{EAST}.normal", "acme"), GrantSpec(region=EAST, limit={"cpu": "5"}, epoch=7))
"""A Grant that was raised after the backup, so that the restore undoes it."""
RESTORED_EPOCH = 2_000_006
COPY = Key("acme", "normal")


class GatedClient(ScriptedClient):
    """Reads of single objects wait for the gate, as on a slow network."""

    def __init__(self, cell: ScriptedCell, ports: Any) -> None:
        super().__init__(cell, ports)
        self.gate = asyncio.Event()

    async def get(self, kind: type[Any], name: str, namespace: str = "") -> Any:
        await self.gate.wait()
        return await super().get(kind, name, namespace)


class LinkedRegion:
    """A region, the global cell that it follows, and the link between them. `remembered`: the era it has followed."""

    def __init__(self, remembered: CellIdentity | None = FIRST, found: CellIdentity = FIRST) -> None:
        self.ports = VirtualPorts()
        self.here, self.there = ScriptedCell(), ScriptedCell()
        mine, self.theirs = ScriptedClient(self.here, self.ports), GatedClient(self.there, self.ports)
        self.informers = Informers(mine, self.ports)
        for original in (region(EAST), identity_term(found, 0.0), UNDONE):
            self.there.put(original)
        self.here.put(identity_term(CellIdentity(EAST, "east", "era-e"), 0.0))
        held = GrantCopySpec(limit={}, epoch=3, last_contact_at=NOT_RENEWED, lease_expires_at=NOT_RENEWED)
        self.here.put(GrantCopy(meta("normal", "acme"), held))
        if remembered is not None:
            holder = f"{remembered.cell} {remembered.identity} {remembered.era} {remembered.incarnation}"
            self.here.put(Term(meta(recognition.GLOBAL_IDENTITY_TERM), TermSpec(holder=holder)))
        expiry = OverrideExpiry(self.informers.cache, mine, self.ports)
        self.link = Link(
            EAST,
            global_client=self.theirs,
            mirror_client=mine,
            here=self.informers,
            ports=self.ports,
            override_expiry=expiry,
        )
        for row in link_controllers(self.link):
            client = self.theirs if row.writes_peer else mine
            self.link.runners[row.name] = Runner(row, client, self.informers, self.ports, peer=self.link.peer)

    async def start(self) -> asyncio.Task[None]:
        await self.informers.start()
        running = asyncio.create_task(self.link.run())
        await self.link.peer.synced()
        return running

    async def stop(self, running: asyncio.Task[None]) -> None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await self.informers.stop()

    def restore_global_cell(self, identity: CellIdentity = RESTORED) -> None:
        """The global cell is restored to before the Grant was raised, and no watch delivers anything any more."""
        self.theirs.stalled = True
        known: Region = self.there.objects[Region, Key("", EAST)]
        status = msgspec.structs.replace(known.status, restore_incarnation=identity.incarnation)
        self.there.put(msgspec.structs.replace(known, status=status))
        self.there.put(identity_term(identity, 0.0))
        spec = msgspec.structs.replace(UNDONE.spec, limit={}, unacknowledged_peak={"cpu": "3"}, epoch=RESTORED_EPOCH)
        self.there.put(msgspec.structs.replace(UNDONE, spec=spec))

    def copy(self) -> GrantCopySpec:
        found: GrantCopy = self.here.objects[GrantCopy, COPY]
        return found.spec

    def raised(self) -> list[GrantCopySpec]:
        """All versions of the copy that enforce anything."""
        made = [w.object for writes in self.here.commits for w in writes if isinstance(w, Update)]
        return [item.spec for item in made if isinstance(item, GrantCopy) and item.spec.limit]


@pytest.mark.parametrize(
    ("remembered", "found"), [(FIRST, FIRST), (None, RESTORED)], ids=["followed before", "first contact"]
)
def test_limit_read_before_a_restore_and_recognition_after_it_is_not_enforced(
    remembered: CellIdentity | None, found: CellIdentity
) -> None:
    async def main() -> None:
        world = LinkedRegion(remembered, found)
        running = await world.start()
        later = msgspec.structs.replace(RESTORED, era="era-3", incarnation=3)
        world.restore_global_cell(later)
        world.theirs.gate.set()
        await until(lambda: world.copy().epoch == RESTORED_EPOCH, within_s=2)
        assert not world.raised()
        await world.stop(running)

    run(main)


def test_running_link_lists_a_restored_cell_again_before_its_next_report() -> None:
    async def main() -> None:
        world = LinkedRegion()
        world.theirs.gate.set()
        running = await world.start()
        await until(lambda: world.copy().epoch == UNDONE.spec.epoch, within_s=2)
        assert world.copy().limit == {"cpu": "5"}, "before the restore it is in force"
        world.restore_global_cell()
        await until(lambda: world.copy().epoch == RESTORED_EPOCH, within_s=2 * REGION_REPORT_EVERY_S)
        assert not world.copy().limit
        await world.stop(running)

    run(main)


def test_cell_of_one_era_is_listed_once() -> None:
    async def main() -> None:
        world = LinkedRegion()
        world.theirs.gate.set()
        running = await world.start()
        await asyncio.sleep(1.0)
        before_first_lease = 1  # the Grants, to see that they are current
        assert world.there.lists == len(world.link.peer.all()) + before_first_lease
        await world.stop(running)

    run(main)
