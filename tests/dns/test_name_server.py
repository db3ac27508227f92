"""The sockets: UDP and TCP on loopback, and their bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import dns.asyncquery
import dns.message
import pytest
from tests.dns.test_answers import endpoint

from holdfast.client.connecting import connect_async
from holdfast.dns.name_server import TCP_CONNECTIONS_MAX, NameServer
from holdfast.foundation.ports import SystemPorts

NAME = "web.shop.holdfast.internal"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = NameServer(connect_async(url="https://127.0.0.1:1"), "us", "holdfast.internal", SystemPorts())
    server.feed.table.put(endpoint("us", "10.2.0.1"))
    datagrams, streams = await server.listen("127.0.0.1", 0)
    yield streams.sockets[0].getsockname()[1]
    datagrams.close()
    streams.close()


async def test_query_is_answered_over_udp_and_tcp(port: int) -> None:
    query = dns.message.make_query(NAME, "A")
    for response in (
        await dns.asyncquery.udp(query, "127.0.0.1", port=port, timeout=10),
        await dns.asyncquery.tcp(query, "127.0.0.1", port=port, timeout=10),
    ):
        assert [item.to_text() for item in response.answer[0]] == ["10.2.0.1"]


async def test_idle_connections_beyond_the_limit_are_closed_and_udp_answers(port: int) -> None:
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(TCP_CONNECTIONS_MAX + 1)]
    try:
        done, _ = await asyncio.wait(
            [asyncio.create_task(reader.read(1)) for reader, _ in opened],
            timeout=3,
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert [task.result() for task in done] == [b""]
        response = await dns.asyncquery.udp(dns.message.make_query(NAME, "A"), "127.0.0.1", port=port, timeout=10)
        assert response.answer
    finally:
        for _, writer in opened:
            writer.close()


async def test_too_long_message_closes_the_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\xff\xff" + bytes(600))
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
