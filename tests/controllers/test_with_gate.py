"""The controller runtime on a real cell: memory store, gate and in-process client, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from tests.controllers.virtual import VirtualPorts, run, until

from holdfast.controllers.controller import Controller
from holdfast.controllers.informer import Informers
from holdfast.controllers.leader_election import Election
from holdfast.controllers.runner import Runner
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import StaleToken
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.principal import controller
from holdfast.model.tenant import Tenant
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Create, Delete, Outcome
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects


class Cell:
    """A regional cell, with a client per role."""

    def __init__(self) -> None:
        self.ports = VirtualPorts()
        self.objects = Objects(MemoryStore(), MemoryStore())
        self.gate = Gate("west", self.objects, self.ports)

    async def __aenter__(self) -> Cell:
        await self.objects.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.objects.close()

    def client(self, role: str) -> LocalClient:
        return LocalClient(self.gate, controller(role, cell="west"))


def endpoint(key: Key) -> Endpoint:
    spec = EndpointSpec(workload="w", region="west")
    return Endpoint(metadata=ObjectMeta(name=key.name, namespace=key.namespace), spec=spec)


def wake(new: Tenant | None, old: Tenant | None, view: View) -> Iterable[Key]:
    return keys_of(new) if new is not None else ()


def keys_of(tenant: Tenant) -> list[Key]:
    count = int(tenant.spec.description or 0)
    return [Key(tenant.metadata.name, f"e{number:05}") for number in range(count)]


def keys(view: View) -> Iterable[Key]:
    return [key for tenant in view.list(Tenant) for key in keys_of(tenant)]


def decide(key: Key, view: View, now: float) -> Outcome:
    if view.get(Tenant, key.namespace) is None or view.get(Endpoint, key.name, key.namespace) is not None:
        return NO_CHANGES
    return Outcome(writes=(Create(endpoint(key)),))


def tenant(name: str, count: int) -> Tenant:
    made = Tenant(metadata=ObjectMeta(name=name))
    return Tenant(metadata=made.metadata, spec=type(made.spec)(description=str(count)))


def test_batching_singleton_creates_1000_objects_on_real_gate() -> None:
    async def main() -> None:
        async with Cell() as cell:
            client = cell.client("serve")
            informers = Informers(client, cell.ports)
            election = Election(client, "controllers", "one", cell.ports)
            serve = Controller("serve", decide, {Tenant: wake}, keys, reads=(Endpoint,), batch=True)
            runner = Runner(serve, client, informers, cell.ports, election)
            await informers.start()
            await election.start()
            await runner.start()
            await cell.client("link").commit([Create(tenant("t", 1000))])
            await until(lambda: len(informers.cache.list(Endpoint)) == 1000, within_s=20)
            listing = await client.list(Endpoint, "t")
            assert len(listing.items) == 1000
            assert [e.metadata.name for e in informers.cache.list(Endpoint, "t")] == [f"e{n:05}" for n in range(1000)]
            gone = listing.items[0]
            await client.commit([Delete("Endpoint", gone.key, gone.uid)])
            await until(lambda: len(informers.cache.list(Endpoint)) == 1000, within_s=60)
            await runner.stop()
            await election.stop()
            await informers.stop()

    run(main)


def test_gate_refuses_write_of_paused_leader() -> None:
    async def main() -> None:
        async with Cell() as cell:
            await cell.client("link").commit([Create(tenant("t", 0))])
            one_client, two_client = cell.client("serve"), cell.client("serve")
            one = Election(one_client, "controllers", "one", cell.ports)
            two = Election(two_client, "controllers", "two", cell.ports)
            await one.start()
            stale = await one.wait_until_leading()
            await one_client.commit([Create(endpoint(Key("t", "before")))], token=stale)
            # Paused: its task is cancelled, but it still has its token.
            assert one._task is not None
            one._task.cancel()
            await two.start()
            began = asyncio.get_running_loop().time()
            fresh = await two.wait_until_leading()
            assert asyncio.get_running_loop().time() - began > 14.0
            with pytest.raises(StaleToken):
                await one_client.commit([Create(endpoint(Key("t", "late")))], token=stale)
            await two_client.commit([Create(endpoint(Key("t", "after")))], token=fresh)
            names = [item.metadata.name for item in (await two_client.list(Endpoint, "t")).items]
            assert names == ["after", "before"]
            await two.stop()

    run(main)
