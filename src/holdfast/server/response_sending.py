"""Sends complete and streamed responses over ASGI, with Warning headers. A client that stops reading is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from holdfast.foundation import metrics
from holdfast.server.request import Receive, Request, Response, Send, StreamResponse

# Time a client may take to accept one chunk of a stream. After that, the stream is closed; the client reconnects.
SEND_STALL_TIMEOUT_S = 30.0
# Warning headers of one response. The rest is dropped.
MAX_WARNINGS = 20
# Length of one warning. The rest is cut off.
MAX_WARNING_CHARS = 500


async def send_response(request: Request | None, response: Response, send: Send) -> None:
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", b"%d" % len(response.body)),
        *response.headers,
    ]
    if request is not None:
        if request.warnings:
            headers += _warnings(request)
        headers.append((b"audit-id", request.id.encode()))
        unread = request.has_unread_body  # the rest of the body stays unread, so the connection must close
        if request.exchange is not None:
            await request.exchange.respond(response.code, headers, response.body, last=unread)
            return
        if unread:
            headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": response.code, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def send_stream(response: StreamResponse, send: Send) -> None:
    headers = [(b"content-type", response.content_type.encode()), (b"cache-control", b"no-cache"), *response.headers]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    chunks: AsyncIterator[bytes] = response.chunks
    try:
        async for chunk in chunks:
            async with asyncio.timeout(SEND_STALL_TIMEOUT_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except TimeoutError:
        metrics.SERVER_STALLED.inc()
        raise
    finally:
        closing = getattr(chunks, "aclose", None)
        if closing is not None:
            await closing()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _warnings(request: Request) -> list[tuple[bytes, bytes]]:
    made = []
    for text in list(dict.fromkeys(request.warnings))[:MAX_WARNINGS]:
        clean = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
        quoted = clean[:MAX_WARNING_CHARS].replace("\\", "\\\\").replace('"', '\\"')
        made.append((b"warning", f'299 - "{quoted}"'.encode("ascii", "replace")))
    return made


async def answer_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
