"""Relays one session between a client and an agent, with limits on idle time and duration, and its audit records.

Each direction holds one message at a time. The session ends with the command, the client, the agent, its limits, the
client's credential or role, or this server; the client is told which.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.foundation.tasks import cancel_quietly
from holdfast.model.pod_session import Channel, outcome_of_failure
from holdfast.server.agent_sessions import AgentLink
from holdfast.server.request import Request
from holdfast.server.spdy import SpdyError
from holdfast.server.websocket import WebSocketError

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Time without a byte in either direction. After that, the session is ended.
SESSION_IDLE_S = 3600.0
# Longest session. After that, it is ended.
SESSION_DURATION_MAX_S = 12 * 3600.0
# Interval of pings, which find dead connections and keep proxies from closing quiet ones.
SESSION_PING_EVERY_S = 20.0
# Time for a client to take the message that says why its session ended.
SESSION_FAREWELL_S = 2.0

COMMAND_ENDED = "it ended"


class ClientLink(Protocol):
    """The client's side of one session, whatever protocol it speaks."""

    async def receive(self) -> tuple[int, bytes] | None:
        """The next message; None when the client is gone. Raises WebSocketError, SpdyError, ConnectionError."""

    async def send(self, channel: int, data: bytes) -> None: ...

    async def ping(self) -> None: ...

    async def finish(self, outcome: bytes) -> None:
        """Sends the outcome and closes."""


class SessionMeter:
    """What a session has carried, for its audit record and the idle limit."""

    def __init__(self, now_s: float) -> None:
        self.began_s = self.active_s = now_s
        self.bytes_in = self.bytes_out = 0


class Relay:
    def __init__(self, app: Application, client: ClientLink, agent: AgentLink, meter: SessionMeter) -> None:
        self._app, self._client, self._agent, self.meter = app, client, agent, meter
        self._clock = app.ports.clock
        self._outcome_received = False

    async def run(self) -> str:
        """Returns why the session ended. If cancelled, tells the client and returns too."""
        pumps = (asyncio.ensure_future(self._to_agent()), asyncio.ensure_future(self._to_client()))
        pings: asyncio.Future[Any] | None = None
        try:
            while True:
                done, _ = await asyncio.wait(pumps, timeout=SESSION_PING_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    why = next(iter(done)).result()
                    # A client that has its outcome disconnects, often before `finish` returns.
                    return COMMAND_ENDED if self._outcome_received else why
                why = self._limit_reached()
                if why:
                    return await self._end(why)
                if pings is None or pings.done():  # a ping to a slow reader waits until the reader goes on
                    pings = asyncio.gather(self._client.ping(), self._agent.ping(), return_exceptions=True)
        except asyncio.CancelledError:
            return await self._end(
                "the API server stops; next: run the command again"
                if self._app.draining
                else "your credential or role no longer permits it"
            )
        finally:
            if pings is not None:
                pings.cancel()
            await cancel_quietly(*pumps)

    def _limit_reached(self) -> str:
        now = self._clock.monotonic()
        if now - self.meter.active_s >= SESSION_IDLE_S:
            return f"idle for {SESSION_IDLE_S:g} s"
        if now - self.meter.began_s >= SESSION_DURATION_MAX_S:
            return f"longest duration reached ({SESSION_DURATION_MAX_S:g} s)"
        return ""

    async def _end(self, why: str) -> str:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(SESSION_FAREWELL_S):
                await self._client.finish(outcome_of_failure(f"the session was ended: {why}", "Gone", 410))
        return why

    async def _to_agent(self) -> str:
        try:
            while (message := await self._client.receive()) is not None:
                channel, data = message
                if channel in (Channel.STDIN, Channel.RESIZE, Channel.CLOSE):
                    await self._agent.send(channel, data)
                    self.meter.bytes_in += len(data)
                    self.meter.active_s = self._clock.monotonic()
        except (WebSocketError, SpdyError) as error:
            return await self._end(f"malformed input ({error})")
        except ConnectionError:
            await asyncio.sleep(SESSION_FAREWELL_S)  # if the agent's side broke, its last messages are still to be sent
        return "the client disconnected"

    async def _to_client(self) -> str:
        try:
            while (message := await self._agent.receive()) is not None:
                channel, data = message
                if channel == Channel.ERROR:
                    self._outcome_received = True
                    await self._client.finish(data)
                    return COMMAND_ENDED
                await self._client.send(channel, data)
                self.meter.bytes_out += len(data)
                self.meter.active_s = self._clock.monotonic()
        except ConnectionError:
            return "the client disconnected"
        return await self._end("the agent's connection was lost; next: run the command again")


async def audit_open(app: Application, request: Request, what: str) -> None:
    """Records the session durably before it opens. If that fails, it does not open."""
    verb, resource = request.target.subresource, f"pods/{request.target.subresource}"
    app.gate.audit.record_use(request.principal, verb, resource, message=what, request=request.id)
    await app.gate.audit.flush()


def audit_end(app: Application, request: Request, what: str, meter: SessionMeter, why: str) -> None:
    verb, resource = request.target.subresource, f"pods/{request.target.subresource}"
    took_s = app.ports.clock.monotonic() - meter.began_s
    amounts = f"{took_s:.1f} s, {meter.bytes_in} bytes in, {meter.bytes_out} bytes out"
    app.gate.audit.record_use(
        request.principal, verb, resource, message=f"ended ({why}; {amounts}): {what}", request=request.id
    )
