"""A store that stops answering is told by the health checks, although reads from memory still work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.server.conftest import Api, World

from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.tokens import TokenFile
from holdfast.model.meta import ObjectMeta
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create
from holdfast.server.app import Application
from holdfast.server.health import STORE_SILENCE_MAX_S
from holdfast.store.contract import Committed, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects


class StuckDisk(MemoryStore):
    """Commits wait while `stuck` is set, as on a disk that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def commit(self, txn: Txn) -> Committed:
        await self.answers.wait()
        return await super().commit(txn)


async def test_hung_store_fails_the_health_checks_within_ten_seconds(tmp_path: Path) -> None:
    world = World("west", tmp_path)
    store = StuckDisk()
    ports = SystemPorts()
    world.objects = Objects(store, MemoryStore())
    world.gate = Gate("west", world.objects, ports)
    authenticator = Authenticator("west", ports, tokens=TokenFile(tmp_path / "tokens.json"))
    world.app = Application("west", world.objects, world.gate, authenticator, ports)
    await world.objects.start()
    api = Api(world.app)
    store.answers.clear()
    writing = asyncio.create_task(world.commit(Create(Tenant(metadata=ObjectMeta(name="shop"))), role="link"))
    await asyncio.sleep(0.1)
    assert (await api.get("/livez")).code == 200, "one slow commit is no hang"
    await asyncio.sleep(STORE_SILENCE_MAX_S)
    for page in ("/livez", "/readyz"):
        answer = await api.get(page)
        assert answer.code == 500 and b"the store has not answered a commit for 5 s" in answer.body
    store.answers.set()
    await asyncio.gather(writing, return_exceptions=True)
    assert (await api.get("/livez")).code == 200
    await world.gate.close()
    await world.objects.close()
