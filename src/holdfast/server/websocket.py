"""WebSocket (RFC 6455), the server's side: handshake, frames, and messages on a connection that left HTTP.

Everything is bounded: a message has a size limit, fragments are counted in it, and control frames are answered within
the receiving task, so a flood of pings is slowed by TCP. No extension is offered. Anything malformed ends the
connection.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.model.errors import BadRequest
from holdfast.server.request import Request, UpgradedStream

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
NORMAL_CLOSURE, PROTOCOL_ERROR, TOO_BIG, TRY_AGAIN_LATER = 1000, 1002, 1009, 1013
# Longest reason in a close frame: a control frame carries 125 bytes, two of them the code.
CLOSE_REASON_BYTES_MAX = 123


class WebSocketError(Exception):
    """The peer broke the protocol. `code` is the status of the close frame that tells it so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Frame(msgspec.Struct, frozen=True):
    opcode: int
    payload: bytes
    final: bool = True


def encode_frame(opcode: int, payload: bytes, *, mask: bytes = b"") -> bytes:
    """One complete frame. Only clients mask."""
    size = len(payload)
    flag = 0x80 if mask else 0
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, flag | size)
    elif size < 65536:
        head = struct.pack("!BBH", 0x80 | opcode, flag | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, flag | 127, size)
    return head + mask + apply_mask(payload, mask) if mask else head + payload


def apply_mask(payload: bytes, mask: bytes) -> bytes:
    """XOR with the repeated mask, as one operation on long integers."""
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")


class FrameDecoder:
    """Bytes in, frames out. Refuses a frame above `max_bytes` from its header, before the payload arrives."""

    def __init__(self, max_bytes: int, *, expects_mask: bool = True) -> None:
        self._max_bytes, self._expects_mask = max_bytes, expects_mask
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        opcode, masked, size, at = first & 0x0F, bool(second & 0x80), second & 0x7F, 2
        self._check_head(first, opcode, masked=masked, size=size)
        if size >= 126:
            wide = 2 if size == 126 else 8
            if len(buffer) < 2 + wide:
                return None
            size, at = int.from_bytes(buffer[2 : 2 + wide], "big"), 2 + wide
        if size > self._max_bytes:
            raise WebSocketError(TOO_BIG, f"frame: too large (limit {self._max_bytes} bytes, found {size})")
        start = at + (4 if masked else 0)
        if len(buffer) < start + size:
            return None
        payload = bytes(buffer[start : start + size])
        if masked:
            payload = apply_mask(payload, bytes(buffer[at:start]))
        del buffer[: start + size]
        return Frame(opcode, payload, final=bool(first & 0x80))

    def _check_head(self, first: int, opcode: int, *, masked: bool, size: int) -> None:
        if first & 0x70:
            raise WebSocketError(PROTOCOL_ERROR, "frame: reserved bits are set")
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise WebSocketError(PROTOCOL_ERROR, f"frame: unknown opcode {opcode}")
        if opcode >= CLOSE and (size > 125 or not first & 0x80):
            raise WebSocketError(PROTOCOL_ERROR, "control frame: fragmented, or longer than 125 bytes")
        if masked is not self._expects_mask:
            raise WebSocketError(PROTOCOL_ERROR, "frame: a client must mask, and a server must not")


class WebSocket:
    """Messages on an upgraded connection. One task receives; several may send."""

    def __init__(self, stream: UpgradedStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._decoder = FrameDecoder(max_bytes)
        self._frames: Iterator[Frame] = iter(())
        self._parts: list[bytes] = []
        self._opcode = CONTINUATION
        self._closed = False

    async def receive(self) -> bytes | None:
        """The next message, text or binary; None when the peer closed. Raises WebSocketError and ConnectionError."""
        while True:
            frame = next(self._frames, None)
            if frame is None:
                data = await self._stream.read()
                if not data:
                    return None
                self._frames = self._decoder.feed(data)
            elif frame.opcode == PING:
                await self._stream.write(encode_frame(PONG, frame.payload))
            elif frame.opcode == CLOSE:
                await self.close(NORMAL_CLOSURE)
                return None
            elif frame.opcode != PONG and (message := self._joined(frame)) is not None:
                return message

    def _joined(self, frame: Frame) -> bytes | None:
        """The message that this frame completes."""
        if (frame.opcode == CONTINUATION) is (self._opcode == CONTINUATION):
            raise WebSocketError(PROTOCOL_ERROR, "frame: a fragment without its beginning, or a second beginning")
        if frame.opcode != CONTINUATION:
            self._opcode = frame.opcode
        self._parts.append(frame.payload)
        if sum(map(len, self._parts)) > self._max_bytes or len(self._parts) > self._max_bytes:
            raise WebSocketError(TOO_BIG, f"message: too large (limit {self._max_bytes} bytes)")
        if not frame.final:
            return None
        message, self._parts, self._opcode = b"".join(self._parts), [], CONTINUATION
        return message

    async def send(self, data: bytes) -> None:
        await self._stream.write(encode_frame(BINARY, data))

    async def ping(self) -> None:
        await self._stream.write(encode_frame(PING, b""))

    async def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        """Sends the close frame once. A peer that is gone needs none."""
        if self._closed:
            return
        self._closed = True
        text = reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore").encode()
        try:
            await self._stream.write(encode_frame(CLOSE, struct.pack("!H", code) + text))
        except ConnectionError:
            return


def is_websocket(request: Request) -> bool:
    return request.headers.get("upgrade", "").lower() == "websocket" and _asks_for_upgrade(request)


def is_spdy(request: Request) -> bool:
    return request.headers.get("upgrade", "").upper() == "SPDY/3.1" and _asks_for_upgrade(request)


def _asks_for_upgrade(request: Request) -> bool:
    tokens = [part.strip().lower() for part in request.headers.get("connection", "").split(",")]
    return "upgrade" in tokens and request.exchange is not None


def accept_headers(request: Request, subprotocol: str) -> list[tuple[bytes, bytes]]:
    """The headers of the 101. Raises BadRequest for a handshake that RFC 6455 does not allow."""
    key = request.headers.get("sec-websocket-key", "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        is_key = False
    if request.headers.get("sec-websocket-version") != "13" or not is_key or request.method != "GET":
        raise BadRequest("websocket: not a valid handshake (expected GET, version 13 and a key of 16 bytes)")
    accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())
    headers = [(b"sec-websocket-accept", accept)]
    return [*headers, (b"sec-websocket-protocol", subprotocol.encode())] if subprotocol else headers


def choose_subprotocol(request: Request, header: str, supported: Sequence[str]) -> str:
    """The first supported protocol that the client offers; the server's order decides."""
    offered = [part.strip() for line in request.all_headers(header) for part in line.split(",")]
    for name in supported:
        if name in offered:
            return name
    found = ", ".join(offered)[:200] or "none"
    raise BadRequest(f"{header}: no supported protocol (expected one of {', '.join(supported)}, found {found})")
