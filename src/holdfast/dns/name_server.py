"""The process `holdfast dns`: sockets, limits, signals."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import structlog

from holdfast.client.holdfast_async import AsyncHoldfast
from holdfast.dns.address_table import AddressTable
from holdfast.dns.answers import NameAnswer, resolve
from holdfast.dns.endpoint_feed import EndpointFeed
from holdfast.dns.messages import QUERY_BYTES_MAX, Zone
from holdfast.dns.names import ServiceName
from holdfast.foundation.exit_codes import CommandError
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait

# TCP connections at a time. Further ones are closed at once; clients fall back to UDP or retry.
TCP_CONNECTIONS_MAX = 64
# Time a TCP client may take for its next query.
TCP_IDLE_S = 5.0
# Queries over one TCP connection. Then the connection is closed, and the client opens another.
TCP_QUERIES_MAX = 100
SUMMARY_EVERY_S = 60.0

_log = structlog.get_logger()


class NameServer:
    """Answers queries for one zone from the addresses that the feed keeps current."""

    def __init__(self, client: AsyncHoldfast, region: str, zone: str, ports: Ports) -> None:
        self._ports = ports
        self._table = AddressTable(region, ports.clock)
        self.feed = EndpointFeed(client, region, self._table, ports)
        self._zone = Zone(zone, self._resolve)
        self._turn = 0
        self._connections = 0
        self.answered: Counter[str] = Counter()
        """Responses by code since the start."""

    def _resolve(self, name: ServiceName) -> NameAnswer:
        self._turn += 1
        return resolve(self._table, name, self._turn)

    def answer(self, wire: bytes, *, udp: bool) -> bytes:
        if len(wire) > QUERY_BYTES_MAX:
            self.answered["MALFORMED"] += 1
            return b""
        response, code = self._zone.respond(wire, udp=udp)
        self.answered[code] += 1
        return response

    async def listen(self, host: str, port: int) -> tuple[asyncio.DatagramTransport, asyncio.Server]:
        """Opens the UDP and the TCP socket. Port 0: any port, the same for both."""
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve_connection, host, port, limit=QUERY_BYTES_MAX)
        chosen = server.sockets[0].getsockname()[1]
        try:
            datagrams, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(self), local_addr=(host, chosen), reuse_port=False
            )
        except OSError:
            server.close()
            raise
        return datagrams, server

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= TCP_CONNECTIONS_MAX:
            writer.close()
            return
        self._connections += 1
        try:
            for _ in range(TCP_QUERIES_MAX):
                async with asyncio.timeout(TCP_IDLE_S):
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    if size > QUERY_BYTES_MAX:
                        return
                    response = self.answer(await reader.readexactly(size), udp=False)
                    if not response:
                        return
                    writer.write(len(response).to_bytes(2, "big") + response)
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._connections -= 1
            writer.close()

    async def log_summaries(self) -> None:
        """What was answered in the last minute, if anything."""
        before: Counter[str] = Counter()
        while True:
            await self._ports.clock.sleep(SUMMARY_EVERY_S)
            if self.answered != before:
                _log.info("queries_answered", **{code: n for code, n in (self.answered - before).items()})
                before = Counter(self.answered)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        response = self._server.answer(data, udp=True)
        if response and self._transport is not None:
            self._transport.sendto(response, addr)


async def run_name_server(client: AsyncHoldfast, *, region: str, zone: str, host: str, port: int, ports: Ports) -> None:
    """Serves until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = NameServer(client, region, zone, ports)
    try:
        datagrams, streams = await server.listen(host, port)
    except OSError as error:
        why = error.strerror or str(error)
        raise CommandError(
            f"dns: cannot listen on {host}:{port} ({why})", next_step="choose another --listen"
        ) from None
    tasks = [asyncio.create_task(server.feed.run()), asyncio.create_task(server.log_summaries())]
    stop = asyncio.create_task(stopped.wait())
    _log.info("name_server_started", zone=zone, region=region, host=host, port=port)
    try:
        done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a task that ended by itself has failed
    finally:
        datagrams.close()
        streams.close()
        stop.cancel()
        await cancel_and_wait(*tasks)
        await client.close()
    _log.info("name_server_stopped")
