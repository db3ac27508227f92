"""The application in process: real objects, gate and authentication, called over ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.tokens import TokenFile
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import (
    CONTROLLERS,
    MONITORS,
    NODES,
    OPERATORS,
    REGIONS,
    TENANT_PREFIX,
    VIEWERS,
    controller,
)
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import Region, RegionSpec
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create, Write
from holdfast.server.app import Application
from holdfast.server.console import ConsoleService
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

GROUPS = {
    "ada": (OPERATORS,),
    "tim": (f"{TENANT_PREFIX}shop",),
    "holdfast:controller:workload-status": (CONTROLLERS,),
    "holdfast:controller:assign": (CONTROLLERS,),
    "holdfast:controller:scheduler": (CONTROLLERS,),
    "holdfast:node:west:n1": (NODES,),
    "holdfast:region:near": (REGIONS,),
    "vera": (VIEWERS,),
    "nobody": (),
    "prometheus": (MONITORS,),
}
V1 = "/apis/holdfast.dev/v1"
WORKLOADS = f"{V1}/namespaces/shop/workloads"


class Reply:
    def __init__(self, code: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.code = code
        self.headers = {name.decode(): value.decode() for name, value in headers}
        self.warnings = [value.decode() for name, value in headers if name == b"warning"]
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    """Requests as some user. The certificate is what TLS would have provided."""

    def __init__(self, app: Application, user: str = "ada", headers: Iterable[tuple[str, str]] = ()) -> None:
        self.app = app
        self.user = user
        self.headers = tuple(headers)

    def as_user(self, user: str) -> Api:
        return Api(self.app, user)

    def scope(self, method: str, path: str, headers: Iterable[tuple[str, str]]) -> dict[str, Any]:
        plain, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": plain,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in (*self.headers, *headers)],
        }
        if self.user:
            subject = [(("commonName", self.user),), *((("organizationName", g),) for g in GROUPS[self.user])]
            scope["holdfast.peer_certificate"] = {
                "subject": tuple(subject),
                "serialNumber": "01",
                "notBefore": "Jan  1 00:00:00 2020 GMT",
                "notAfter": "Jan  1 00:00:00 2099 GMT",
            }
        return scope

    async def call(
        self, method: str, path: str, body: Any = None, *, type: str = "application/json", **headers: str
    ) -> Reply:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = [(name.replace("_", "-"), value) for name, value in headers.items()]
        if body is not None and type and "content-type" not in dict(self.headers):
            given.append(("content-type", type))
        if data:
            given.append(("content-length", str(len(data))))
        sent: list[Any] = []
        inbox = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            if inbox:
                return inbox.pop()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(self.scope(method, path, given), receive, send)
        start = sent[0]
        return Reply(start["status"], start["headers"], b"".join(m.get("body", b"") for m in sent[1:]))

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, body: Any, **more: str) -> Reply:
        return await self.call("POST", path, body, **more)

    async def put(self, path: str, body: Any, **more: str) -> Reply:
        return await self.call("PUT", path, body, **more)

    async def delete(self, path: str, body: Any = None, **more: str) -> Reply:
        return await self.call("DELETE", path, body, **more)

    async def merge(self, path: str, body: Any, **more: str) -> Reply:
        return await self.call("PATCH", path, body, type="application/merge-patch+json", **more)

    async def apply(self, path: str, body: Any, manager: str = "tests", force: bool = False) -> Reply:
        joiner = "&" if "?" in path else "?"
        query = f"{joiner}fieldManager={manager}" + ("&force=true" if force else "")
        return await self.call("PATCH", path + query, body, type="application/apply-patch+yaml")

    def watch(self, path: str, **headers: str) -> Watching:
        return Watching(self, path, [(name.replace("_", "-"), value) for name, value in headers.items()])


class Watching:
    """An open watch: `async with api.watch(…) as events: await events.next()`."""

    def __init__(self, api: Api, path: str, headers: list[tuple[str, str]]) -> None:
        self._api, self._path, self._headers = api, path, headers
        self._lines: asyncio.Queue[Any] = asyncio.Queue()
        self._left = asyncio.Event()
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.code = 0
        self.reading = asyncio.Event()
        self.reading.set()
        self._rest = b""

    async def __aenter__(self) -> Watching:
        self._task = asyncio.create_task(self._run())
        await asyncio.wait_for(self.started.wait(), 5)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        await asyncio.wait_for(self._task, 5)

    async def next(self, within_s: float = 5.0) -> Any:
        return await asyncio.wait_for(self._lines.get(), within_s)

    def waiting(self) -> int:
        return self._lines.qsize()

    async def _run(self) -> None:
        async def receive() -> Any:
            await self._left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await self.reading.wait()
            if message["type"] == "http.response.start":
                self.code = message["status"]
                self.started.set()
                return
            *lines, self._rest = (self._rest + message.get("body", b"")).split(b"\n")
            for line in filter(None, lines):  # agent streams contain blank lines
                self._lines.put_nowait(json.loads(line))
            if not message.get("more_body"):
                if self._rest:
                    self._lines.put_nowait(json.loads(self._rest))
                self.ended.set()

        await self._api.app(self._api.scope("GET", self._path, self._headers), receive, send)


class World:
    """One cell: its objects, its gate, and the application."""

    def __init__(self, cell: str, folder: Path) -> None:
        self.cell = cell
        self.ports = SystemPorts()
        self.store = MemoryStore()
        self.objects = Objects(self.store, MemoryStore())
        self.gate = Gate(cell, self.objects, self.ports)
        self.tokens = TokenFile(folder / "tokens.json")
        authenticator = Authenticator(cell, self.ports, tokens=self.tokens)
        console = ConsoleService(self.objects, authenticator, self.ports, folder) if cell == "global" else None
        self.app = Application(cell, self.objects, self.gate, authenticator, self.ports, console=console)

    async def commit(self, *writes: Write, role: str = "assign") -> Any:
        return await LocalClient(self.gate, controller(role, cell=self.cell)).commit(writes)


async def running(cell: str, folder: Path) -> AsyncGenerator[World]:
    world = World(cell, folder)
    await world.objects.start()
    api = Api(world.app)
    if cell == "global":
        for item in (
            Tenant(metadata=ObjectMeta(name="shop")),
            Tenant(metadata=ObjectMeta(name="other")),
            PriorityClass(metadata=ObjectMeta(name="standard"), spec=PriorityClassSpec(tenants=("*",))),
            Region(metadata=ObjectMeta(name="west"), spec=RegionSpec(zones=("west-a",))),
        ):
            await world.gate.commit(_operator(world, api), [Create(item)])
        quota = Quota(metadata=ObjectMeta(name="quota", namespace="shop"), spec=QuotaSpec(hard={"cpu": "1000"}))
        await world.gate.commit(_operator(world, api), [Create(quota)])
    else:
        for name in ("shop", "other"):
            await world.commit(Create(Tenant(metadata=ObjectMeta(name=name))), role="link")
    yield world
    await world.gate.close()
    await world.objects.close()


def _operator(world: World, api: Api) -> Any:
    return world.app.authenticator.from_certificate(api.scope("GET", "/", ())["holdfast.peer_certificate"])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async for made in running("global", tmp_path):
        yield made


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[World]:
    async for made in running("west", tmp_path):
        yield made


@pytest.fixture
def api(world: World) -> Api:
    return Api(world.app)


def workload(name: str = "web", **spec: Any) -> dict[str, Any]:
    template = {"command": ["serve"], "ports": [{"name": "http"}], "resources": {"cpu": "500m"}}
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"replicas": 3, "template": template, **spec},
    }
