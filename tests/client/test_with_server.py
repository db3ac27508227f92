"""The client against the real server: application, gate and objects behind real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec
import pytest
import uvicorn

from holdfast.client.http import HttpClient
from holdfast.controllers.controller import Controller
from holdfast.controllers.informer import Informers
from holdfast.controllers.runner import Runner
from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.tokens import TokenFile
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import AlreadyExists, Conflict, Expired, Forbidden, Unauthorized
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.principal import controller
from holdfast.model.tenant import Tenant
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Create, Delete, Notice, Outcome, Update
from holdfast.server.app import Application
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects


class Running:
    """The server of a regional cell, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.ports = SystemPorts()
        self.objects = Objects(MemoryStore(), MemoryStore())
        self.gate = Gate("west", self.objects, self.ports)
        self.tokens = TokenFile(folder / "tokens.json")
        authenticator = Authenticator("west", self.ports, tokens=self.tokens)
        self.app = Application("west", self.objects, self.gate, authenticator, self.ports)
        config = uvicorn.Config(self.app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
        self.server = uvicorn.Server(config)
        self.url = ""
        self._clients: list[HttpClient] = []

    async def __aenter__(self) -> Running:
        await self.objects.start()
        self._task = asyncio.create_task(self.server.serve())
        async with asyncio.timeout(10):
            while not self.server.started:
                await asyncio.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        await LocalClient(self.gate, controller("link", cell="west")).commit(
            [Create(Tenant(metadata=ObjectMeta(name="t")))]
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        await self.app.drain()
        self.server.should_exit = True
        await self._task
        await self.objects.close()

    def client(self, role: str) -> HttpClient:
        token = self.tokens.issue(f"{role}-test", f"holdfast:controller:{role}", ("holdfast:controllers",))
        made = HttpClient(self.url, self.ports, cell="west", token=token)
        self._clients.append(made)
        return made


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(tmp_path) as running:
        yield running


def endpoint(name: str, region: str = "west") -> Endpoint:
    return Endpoint(metadata=ObjectMeta(name=name, namespace="t"), spec=EndpointSpec(workload="w", region=region))


async def test_brief_commit_returns_only_revision(cell: Running) -> None:
    client = cell.client("serve")
    done = await client.commit([Create(endpoint("brief"))], brief=True)
    assert done.objects == ()
    held = await client.get(Endpoint, "brief", "t")
    assert held is not None and held.revision == done.revision


async def test_objects_are_created_updated_and_deleted_over_http(cell: Running) -> None:
    client = cell.client("serve")
    done = await client.commit([Create(endpoint("a")), Create(endpoint("b"))])
    first = done.objects[0]
    assert isinstance(first, Endpoint) and first.uid and first.revision
    assert await client.get(Endpoint, "a", "t") == first
    assert await client.get(Endpoint, "nothing", "t") is None
    listing = await client.list(Endpoint, "t", fields={"workload": "t/w"})
    assert listing.items == done.objects and listing.revision >= done.revision
    assert (await client.list(Endpoint, fields={"workload": "t/other"})).items == ()
    with pytest.raises(AlreadyExists):
        await client.commit([Create(endpoint("a"))])
    spec = msgspec.structs.replace(first.spec, ttl_seconds=30.0)
    changed = await client.commit([Update(msgspec.structs.replace(first, spec=spec))])
    with pytest.raises(Conflict):
        await client.commit([Update(msgspec.structs.replace(first, spec=spec, metadata=first.metadata))])
    gone = await client.commit([Delete("Endpoint", first.key, first.uid)])
    assert gone.objects == (None,) and gone.revision > changed.revision
    await client.notify([Notice(first, "Gone", "it is gone")], component="test")


async def test_unknown_and_unauthorized_callers_get_different_faults(cell: Running) -> None:
    with pytest.raises(Forbidden):
        await cell.client("scheduler").commit([Create(endpoint("a"))])
    stranger = HttpClient(cell.url, cell.ports, cell="west", token="wrong")
    with pytest.raises(Unauthorized):
        await stranger.get(Endpoint, "a", "t")
    await stranger.close()


async def test_all_pages_of_a_list_are_read_at_the_revision_of_the_first(cell: Running) -> None:
    client = cell.client("serve")
    for start in range(0, 1200, 400):
        await client.commit([Create(endpoint(f"e{n:04}")) for n in range(start, start + 400)])
    listing = await client.list(Endpoint, "t")
    assert [item.metadata.name for item in listing.items] == [f"e{n:04}" for n in range(1200)]


async def test_watch_over_http_follows_and_expires(cell: Running) -> None:
    client = cell.client("serve")
    start = (await client.list(Endpoint)).revision
    watching = client.watch(Endpoint, after=start, fields={"region": "west"})
    done = await client.commit([Create(endpoint("a")), Create(endpoint("b", region="east"))])
    batch = await asyncio.wait_for(anext(watching), 5)
    assert [seen.object for seen in batch] == [done.objects[0]]
    first = done.objects[0]
    assert first is not None
    await client.commit([Delete("Endpoint", first.key, first.uid)])
    batch = await asyncio.wait_for(anext(watching), 5)
    assert batch[0].deleted and batch[0].object is not None and batch[0].object.uid == first.uid
    await watching.aclose()  # type: ignore[attr-defined]
    with pytest.raises(Expired):
        await anext(client.watch(Endpoint, after=10**6))


async def test_controller_runs_over_http(cell: Running) -> None:
    def wake(new: Endpoint | None, old: Endpoint | None, view: View) -> Iterable[Key]:
        item = new or old
        return (item.key,) if item is not None else ()

    def decide(key: Key, view: View, now: float) -> Outcome:
        """Every endpoint `x` has a twin `x-twin`."""
        if key.name.endswith("-twin") or view.get(Endpoint, key.name, key.namespace) is None:
            return NO_CHANGES
        if view.get(Endpoint, f"{key.name}-twin", key.namespace) is not None:
            return NO_CHANGES
        return Outcome(writes=(Create(endpoint(f"{key.name}-twin")),))

    client = cell.client("serve")
    informers = Informers(client, cell.ports)
    twins = Controller("serve", decide, {Endpoint: wake}, lambda view: (), batch=True)
    runner = Runner(twins, client, informers, cell.ports)
    await informers.start()
    await runner.start()
    await informers.synced()
    await client.commit([Create(endpoint(f"e{n}")) for n in range(50)])
    async with asyncio.timeout(10):
        while len((await client.list(Endpoint)).items) < 100:
            await asyncio.sleep(0.05)
    await runner.stop()
    await informers.stop()
