"""Responses that stay open: watches, logs and calls as streams, and sessions that left HTTP.

A stream ends when its client disconnects or stops reading, when its credential or role no longer permits it, or when
the server drains.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from holdfast.foundation import metrics
from holdfast.model.errors import Fault, Forbidden, Unauthorized
from holdfast.server.request import Request, Send, StreamResponse, UpgradeResponse
from holdfast.server.response_sending import send_stream

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Interval at which open streams are checked for revoked credentials. A stream with one is closed.
STREAM_CREDENTIALS_CHECK_EVERY_S = 5.0

_log = structlog.get_logger()


class OpenStreams:
    def __init__(self, app: Application) -> None:
        self._app = app
        self._open: dict[asyncio.Task[None], Request] = {}
        self._checker: asyncio.Task[None] | None = None

    def end_all(self) -> None:
        """Ends every stream cleanly. Clients resume watches at another server."""
        if self._checker is not None:
            self._checker.cancel()
        for task in list(self._open):
            task.cancel()

    async def send(self, request: Request, response: StreamResponse, send: Send) -> None:
        """Sends until the stream ends, the client disconnects, or the server drains. A client that stops reading is
        disconnected.
        """
        who = request.principal
        sender = asyncio.ensure_future(send_stream(response, send))
        gone = asyncio.ensure_future(request.disconnected())
        self._open[gone] = request
        if self._checker is None:
            self._checker = asyncio.ensure_future(self._check())
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
            client_left = gone.done() and not gone.cancelled()
            if not sender.done():
                sender.cancel()
                await asyncio.wait({sender})
                if not client_left:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif not sender.cancelled() and sender.exception() is not None:
                request.abort()
                if not isinstance(sender.exception(), TimeoutError):
                    metrics.SERVER_FAILURES.inc()
                    _log.error("stream_failed", path=request.path[:200], exc_info=sender.exception())
        finally:
            self._open.pop(gone, None)
            gone.cancel()
            sender.cancel()
            self._app.flow.close_watch(who)

    async def upgrade(self, request: Request, response: UpgradeResponse) -> None:
        """Serves a connection that leaves HTTP, until its session ends, its credential does, or the server drains."""
        assert request.exchange is not None  # `is_websocket` and `is_spdy` are false without one
        stream = request.exchange.upgrade(response.protocol, response.headers)
        serving = asyncio.ensure_future(response.serve(stream))
        self._open[serving] = request
        request.still_allowed = response.still_allowed
        if self._checker is None:
            self._checker = asyncio.ensure_future(self._check())
        try:
            await asyncio.wait({serving})
            if not serving.cancelled() and serving.exception() is not None:
                metrics.SERVER_FAILURES.inc()
                _log.error("session_failed", path=request.path[:200], exc_info=serving.exception())
        finally:
            serving.cancel()
            self._open.pop(serving, None)
            stream.close()
            self._app.flow.close_watch(request.principal)

    async def _check(self) -> None:
        """Ends streams whose credential was revoked or expired; a watch could otherwise outlive it by days."""
        try:
            while self._open and not self._app.draining:
                await self._app.ports.clock.sleep(STREAM_CREDENTIALS_CHECK_EVERY_S)
                for task, request in list(self._open.items()):
                    try:
                        self._recheck(request)
                    except Unauthorized as refusal:
                        self._app.audit_rejected_certificate(refusal, request)
                        task.cancel()
                    except Fault:
                        task.cancel()
        finally:
            self._checker = None

    def _recheck(self, request: Request) -> None:
        """Raises if a request like the one that opened the stream would be refused now, or would see something else."""
        app = self._app
        if request.session_is_live is not None:
            if not request.session_is_live():
                raise Unauthorized("Unauthorized")
        elif request.peer_certificate:
            app.authenticator.from_certificate(request.peer_certificate)
        else:
            app.authenticator.from_bearer(request.headers.get("authorization", ""))
        now = app.access.expand(request.caller)
        if now.groups != request.principal.groups or not request.still_allowed(now):
            raise Forbidden("the caller's roles changed")
        if request.target.resource is not None:
            request.principal = now
            refused = app.resource_access_refusal(request)
            if refused is not None:
                raise app.forbidden(request, refused)
