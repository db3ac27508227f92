"""SPDY/3.1 connections of Kubernetes clients: the streams of one exec session, and the frames of a port-forward.

SPDY's windows are not used: the Kubernetes clients neither keep nor grant them. Back-pressure is that of TCP, for the
whole connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from holdfast.model.pod_session import Channel, SessionArguments
from holdfast.server.request import UpgradedStream
from holdfast.server.session_relay import ClientLink
from holdfast.server.spdy import (
    PING,
    RST_STREAM,
    SYN_STREAM,
    ControlFrame,
    DataFrame,
    SpdyDecoder,
    SpdyEncoder,
    SpdyError,
)

# Time for a client to open the streams of its session. After that, the connection is closed.
SPDY_STREAMS_TIMEOUT_S = 10.0
# Data of one frame that the server sends.
SPDY_SEND_BYTES = 32 * 1024

_STREAM_TYPES = {
    "stdin": Channel.STDIN,
    "stdout": Channel.STDOUT,
    "stderr": Channel.STDERR,
    "error": Channel.ERROR,
    "resize": Channel.RESIZE,
}


class SpdyConnection:
    """Frames on a stream of bytes. Pings are answered here."""

    def __init__(self, stream: UpgradedStream) -> None:
        self._stream = stream
        self._decoder = SpdyDecoder()
        self.encoder = SpdyEncoder()
        self._pings = 0

    async def frames(self) -> AsyncIterator[ControlFrame | DataFrame]:
        """Until the client disconnects. Raises SpdyError."""
        while data := await self._stream.read():
            for frame in self._decoder.feed(data):
                if isinstance(frame, ControlFrame) and frame.kind == PING:
                    if frame.value % 2:  # of the client; even numbers answer ours
                        await self.write(self.encoder.ping(frame.value))
                else:
                    yield frame

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    async def send_data(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        for start in range(0, max(1, len(data)), SPDY_SEND_BYTES):
            last = start + SPDY_SEND_BYTES >= len(data)
            await self.write(self.encoder.data(stream, data[start : start + SPDY_SEND_BYTES], fin=fin and last))

    async def ping(self) -> None:
        self._pings += 2
        await self.write(self.encoder.ping(self._pings))


class SpdyChannels(ClientLink):
    """The streams of one exec or attach session, by their channel."""

    def __init__(self, connection: SpdyConnection, frames: AsyncIterator[ControlFrame | DataFrame]) -> None:
        self._connection, self._frames = connection, frames
        self._channels: dict[int, Channel] = {}
        self._streams: dict[Channel, int] = {}
        self._early: list[DataFrame] = []

    @classmethod
    async def accept(cls, stream: UpgradedStream, arguments: SessionArguments) -> SpdyChannels:
        """Waits until the client has opened every stream that the session needs. Raises TimeoutError, SpdyError."""
        connection = SpdyConnection(stream)
        link = cls(connection, connection.frames())
        wanted = {
            Channel.ERROR: True,
            Channel.STDIN: arguments.stdin,
            Channel.STDOUT: arguments.stdout,
            Channel.STDERR: arguments.stderr,
            Channel.RESIZE: arguments.tty,
        }
        needed = {channel for channel, is_wanted in wanted.items() if is_wanted}
        async with asyncio.timeout(SPDY_STREAMS_TIMEOUT_S):
            while needed - set(link._streams):
                frame = await anext(link._frames, None)
                if frame is None:
                    raise ConnectionResetError("the client disconnected")
                await link._open_or_keep(frame)
        return link

    async def _open_or_keep(self, frame: ControlFrame | DataFrame) -> None:
        if isinstance(frame, DataFrame):
            if len(self._early) >= len(_STREAM_TYPES):
                raise SpdyError("data before the streams of the session are open")
            self._early.append(frame)
        elif frame.kind == SYN_STREAM:
            channel = _STREAM_TYPES.get(frame.headers.get("streamtype", ""))
            if channel is None or channel in self._streams:
                raise SpdyError(f"stream type {frame.headers.get('streamtype', '')[:40]}: unknown, or open already")
            self._streams[channel], self._channels[frame.stream] = frame.stream, channel
            await self._connection.write(self._connection.encoder.syn_reply(frame.stream))

    async def receive(self) -> tuple[int, bytes] | None:
        while True:
            frame = self._early.pop(0) if self._early else await anext(self._frames, None)
            if frame is None:
                return None
            if isinstance(frame, ControlFrame):
                if frame.kind == RST_STREAM and self._channels.get(frame.stream) == Channel.STDIN:
                    return Channel.CLOSE, bytes((Channel.STDIN,))
                continue
            channel = self._channels.get(frame.stream)
            if channel is None:
                continue
            if frame.fin and not frame.data:
                if channel == Channel.STDIN:
                    return Channel.CLOSE, bytes((Channel.STDIN,))
                continue
            if frame.fin:
                self._early.insert(0, DataFrame(frame.stream, b"", fin=True))
            return channel, frame.data

    async def send(self, channel: int, data: bytes) -> None:
        stream = self._streams.get(Channel(channel))
        if stream is not None and data:
            await self._connection.send_data(stream, data)

    async def ping(self) -> None:
        await self._connection.ping()

    async def finish(self, outcome: bytes) -> None:
        for channel in (Channel.STDOUT, Channel.STDERR):
            if channel in self._streams:
                await self._connection.send_data(self._streams[channel], b"", fin=True)
        if Channel.ERROR in self._streams:
            await self._connection.send_data(self._streams[Channel.ERROR], outcome, fin=True)
        await self._connection.write(self._connection.encoder.goaway(max(self._channels, default=0)))
