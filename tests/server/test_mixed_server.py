"""One loopback port with TLS for the API and plain HTTP for the console, on real sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.expected import present

from holdfast.identity.certificates import issue, make_ca
from holdfast.server import listener
from holdfast.server.console_assets import ConsoleAssets
from holdfast.server.listener import Listener, listen
from holdfast.server.mixed_server import is_loopback
from holdfast.server.tls import TlsFiles

from .conftest import World

HOST = "127.0.0.1"


@pytest.fixture
async def mixed(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT_S", 0.5)
    make_ca(tmp_path, now_s=world.ports.clock.now())
    issued = issue(tmp_path, "cell", "cell", now_s=world.ports.clock.now(), server=True, client=False, ips=(HOST,))
    files = TlsFiles(issued.certificate, issued.key, issued.ca)
    running = await listen(world.app, HOST, 0, files, plain_console=True)
    yield running
    await running.stop()


async def request(port: int, path: str, *, tls: bool = False, host: str = "") -> tuple[int, str]:
    context = ssl.create_default_context() if tls else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host or f'{HOST}:{port}'}\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(5):
        answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer


async def test_console_is_served_plain_and_over_tls_on_one_port(mixed: Listener) -> None:
    for tls in (False, True):
        code, answer = await request(mixed.port, "/", tls=tls)
        assert (code, "location: /console" in answer) == (302, True)


async def test_documentation_is_served_plain_and_over_tls_on_one_port(
    mixed: Listener, world: World, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text("all versions")
    present(world.app.console).documentation = ConsoleAssets(tmp_path)
    for tls in (False, True):
        code, answer = await request(mixed.port, "/docs", tls=tls)
        assert (code, "location: /docs/" in answer) == (302, True)
        assert (await request(mixed.port, "/docs/index.html", tls=tls))[1].endswith("all versions")


async def test_api_is_served_over_tls_only(mixed: Listener) -> None:
    for path in ("/version", "/apis", "/metrics", "/livez", "/join/v1", "/consolex", "/docsx"):
        code, answer = await request(mixed.port, path)
        assert code == 400 and "https" in answer, path
    assert (await request(mixed.port, "/version", tls=True))[0] == 200


async def test_plain_sign_in_needs_a_name_of_this_machine(mixed: Listener) -> None:
    path = "/console/api/session"
    assert (await request(mixed.port, path))[0] == 401
    body = b'{"code":"x"}'
    reader, writer = await asyncio.open_connection(HOST, mixed.port)
    head = f"POST {path} HTTP/1.1\r\nHost: evil.example:{mixed.port}\r\nX-Holdfast-Console: none\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    async with asyncio.timeout(5):
        answer = (await reader.read()).decode()
    assert answer.split()[1] == "403" and "this machine only" in answer


async def test_client_that_sends_nothing_is_disconnected(mixed: Listener) -> None:
    reader, writer = await asyncio.open_connection(HOST, mixed.port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_client_that_leaves_at_once_and_broken_handshake_do_no_harm(mixed: Listener) -> None:
    for sent in (b"", b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x00\xff"):
        _, writer = await asyncio.open_connection(HOST, mixed.port)
        writer.write(sent)
        writer.close()
    await asyncio.sleep(0.8)
    assert (await request(mixed.port, "/version", tls=True))[0] == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.1.2.3", False), ("cell", False)],
)
def test_only_loopback_addresses_are_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
