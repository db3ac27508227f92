"""A region meets a global cell that it does not know: it says so in both cells, and follows it only when confirmed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.controllers.scripted import ScriptedCell, ScriptedClient
from tests.controllers.virtual import VirtualPorts, run, until
from tests.factories import assignment, confirm_deletion, region

from holdfast.controllers.informer import Informers
from holdfast.link import recognition
from holdfast.link.recognizer import HOLD_CHECK_EVERY_S, Recognizer
from holdfast.model.assignment import Assignment
from holdfast.model.cell_identity import CellIdentity, identity_term
from holdfast.model.election_term import Term
from holdfast.model.errors import StaleToken
from holdfast.model.meta import Key, find_condition
from holdfast.model.override import Override
from holdfast.model.region import HOLDS_WORK, Region

EAST = "us-east"
OLD, NEW = CellIdentity("global", "old", "era-1"), CellIdentity("global", "new", "era-2")


class Meeting:
    def __init__(self) -> None:
        self.ports = VirtualPorts()
        self.here, self.there = ScriptedCell(), ScriptedCell()
        self.informers = Informers(ScriptedClient(self.here, self.ports), self.ports)
        for kind in (Region, Term, Assignment, Override):
            self.informers.of(kind)
        mine, theirs = ScriptedClient(self.here, self.ports), ScriptedClient(self.there, self.ports)
        self.recognizer = Recognizer(EAST, theirs, mine, self.informers.cache, self.ports)

    async def start(self) -> None:
        for original in (region(EAST), identity_term(OLD, 0.0)):
            self.there.put(original)
        for copied in (region(EAST), assignment(), identity_term(CellIdentity(EAST, "east", "era-e"), 0.0)):
            self.here.put(copied)
        await self.informers.start()
        await self.informers.synced()
        await self.recognizer.until_recognized()

    def become_new(self) -> None:
        self.there.remove(Term, Key("", "identity"))
        self.there.put(identity_term(NEW, 0.0))

    def condition(self) -> Any:
        return find_condition(self.here.objects[Region, Key("", EAST)].status.conditions, HOLDS_WORK)

    def followed(self) -> str:
        term = self.here.objects.get((Term, Key("", recognition.GLOBAL_IDENTITY_TERM)))
        return term.spec.holder if term is not None else ""


def test_other_global_cell_is_followed_only_when_the_whole_region_is_confirmed() -> None:
    async def main() -> None:
        meeting = Meeting()
        await meeting.start()
        assert "global old" in meeting.followed()
        meeting.become_new()
        waiting = asyncio.create_task(meeting.recognizer.until_recognized())
        await until(lambda: meeting.condition() is not None, within_s=5)
        assert meeting.condition().status == "True" and meeting.condition().reason == "GlobalCellReplaced"
        await until(lambda: meeting.there.objects[Region, Key("", EAST)].status.report.holding, within_s=5)
        meeting.there.put(confirm_deletion(EAST, tenant="acme"))
        meeting.there.put(confirm_deletion("eu-west"))
        await asyncio.sleep(3 * HOLD_CHECK_EVERY_S)
        assert not waiting.done(), "neither a tenant nor another region confirms this region"
        meeting.there.put(confirm_deletion(EAST))
        await until(waiting.done, within_s=2 * HOLD_CHECK_EVERY_S)
        await waiting
        assert "global new" in meeting.followed()
        await asyncio.sleep(1.0)
        await meeting.recognizer.check()
        await meeting.informers.stop()

    run(main)


def test_other_global_cell_ends_the_exchange() -> None:
    async def main() -> None:
        meeting = Meeting()
        await meeting.start()
        await asyncio.sleep(1.0)
        await meeting.recognizer.check()
        meeting.become_new()
        await asyncio.sleep(1.0)
        with pytest.raises(StaleToken, match="not the one that region us-east has followed"):
            await meeting.recognizer.check()
        meeting.there.remove(Term, Key("", "identity"))
        meeting.there.put(identity_term(msgspec.structs.replace(OLD, era="era-3", incarnation=2), 0.0))
        await meeting.recognizer.check()  # restored: the same identity, a later era
        assert "era-3 2" in meeting.followed()
        await meeting.informers.stop()

    run(main)
