"""The notifier on a real store, with a real HTTP receiver in a thread: counts stay right under many deliveries."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.cell.cell import GLOBAL, Cell
from holdfast.cell.notifier import Notifier
from holdfast.foundation.ports import SystemPorts
from holdfast.model.meta import ObjectMeta
from holdfast.model.notification import (
    RECEIVERS_MAX,
    Notification,
    NotificationReceiver,
    NotificationReceiverSpec,
    NotificationSpec,
    ReceiverSecret,
    Severity,
)
from holdfast.model.principal import OPERATORS, from_identity
from holdfast.model.secret import Secret
from holdfast.model.tenant import Tenant, TenantSpec
from holdfast.model.times import micro_text
from holdfast.model.writes import Create
from holdfast.store.memory import MemoryStore

MESSAGES = 24


class _Receiver(http.server.ThreadingHTTPServer):
    """Refuses the third request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.requests = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, _Receiver)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests += 1
        refused = server.requests == 3
        if not refused:
            server.bodies.append(body)
        self.send_response(503 if refused else 200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def receiver() -> Iterator[_Receiver]:
    server = _Receiver()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def hook(name: str, port: int) -> NotificationReceiver:
    spec = NotificationReceiverSpec(
        secret=ReceiverSecret("ops", "hook"),
        url=f"http://127.0.0.1:{port}/",
        allow_loopback=True,
        min_severity=Severity.INFO,
    )
    return NotificationReceiver(ObjectMeta(name=name), spec)


def message(number: int, *receivers: str) -> Notification:
    at = micro_text(1_800_000_000.0 + number)
    spec = NotificationSpec(type="Test", at=at, key=f"test/{number}", receivers=receivers, message=f"message {number}")
    return Notification(ObjectMeta(name=f"m{number}"), spec)


async def test_counts_are_right_after_many_deliveries_to_two_receivers_and_a_refusal(receiver: _Receiver) -> None:
    ports = SystemPorts()
    cell = Cell(GLOBAL, MemoryStore(), MemoryStore(1000), ports, identity="global-0")
    await cell.start()
    operator = cell.client(from_identity("ada", (OPERATORS,), credential="test"))
    port = int(receiver.server_address[1])
    try:
        await operator.commit([Create(Tenant(ObjectMeta(name="ops"), TenantSpec()))])
        secret = Secret(ObjectMeta(name="hook", namespace="ops"), data={"signingKey": b"0123456789abcdef"})
        await operator.commit([Create(secret), Create(hook("a", port)), Create(hook("b", port))])
        notifier = Notifier(cell, "fleet-1", tuple)
        await notifier.start()
        task = asyncio.create_task(notifier.run())
        await operator.commit([Create(message(number, "a", "b")) for number in range(MESSAGES)])

        async def status(name: str) -> Any:
            found = await operator.get(NotificationReceiver, name)
            assert found is not None
            return found.status

        async with asyncio.timeout(90):
            while True:
                a, b = await status("a"), await status("b")
                if (a.pending, b.pending, a.delivered, b.delivered) == (0, 0, MESSAGES, MESSAGES):
                    break
                await asyncio.sleep(0.2)
        assert (a.dropped, b.dropped, a.failures, b.failures) == (0, 0, 0, 0)
        assert len({body["data"]["id"] for body in receiver.bodies}) == MESSAGES
        assert len(receiver.bodies) == 2 * MESSAGES
        assert {body["data"]["fleet"] for body in receiver.bodies} == {"fleet-1"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        await cell.stop()


async def test_receiver_beyond_the_limit_says_so_and_a_missing_secret_is_named(receiver: _Receiver) -> None:
    cell = Cell(GLOBAL, MemoryStore(), MemoryStore(1000), SystemPorts(), identity="global-0")
    await cell.start()
    operator = cell.client(from_identity("ada", (OPERATORS,), credential="test"))
    try:
        port = int(receiver.server_address[1])
        names = [f"r{number:02}" for number in range(RECEIVERS_MAX + 1)]
        await operator.commit([Create(hook(name, port)) for name in names])
        await operator.commit([Create(message(0, names[0]))])
        notifier = Notifier(cell, "fleet-1", tuple)
        task = asyncio.create_task(notifier.run())

        async def problem(name: str) -> str:
            found = await operator.get(NotificationReceiver, name)
            return found.status.problem if found is not None else ""

        async with asyncio.timeout(30):
            while "more than 16" not in await problem(names[-1]) or "not found" not in await problem(names[0]):
                await asyncio.sleep(0.1)
        assert await problem(names[1]) == ""
        assert not receiver.requests
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        await cell.stop()
