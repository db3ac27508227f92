"""The bytes of a connection that left HTTP by an upgrade. Bounded in both directions: a full buffer stops the peer."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# Bytes that were received and not read. At the limit the connection is not read, so TCP stops the peer.
RAW_STREAM_BYTES_MAX = 128 * 1024
# Time for the client to read the end of a session. After that, the connection is aborted.
RAW_STREAM_LINGER_S = 5.0


class RawStream:
    def __init__(self, transport: asyncio.Transport, flow: FlowControl, cycle: RequestResponseCycle) -> None:
        self._transport, self._flow, self._cycle = transport, flow, cycle
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._ended = False

    def feed(self, data: bytes) -> None:
        self._buffer += data
        self._arrived.set()
        if len(self._buffer) >= RAW_STREAM_BYTES_MAX:
            self._flow.pause_reading()

    def feed_eof(self) -> None:
        self._ended = True
        self._arrived.set()

    async def read(self) -> bytes:
        """Whatever arrived; empty at the end of the connection."""
        while not self._buffer:
            if self._ended:
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        data = bytes(self._buffer)
        self._buffer.clear()
        if not self._ended:
            self._flow.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Returns when the peer has taken enough for more to be sent. Raises ConnectionError if it is gone."""
        if self._ended or self._transport.is_closing():
            raise ConnectionResetError("the client disconnected")
        self._transport.write(data)
        if self._flow.write_paused:
            await self._flow.drain()
            if self._ended:
                raise ConnectionResetError("the client disconnected")

    def close(self) -> None:
        """Sends what is buffered, then closes. Part of the HTTP exchange, which is complete with it."""
        self._cycle.response_complete = True
        self._cycle.message_event.set()
        if not self._ended:
            self._transport.close()
            asyncio.get_running_loop().call_later(RAW_STREAM_LINGER_S, self._abort)

    def _abort(self) -> None:
        if not self._ended:
            self._transport.abort()
