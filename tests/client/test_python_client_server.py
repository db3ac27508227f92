"""The Python client, sync and async, against the real server of a global cell over TLS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from holdfast.client import (
    AsyncHoldfast,
    BadRequest,
    Conflict,
    Forbidden,
    Holdfast,
    Invalid,
    NotFound,
    Unauthorized,
    WaitTimedOut,
    connect,
    connect_async,
)
from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.certificates import issue, make_ca
from holdfast.identity.tokens import TokenFile
from holdfast.model.meta import ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.tenant import Tenant
from holdfast.server.app import Application
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects


class RunningCell:
    """A global cell behind TLS, and clients of it."""

    def __init__(self, folder: Path) -> None:
        make_ca(folder, now_s=time.time())
        issue(folder, "server", "server", now_s=time.time(), server=True, ips=("127.0.0.1",))
        ports = SystemPorts()
        self.store = MemoryStore()
        self._objects = Objects(self.store, MemoryStore())
        self._tokens = TokenFile(folder / "tokens.json")
        gate = Gate("global", self._objects, ports)
        authenticator = Authenticator("global", ports, tokens=self._tokens)
        self._app = Application("global", self._objects, gate, authenticator, ports)
        config = uvicorn.Config(
            self._app,
            host="127.0.0.1",
            port=0,
            log_level="warning",
            lifespan="off",
            ssl_certfile=str(folder / "server.crt"),
            ssl_keyfile=str(folder / "server.key"),
        )
        self._server = uvicorn.Server(config)
        self._ca = folder / "ca.crt"

    async def start(self) -> None:
        await self._objects.start()
        self._task = asyncio.create_task(self._server.serve())
        async with asyncio.timeout(10):
            while not self._server.started:
                await asyncio.sleep(0.01)
        self._url = f"https://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        await self._app.drain()
        self._server.should_exit = True
        await self._task
        await self._objects.close()

    def client(self, group: str = "holdfast:operators") -> Holdfast:
        return connect(url=self._url, token=self._token(group), ca=self._ca)

    def client_async(self, group: str = "holdfast:operators") -> AsyncHoldfast:
        return connect_async(url=self._url, token=self._token(group), ca=self._ca)

    def _token(self, group: str) -> str:
        return self._tokens.issue(f"{group}-{time.monotonic_ns()}", "someone", (group,)) if group else "wrong"

    async def forget_history(self) -> None:
        """Compacts the store and drops the recent changes in memory, as a restart would."""
        await self.store.compact(self.store.head)
        self._objects = self._app.objects = Objects(self.store, MemoryStore())
        await self._objects.start()


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[RunningCell]:
    running = RunningCell(tmp_path)
    await running.start()
    yield running
    await running.stop()


def tenant(name: str, **labels: str) -> Tenant:
    return Tenant(ObjectMeta(name=name, labels=labels))


def priority(name: str) -> PriorityClass:
    return PriorityClass(ObjectMeta(name=name), PriorityClassSpec(priority=5))


async def test_objects_are_applied_patched_listed_and_deleted(cell: RunningCell) -> None:
    def use() -> None:
        with cell.client() as client:
            dry = client.apply(tenant("acme"), dry_run=True)
            assert dry.metadata.name == "acme" and client.list(Tenant) == ()
            made = client.apply(tenant("acme", team="a"))
            assert made.uid and client.get(Tenant, "acme") == made
            again = client.apply(made)
            assert again.uid == made.uid, "an object that was read can be applied"
            client.apply({"apiVersion": "holdfast.dev/v1", "kind": "Tenant", "metadata": {"name": "other"}, "spec": {}})
            assert [item.metadata.name for item in client.list(Tenant)] == ["acme", "other"]
            assert [item.metadata.name for item in client.list(Tenant, labels={"team": "a"})] == ["acme"]
            changed = client.patch(Tenant, "acme", changes={"metadata": {"labels": {"team": None, "city": "x"}}})
            assert changed.metadata.labels == {"city": "x"}
            with pytest.raises(
                WaitTimedOut, match=r"tenant other: not deleted within 0.3 s \(finalizers left: .*repair"
            ):
                client.delete(Tenant, "other", wait_s=0.3)  # no garbage collector runs in this test
            client.apply(priority("low"))
            client.delete(PriorityClass, "low", wait_s=10)
            with pytest.raises(NotFound, match="priorityclass low: not found; next: holdfast get priorityclasses"):
                client.get(PriorityClass, "low")

    await asyncio.to_thread(use)


async def test_field_of_another_manager_is_a_conflict_until_forced(cell: RunningCell) -> None:
    async with cell.client_async() as client:
        await client.apply(tenant("acme"))
        quota = Quota(ObjectMeta(name="quota", namespace="acme"), QuotaSpec(hard={"cpu": "8"}))
        more = Quota(quota.metadata, QuotaSpec(hard={"cpu": "9"}))
        await client.apply(quota, manager="ci")
        with pytest.raises(Conflict, match=r"quota.*ci.*; next: .*force"):
            await client.apply(more)
        assert (await client.apply(more, force=True)).spec.hard == {"cpu": "9"}


async def test_refusals_of_the_server_keep_their_class_and_causes(cell: RunningCell) -> None:
    async with cell.client_async() as client, cell.client_async("holdfast:tenant:acme") as user:
        await client.apply(tenant("acme"))
        wrong = {
            "apiVersion": "holdfast.dev/v1",
            "kind": "Quota",
            "metadata": {"name": "quota", "namespace": "acme"},
            "spec": {"hard": {"cpu": "-1"}},
        }
        with pytest.raises((Invalid, BadRequest)) as invalid:
            await client.apply(wrong)
        assert "quota" in invalid.value.message and invalid.value.next_step
        with pytest.raises((Invalid, BadRequest), match="noSuchField"):
            await client.apply({**wrong, "spec": {"noSuchField": 1}})
        with pytest.raises(Forbidden, match="next: "):
            await user.apply(tenant("mine"))
        async with cell.client_async("") as stranger:
            with pytest.raises(Unauthorized):
                await stranger.get(Tenant, "acme")


async def test_watch_reports_what_happened_behind_a_compaction(cell: RunningCell) -> None:
    async with cell.client_async() as client:
        await client.apply(priority("a"))
        with cell.client() as other:
            changes = other.watch(PriorityClass, timeout_s=20)
            first = await asyncio.to_thread(next, changes)
            await client.delete(PriorityClass, "a", wait_s=10)
            await client.apply(priority("b"))
            await cell.forget_history()
            found = [await asyncio.to_thread(next, changes) for _ in range(2)]
            await client.patch(PriorityClass, "b", changes={"metadata": {"labels": {"x": "y"}}})
            found.append(await asyncio.to_thread(next, changes))
            changes.close()
    seen = [f"{change.type.value} {change.object.metadata.name}" for change in (first, *found)]
    assert seen == ["added a", "deleted a", "added b", "changed b"]


async def test_async_watch_reports_what_happened_behind_a_compaction(cell: RunningCell) -> None:
    async with cell.client_async() as client, asyncio.timeout(20):
        await client.apply(priority("a"))
        changes = client.watch(PriorityClass)
        seen = [await anext(changes)]
        await client.delete(PriorityClass, "a", wait_s=10)
        await client.apply(priority("b"))
        await cell.forget_history()
        seen += [await anext(changes), await anext(changes)]
        await changes.aclose()
    names = [f"{change.type.value} {change.object.metadata.name}" for change in seen]
    assert names == ["added a", "deleted a", "added b"]


async def test_wait_sees_a_change_and_says_what_it_found(cell: RunningCell) -> None:
    async with cell.client_async() as client:
        waiting = asyncio.create_task(
            client.wait(Tenant, "late", until=lambda item: item.metadata.labels.get("x") == "y", timeout_s=20)
        )
        await asyncio.sleep(0.3)
        await client.apply(tenant("late"))
        await client.patch(Tenant, "late", changes={"metadata": {"labels": {"x": "y"}}})
        assert (await waiting).metadata.labels == {"x": "y"}
        with pytest.raises(WaitTimedOut, match=r"tenant late: condition Ready=True not met within 0.5 s"):
            await client.wait(Tenant, "late", condition="Ready", timeout_s=0.5)
