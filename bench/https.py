"""Minimal HTTPS client for benchmarks: persistent connections and prepared requests.

A full HTTP client would need more CPU time than the measured server.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

_HEAD_END = b"\r\n\r\n"


class Refused(Exception):
    """A response with an error status."""


def request(url: str, method: str, path: str, body: bytes = b"", *, content: str = "application/json") -> bytes:
    """The bytes of one request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nUser-Agent: bench\r\n"
    if body:
        head += f"Content-Type: {content}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Connection(asyncio.Protocol):
    """One persistent connection, with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._need = 0
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._need:
            end = self._buffer.find(_HEAD_END)
            if end < 0:
                return
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._need = end + len(_HEAD_END) + length
        if len(self._buffer) >= self._need and self._answer is not None and not self._answer.done():
            whole, self._buffer = self._buffer[: self._need], self._buffer[self._need :]
            self._need = 0
            self._answer.set_result(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    async def ask(self, message: bytes) -> bytes:
        """Sends a request and returns the body of the response. Raises `Refused` for an error status."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        whole = await self._answer
        head, _, body = whole.partition(_HEAD_END)
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            raise Refused((head.split(b"\r\n", 1)[0] + b" " + body[:400]).decode(errors="replace"))
        return body

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(url: str, context: ssl.SSLContext) -> Connection:
    parts = urlsplit(url)
    _, made = await asyncio.get_running_loop().create_connection(
        Connection, parts.hostname or "", parts.port or 443, ssl=context, server_hostname=parts.hostname
    )
    return made


class Sent(NamedTuple):
    """Latency of each response, and the total time without connecting."""

    took: list[float]
    seconds: float


async def send_all(url: str, context: ssl.SSLContext, messages: Sequence[bytes], clients: int) -> Sent:
    """Sends all requests over `clients` persistent connections."""
    lines = [await connect(url, context) for _ in range(clients)]
    left: Iterator[bytes] = iter(messages)
    took: list[float] = []

    async def drain(line: Connection) -> None:
        for message in left:
            began = time.perf_counter()
            await line.ask(message)
            took.append(time.perf_counter() - began)

    started = time.perf_counter()
    try:
        await asyncio.gather(*(drain(line) for line in lines))
        return Sent(took, time.perf_counter() - started)
    finally:
        for line in lines:
            line.close()
