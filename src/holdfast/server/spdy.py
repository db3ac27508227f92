"""SPDY/3.1 frames, as far as Kubernetes clients use them: SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY and data.

kubectl before 1.31 upgrades exec and attach to it; kubectl port-forward still speaks it inside a WebSocket. Header
blocks of a connection share one zlib stream with the dictionary of SPDY/3, so every block is inflated in order, also
those of refused streams. Inflation is bounded: a small block can otherwise expand a thousand times.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

import msgspec

# Payload of a data frame. kubectl sends at most 32 KiB.
SPDY_DATA_BYTES_MAX = 1 << 17
# Payload of a control frame, and its headers after inflation. kubectl's have about 200 bytes.
SPDY_CONTROL_BYTES_MAX = 16 * 1024
SPDY_HEADER_BYTES_MAX = 32 * 1024
SPDY_HEADERS_MAX = 64

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FLAG_FIN = 1
REFUSED_STREAM, CANCEL = 3, 5
_VERSION = 3


class SpdyError(Exception):
    """The peer sent something that is not SPDY/3.1, or too much of it. The connection ends."""


class ControlFrame(msgspec.Struct, frozen=True):
    """`headers` of SYN_STREAM, SYN_REPLY and HEADERS; `value` is the status of RST_STREAM and the id of PING."""

    kind: int
    stream: int = 0
    fin: bool = False
    headers: dict[str, str] = {}
    value: int = 0


class DataFrame(msgspec.Struct, frozen=True):
    stream: int
    data: bytes
    fin: bool = False


def _dictionary() -> bytes:
    """The dictionary of the SPDY/3 draft: words with their length in four bytes, then plain text."""
    words = (  # noqa: SIM905 - as a list it would have sixty lines
        "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age "
        "allow authorization cache-control connection content-base content-encoding content-language content-length "
        "content-location content-md5 content-range content-type date etag expect expires from host if-match "
        "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
        "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
        "user-agent vary via warning www-authenticate method get status"
    ).split()
    listed = [*words, "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"]
    text = (
        "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 "
        "Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 "
        "Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May "
        "Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,"
        "image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age="
        "gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
    )
    return b"".join(struct.pack("!I", len(word)) + word.encode() for word in listed) + text.encode()


DICTIONARY = _dictionary()


class SpdyEncoder:
    """Frames out. One per connection, because header blocks share a compressor."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zdict=DICTIONARY)

    def _block(self, headers: Mapping[str, str]) -> bytes:
        parts = [struct.pack("!I", len(headers))]
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                parts += (struct.pack("!I", len(text)), text)
        return self._zlib.compress(b"".join(parts)) + self._zlib.flush(zlib.Z_SYNC_FLUSH)

    def syn_stream(self, stream: int, headers: Mapping[str, str], *, fin: bool = False) -> bytes:
        body = struct.pack("!IIBB", stream, 0, 0, 0) + self._block(headers)
        return _control(SYN_STREAM, body, FLAG_FIN if fin else 0)

    def syn_reply(self, stream: int, headers: Mapping[str, str] | None = None, *, fin: bool = False) -> bytes:
        return _control(SYN_REPLY, struct.pack("!I", stream) + self._block(headers or {}), FLAG_FIN if fin else 0)

    def rst_stream(self, stream: int, status: int = REFUSED_STREAM) -> bytes:
        return _control(RST_STREAM, struct.pack("!II", stream, status))

    def ping(self, number: int) -> bytes:
        return _control(PING, struct.pack("!I", number))

    def goaway(self, last_stream: int) -> bytes:
        return _control(GOAWAY, struct.pack("!II", last_stream, 0))

    def data(self, stream: int, data: bytes, *, fin: bool = False) -> bytes:
        return struct.pack("!II", stream, (FLAG_FIN << 24 if fin else 0) | len(data)) + data


def _control(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack("!HHI", 0x8000 | _VERSION, kind, flags << 24 | len(body)) + body


class SpdyDecoder:
    """Bytes in, frames out. Frames that Kubernetes clients do not use are checked for their size and left out."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS, zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[ControlFrame | DataFrame]:
        self._buffer += data
        while len(self._buffer) >= 8:
            head, size_and_flags = struct.unpack("!II", self._buffer[:8])
            flags, size = size_and_flags >> 24, size_and_flags & 0xFFFFFF
            is_control = bool(head & 0x80000000)
            limit = SPDY_CONTROL_BYTES_MAX if is_control else SPDY_DATA_BYTES_MAX
            if size > limit:
                raise SpdyError(f"frame: too large (limit {limit} bytes, found {size})")
            if is_control and head >> 16 & 0x7FFF != _VERSION:
                raise SpdyError(f"frame: version {head >> 16 & 0x7FFF} (expected {_VERSION})")
            if len(self._buffer) < 8 + size:
                return
            payload = bytes(self._buffer[8 : 8 + size])
            del self._buffer[: 8 + size]
            if not is_control:
                yield DataFrame(head, payload, fin=bool(flags & FLAG_FIN))
            elif (frame := self._control(head & 0xFFFF, flags, payload)) is not None:
                yield frame

    def _control(self, kind: int, flags: int, payload: bytes) -> ControlFrame | None:
        fixed = {SYN_STREAM: 10, SYN_REPLY: 4, HEADERS: 4, RST_STREAM: 8, PING: 4, GOAWAY: 4}.get(kind)
        if fixed is None:
            return None
        if len(payload) < fixed:
            raise SpdyError(f"control frame {kind}: too short (expected {fixed} bytes, found {len(payload)})")
        first = int.from_bytes(payload[:4], "big")
        if kind == PING:
            return ControlFrame(PING, value=first)
        stream = first & 0x7FFFFFFF
        if kind == RST_STREAM:
            return ControlFrame(kind, stream, value=int.from_bytes(payload[4:8], "big"))
        headers = self._headers(payload[fixed:]) if kind in (SYN_STREAM, SYN_REPLY, HEADERS) else {}
        return ControlFrame(kind, stream, fin=bool(flags & FLAG_FIN), headers=headers)

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            plain = self._zlib.decompress(block, SPDY_HEADER_BYTES_MAX)
        except zlib.error as error:
            raise SpdyError(f"headers: cannot be inflated ({error})") from error
        if self._zlib.unconsumed_tail:
            raise SpdyError(f"headers: too large (limit {SPDY_HEADER_BYTES_MAX} bytes)")
        return _parse_headers(plain)


def _parse_headers(plain: bytes) -> dict[str, str]:
    """Number of pairs, then each name and value with its length. Names are lower case, values may repeat after NUL."""
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if at + size > len(plain):
            raise SpdyError("headers: end before their announced length")
        at += size
        return plain[at - size : at]

    count = int.from_bytes(take(4), "big")
    if count > SPDY_HEADERS_MAX:
        raise SpdyError(f"headers: too many (limit {SPDY_HEADERS_MAX}, found {count})")
    found: dict[str, str] = {}
    for _ in range(count):
        name = take(int.from_bytes(take(4), "big")).decode("latin-1").lower()
        found[name] = take(int.from_bytes(take(4), "big")).decode("latin-1")
    return found
