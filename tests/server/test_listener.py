"""The listener on real sockets: TLS, certificates, slow and half-open clients, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.gate.audit import read_records
from holdfast.identity.certificates import issue, make_ca
from holdfast.model.principal import OPERATORS, TENANT_PREFIX
from holdfast.server import listener
from holdfast.server.listener import MAX_HEADER_BYTES, Listener, listen
from holdfast.server.tls import TlsFiles

from .conftest import V1, WORKLOADS, Api, World, workload

HOST = "127.0.0.1"


@pytest.fixture
async def plain(world: World) -> AsyncIterator[Listener]:
    server_listener = await listen(world.app, HOST, 0)
    yield server_listener
    await server_listener.stop()


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int, context: ssl.SSLContext | None = None) -> Client:
        return cls(*await asyncio.open_connection(HOST, port, ssl=context))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, within_s: float = 5.0) -> tuple[int, Any]:
        async with asyncio.timeout(within_s):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            size = next(
                int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
            )
            return int(head.split()[1]), json.loads(await self.reader.readexactly(size) or b"null")

    async def closed(self, within_s: float = 5.0) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(within_s):
            return await self.reader.read()

    def close(self) -> None:
        self.writer.close()


async def test_slow_headers_are_answered_with_408(plain: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.listener.HEADER_TIMEOUT_S", 0.2)
    silent, half = await Client.to(plain.port), await Client.to(plain.port)
    await half.send(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    for client in (silent, half):
        response = await client.closed()
        assert b"408" in response.split(b"\r\n")[0] and b'"kind":"Status"' in response
        client.close()


async def test_oversized_headers_are_answered_with_431(plain: Listener) -> None:
    client = await Client.to(plain.port)
    await client.send(b"GET /version HTTP/1.1\r\nHost: x\r\n")

    async def pour() -> None:
        for _ in range(2000):
            await client.send(b"X-Long: " + b"y" * 10_000 + b"\r\n")

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(pour(), 10)
    client.close()
    endless = await Client.to(plain.port)
    await endless.send(b"GET /version HTTP/1.1\r\nX-Long: ")
    await asyncio.sleep(0.05)
    await endless.send(b"y" * (MAX_HEADER_BYTES + 1000))
    response = await endless.closed()
    assert b"431" in response.split(b"\r\n")[0]
    endless.close()


async def test_large_body_is_read_completely(plain: Listener, world: World) -> None:
    token = world.tokens.issue("t", "ada", (OPERATORS,))
    client = await Client.to(plain.port)
    for size in (100, 70_000, 1_000_000, 2_900_000):
        body = b'{"metadata":{"name":"x","annotations":{"a":"' + b"y" * size + b'"}}}'
        head = f"POST {WORKLOADS}?dryRun=All HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        await client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert (await client.answer())[0] == 422
    client.close()


async def test_non_http_input_is_answered_with_400_status(plain: Listener) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00",
        b"nonsense\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
    ):
        client = await Client.to(plain.port)
        await client.send(data)
        response = await client.closed()
        assert response.startswith(b"HTTP/1.1 400") and b'"kind":"Status"' in response, data
        client.close()


async def test_malformed_path_is_refused_and_recorded_as_it_was_sent(plain: Listener, world: World) -> None:
    """Over a socket, paths are decoded once, absolute targets are accepted, and nothing is resolved."""
    token = world.tokens.issue("t", "tim", (f"{TENANT_PREFIX}shop",))
    own, theirs = f"{V1}/namespaces/shop", f"{V1}/namespaces/other/workloads"
    sent = (
        f"{own}%2f..%2fother/workloads",
        f"{own}/%2e%2e/other/workloads",
        f"{own}/%2E./other/workloads",
        f"{own}%252f..%252fother/workloads",
        f"{own}/workloads%2Fweb",
        f"{own}/workloads/web%2fstatus",
        f"{own}/..%5cother/workloads",
        f"{theirs}/%00",
        f"/.{theirs}",
        f"http://x/{own}/../other/workloads",
    )
    for target in sent:
        client = await Client.to(plain.port)
        await client.send(f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        code, answer = await client.answer()
        assert (code, answer["reason"]) == (400, "BadRequest"), target
        client.close()
    records = [record for _, record in await read_records(world.store) if record.get("reason") == "MalformedPath"]
    assert [record["count"] for record in records] == [1] * len(sent)
    assert [record["message"] for record in records[:-1]] == list(sent[:-1])


async def test_slow_body_is_answered_with_408_and_closed(
    plain: Listener, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.request.BODY_TIMEOUT_S", 0.2)
    token = world.tokens.issue("t", "ada", (OPERATORS,))
    client = await Client.to(plain.port)
    head = f"POST {WORKLOADS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 100\r\n\r\n"
    await client.send(head.encode() + b'{"metadata"')
    code, response = await client.answer()
    assert (code, response["kind"]) == (408, "Status")
    assert await client.closed() == b"", "the connection is closed"
    client.close()


async def test_body_announced_too_large_is_refused_before_transfer(plain: Listener, world: World) -> None:
    token = world.tokens.issue("t", "ada", (OPERATORS,))
    client = await Client.to(plain.port)
    head = f"POST {WORKLOADS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 99999999\r\n\r\n"
    await client.send(head.encode())
    assert (await client.answer())[0] == 413
    client.close()
    stranger = await Client.to(plain.port)
    await stranger.send(f"POST {WORKLOADS} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode())
    assert (await stranger.answer())[0] == 401, "the body of an unauthenticated client is not awaited"
    stranger.close()


async def test_client_that_stops_in_the_middle_of_a_refused_body_is_disconnected(plain: Listener) -> None:
    client = await Client.to(plain.port)
    await client.send(b"POST /join/v1 HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 100_000)
    assert (await client.answer())[0] == 413
    with contextlib.suppress(ConnectionResetError):
        assert await client.closed(listener.LINGER_S + 5) == b""
    assert not plain._state.connections


async def test_client_that_sends_its_whole_body_first_can_read_the_refusal(plain: Listener) -> None:
    client = await Client.to(plain.port)
    head = b"POST /join/v1 HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n"
    async with asyncio.timeout(10):
        await client.send(head)
        for _ in range(80):
            await client.send(b"x" * 100_000)
    assert (await client.answer())[0] == 413
    client.close()


async def test_connection_is_reused_for_next_request(plain: Listener) -> None:
    client = await Client.to(plain.port)
    for _ in range(3):
        await client.send(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer())[1]["minor"] == "32"
    client.close()


async def test_responses_are_single_writes_in_request_order(plain: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    made = listener.Connection.connection_made

    def listening(self: listener.Connection, transport: asyncio.Transport) -> None:
        made(self, transport)
        send = transport.write

        def write(data: bytes) -> None:
            written.append(bytes(data))
            send(data)

        monkeypatch.setattr(self, "transport", _Overheard(transport, write))

    monkeypatch.setattr(listener.Connection, "connection_made", listening)
    client = await Client.to(plain.port)
    await client.send(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [(await client.answer())[0], (await client.answer())[0]] == [200, 404]
    await client.send(b"HEAD /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = (await client.closed()).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert body == b""
    assert len(written) == 3, "three responses, three writes"
    client.close()


class _Overheard:
    """A transport that records writes."""

    def __init__(self, transport: asyncio.Transport, write: Callable[[bytes], None]) -> None:
        self._transport = transport
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_watcher_that_stops_reading_is_disconnected(
    plain: Listener, world: World, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open watchers: the socket buffers fill, the stream is ended, and no resources are left."""
    monkeypatch.setattr("holdfast.server.response_sending.SEND_STALL_TIMEOUT_S", 0.3)
    token = world.tokens.issue("t", "ada", (OPERATORS,))
    clients = [await Client.to(plain.port) for _ in range(5)]
    for client in clients:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        head = f"GET {WORKLOADS}?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        await client.send(head.encode())
    async with asyncio.timeout(5):
        while world.app.flow._all_watches < 5:
            await asyncio.sleep(0.01)
    item = workload()
    item["metadata"]["annotations"] = {"big": "x" * 200_000}
    await api.post(WORKLOADS, item)
    async with asyncio.timeout(20):
        n = 0
        while world.app.flow._all_watches:
            n += 1
            await api.merge(f"{WORKLOADS}/web", {"spec": {"replicas": n % 50}})
            await asyncio.sleep(0.02)
    assert not world.objects._durable.caches["Workload"].streams._by_namespace
    for client in clients:
        client.close()


async def test_client_certificate_of_other_ca_fails_handshake(world: World, tmp_path: Path) -> None:
    now_s = world.ports.clock.now()
    ca = make_ca(tmp_path / "pki", now_s=now_s)
    server = issue(tmp_path / "pki", "server", "cell", now_s=now_s, ips=(HOST,), server=True)
    ada = issue(tmp_path / "pki", "ada", "ada", (OPERATORS,), now_s=now_s)
    make_ca(tmp_path / "other", now_s=now_s)
    stranger = issue(tmp_path / "other", "ada", "ada", (OPERATORS,), now_s=now_s)
    server_listener = await listen(world.app, HOST, 0, TlsFiles(server.certificate, server.key, ca.certificate))

    def context(issued: Any) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(ca.certificate))
        if issued is not None:
            made.load_cert_chain(issued.certificate, issued.key)
        return made

    request = f"GET {WORKLOADS} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    for issued, expected in ((ada, 200), (None, 401)):
        client = await Client.to(server_listener.port, context(issued))
        await client.send(request)
        assert (await client.answer())[0] == expected
        client.close()

    async def intrude() -> None:
        client = await Client.to(server_listener.port, context(stranger))
        await client.send(request)
        await client.answer()

    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await intrude()
    await server_listener.stop()


async def test_certificate_outside_its_dates_is_told_why_and_recorded_once(world: World, tmp_path: Path) -> None:
    """TLS would end the handshake: the holder would not learn why, and no record would say who it was."""
    now_s, day_s = world.ports.clock.now(), 86_400.0
    ca = make_ca(tmp_path / "pki", now_s=now_s - 100 * day_s)
    server = issue(tmp_path / "pki", "server", "cell", now_s=now_s, ips=(HOST,), server=True)
    server_listener = await listen(world.app, HOST, 0, TlsFiles(server.certificate, server.key, ca.certificate))
    for start_s, words, why in (
        (now_s - 2 * day_s, "has expired", "CertificateExpired"),
        (now_s + day_s, "is not valid yet", "CertificateNotYetValid"),
    ):
        ada = issue(tmp_path / "pki", why, "ada", (OPERATORS,), now_s=start_s, days=1)
        context = ssl.create_default_context(cafile=str(ca.certificate))
        context.load_cert_chain(ada.certificate, ada.key)
        client = await Client.to(server_listener.port, context)
        await client.send(f"GET {WORKLOADS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        code, answer = await client.answer()
        assert (code, answer["reason"]) == (401, "Unauthorized")
        assert f"certificate of ada: it {words}" in answer["message"]
        client.close()
        (record,) = [r for _, r in await read_records(world.store) if r.get("reason") == why]
        assert (record["principal"], record["resource"], record["count"]) == ("ada", "certificates", 1)
    await server_listener.stop()


async def test_listener_stop_ends_streams_cleanly(world: World, api: Api) -> None:
    server_listener = await listen(world.app, HOST, 0)
    token = world.tokens.issue("t", "ada", (OPERATORS,))
    client = await Client.to(server_listener.port)
    head = f"GET {WORKLOADS}?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    await client.send(head.encode())
    await client.reader.readuntil(b"\r\n\r\n")
    await server_listener.stop()
    assert (await client.closed()).endswith(b"0\r\n\r\n"), "the stream ended cleanly"
    client.close()
    with pytest.raises(ConnectionError):
        await Client.to(server_listener.port)
