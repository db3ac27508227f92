"""The WebSocket and SPDY codecs: what one side encodes the other decodes, in any pieces; malformed input is refused."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.server import spdy
from holdfast.server.spdy import ControlFrame, DataFrame, SpdyDecoder, SpdyEncoder, SpdyError
from holdfast.server.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    Frame,
    FrameDecoder,
    WebSocket,
    WebSocketError,
    encode_frame,
)

MASK = b"\x01\x02\x03\x04"


def pieces(data: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    start = 0
    for cut in sorted(cut % (len(data) + 1) for cut in cuts):
        yield data[start:cut]
        start = cut
    yield data[start:]


@given(
    frames=st.lists(st.tuples(st.sampled_from((TEXT, BINARY)), st.binary(max_size=70_000)), max_size=4),
    mask=st.binary(min_size=4, max_size=4),
    cuts=st.lists(st.integers(0, 1_000_000), max_size=8),
)
def test_frames_in_any_pieces_are_decoded(frames: list[tuple[int, bytes]], mask: bytes, cuts: list[int]) -> None:
    data = b"".join(encode_frame(opcode, payload, mask=mask) for opcode, payload in frames)
    decoder = FrameDecoder(100_000)
    found = [frame for piece in pieces(data, cuts) for frame in decoder.feed(piece)]
    assert found == [Frame(opcode, payload) for opcode, payload in frames]


@given(data=st.binary(max_size=400))
def test_random_bytes_raise_only_the_websocket_error(data: bytes) -> None:
    with contextlib.suppress(WebSocketError):
        list(FrameDecoder(1000).feed(data))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode_frame(BINARY, b"x"), "must mask"),
        (b"\xf2\x80", "reserved bits"),
        (b"\x83\x80", "unknown opcode"),
        (b"\x09\x80", "control frame"),
        (b"\x89\xfe", "control frame"),
        (struct.pack("!BBQ", 0x82, 0xFF, 1 << 62), "too large"),
    ],
)
def test_forbidden_frame_is_refused_from_its_header(data: bytes, text: str) -> None:
    with pytest.raises(WebSocketError, match=text):
        list(FrameDecoder(1000).feed(data))


class Bytes:
    """A connection with given input; output is recorded."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks, self.written = list(chunks), b""

    async def read(self) -> bytes:
        return self.chunks.pop(0) if self.chunks else b""

    async def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None: ...


def fragment(opcode: int, payload: bytes, *, final: bool) -> bytes:
    whole = bytearray(encode_frame(opcode, payload, mask=MASK))
    if not final:
        whole[0] &= 0x7F
    return bytes(whole)


async def test_fragments_are_joined_and_pings_between_them_answered() -> None:
    stream = Bytes(
        fragment(BINARY, b"a", final=False)
        + encode_frame(PING, b"p", mask=MASK)
        + fragment(CONTINUATION, b"b", final=True)
    )
    assert await WebSocket(stream, 100).receive() == b"ab"
    assert stream.written == encode_frame(0xA, b"p")


@pytest.mark.parametrize(
    "data",
    [
        fragment(CONTINUATION, b"b", final=True),
        fragment(BINARY, b"a", final=False) + fragment(BINARY, b"b", final=True),
        fragment(BINARY, b"a" * 60, final=False) + fragment(CONTINUATION, b"b" * 60, final=True),
        b"".join(fragment(CONTINUATION if n else BINARY, b"", final=False) for n in range(200)),
    ],
)
async def test_fragments_out_of_order_or_too_many_are_refused(data: bytes) -> None:
    with pytest.raises(WebSocketError):
        await WebSocket(Bytes(data), 100).receive()


async def test_close_is_answered_once() -> None:
    stream = Bytes(encode_frame(CLOSE, b"\x03\xe8", mask=MASK))
    socket = WebSocket(stream, 100)
    assert await socket.receive() is None
    await socket.close()
    assert stream.written == encode_frame(CLOSE, b"\x03\xe8")


# SPDY ----------------------------------------------------------------------------------------------------------------

HEADERS = st.dictionaries(st.text("abcdefgh-", min_size=1, max_size=12), st.text("xyz0123 /", max_size=40), max_size=6)


def test_dictionary_is_that_of_the_draft() -> None:
    assert (len(spdy.DICTIONARY), zlib.adler32(spdy.DICTIONARY)) == (1423, 0xE3C6A7C2)


@given(
    blocks=st.lists(HEADERS, max_size=4),
    data=st.binary(max_size=5000),
    cuts=st.lists(st.integers(0, 10_000), max_size=8),
)
def test_spdy_frames_in_any_pieces_are_decoded(blocks: list[dict[str, str]], data: bytes, cuts: list[int]) -> None:
    encoder, decoder = SpdyEncoder(), SpdyDecoder()
    sent = b"".join(encoder.syn_stream(2 * n + 1, headers, fin=bool(n % 2)) for n, headers in enumerate(blocks))
    sent += encoder.data(1, data, fin=True) + encoder.rst_stream(3, 5) + encoder.ping(7)
    found = [frame for piece in pieces(sent, cuts) for frame in decoder.feed(piece)]
    opened: list[ControlFrame | DataFrame] = [
        ControlFrame(spdy.SYN_STREAM, 2 * n + 1, fin=bool(n % 2), headers=headers) for n, headers in enumerate(blocks)
    ]
    rest = [DataFrame(1, data, fin=True), ControlFrame(spdy.RST_STREAM, 3, value=5), ControlFrame(spdy.PING, value=7)]
    assert found == opened + rest


@given(data=st.binary(max_size=400))
def test_random_bytes_raise_only_the_spdy_error(data: bytes) -> None:
    for start in (b"", b"\x80\x03\x00\x01\x00\x00\x00\x20"):
        with contextlib.suppress(SpdyError):
            list(SpdyDecoder().feed(start + data))


def test_headers_that_inflate_without_bound_are_refused() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zdict=spdy.DICTIONARY)
    block = bomb.compress(bytes(10_000_000)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    body = struct.pack("!IIBB", 1, 0, 0, 0) + block
    frame = struct.pack("!HHI", 0x8003, spdy.SYN_STREAM, len(body)) + body
    assert len(frame) < spdy.SPDY_CONTROL_BYTES_MAX
    with pytest.raises(SpdyError, match="too large"):
        list(SpdyDecoder().feed(frame))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x80\x02\x00\x01\x00\x00\x00\x00", "version 2"),
        (b"\x80\x03\x00\x01\x00\xff\xff\xff", "too large"),
        (b"\x00\x00\x00\x01\x00\xff\xff\xff", "too large"),
        (b"\x80\x03\x00\x01\x00\x00\x00\x02ab", "too short"),
    ],
)
def test_forbidden_spdy_frame_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(SpdyError, match=text):
        list(SpdyDecoder().feed(data))
