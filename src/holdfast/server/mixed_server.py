"""TLS and plain HTTP on one loopback port: the API speaks TLS, and the console can be opened without a certificate
warning.

The first byte of a connection tells them apart; it is looked at, not consumed. A plain connection serves the console
only (`holdfast.console_only`), and only the loopback interface listens this way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable

# First byte of a TLS handshake record.
_TLS_HANDSHAKE = 0x16
# Connections that have not sent their first byte. A further one is closed.
UNDECIDED_MAX = 1_000
# Pause after a failed accept, for example without free file descriptors.
ACCEPT_PAUSE_S = 0.1

Factory = Callable[[], asyncio.Protocol]


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class MixedServer:
    """Like `asyncio.Server`, with the part of its interface that `Listener` uses."""

    def __init__(
        self, listening: socket.socket, context: ssl.SSLContext, secure: Factory, plain: Factory, timeout_s: float
    ) -> None:
        self.sockets = (listening,)
        self._context = context
        self._secure = secure
        self._plain = plain
        self._timeout_s = timeout_s
        self._undecided: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.ensure_future(self._accept(listening))

    def close(self) -> None:
        self._accepting.cancel()
        for task in list(self._undecided):
            task.cancel()
        self.sockets[0].close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._undecided) >= UNDECIDED_MAX:
                connection.close()
                continue
            task = asyncio.ensure_future(self._route(connection))
            self._undecided.add(task)
            task.add_done_callback(self._undecided.discard)

    async def _route(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        taken = False
        try:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._timeout_s):
                first = await _first_byte(connection)
            if first is None:
                return
            taken = True
            if first == _TLS_HANDSHAKE:
                await loop.connect_accepted_socket(
                    self._secure, connection, ssl=self._context, ssl_handshake_timeout=self._timeout_s
                )
            else:
                await loop.connect_accepted_socket(self._plain, connection)
        except (OSError, TimeoutError):
            return  # a failed handshake or a client that sends nothing: nobody to answer
        finally:
            if not taken:
                connection.close()


async def _first_byte(connection: socket.socket) -> int | None:
    """The first byte, left in the socket; None if the client closed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection.fileno())
    found = connection.recv(1, socket.MSG_PEEK)
    return found[0] if found else None
