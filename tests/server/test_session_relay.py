"""Why a relayed session ended, when its two sides end at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from holdfast.model.pod_session import Channel
from holdfast.server.agent_sessions import AgentLink
from holdfast.server.session_relay import COMMAND_ENDED, Relay, SessionMeter
from holdfast.server.websocket import BINARY, WebSocket, encode_frame

from .conftest import World


class ScriptedStream:
    """The connection of an agent that sends these bytes and then stays open."""

    def __init__(self, *sent: bytes) -> None:
        self._sent: Iterator[bytes] = iter(sent)

    async def read(self) -> bytes:
        for data in self._sent:
            return data
        await asyncio.Event().wait()
        raise AssertionError

    async def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class EagerClient:
    """Closes its connection as soon as it has the outcome, before the server's `finish` returns."""

    def __init__(self) -> None:
        self._has_outcome = asyncio.Event()

    async def receive(self) -> tuple[int, bytes] | None:
        await self._has_outcome.wait()
        return None

    async def send(self, channel: int, data: bytes) -> None:
        pass

    async def ping(self) -> None:
        pass

    async def finish(self, outcome: bytes) -> None:
        self._has_outcome.set()
        await asyncio.sleep(60)


async def test_relay_whose_client_leaves_with_the_outcome_says_that_the_command_ended(region: World) -> None:
    outcome = encode_frame(BINARY, bytes((Channel.ERROR,)) + b"{}", mask=b"\x01\x02\x03\x04")
    agent = AgentLink(WebSocket(ScriptedStream(outcome), 1000))
    assert await Relay(region.app, EagerClient(), agent, SessionMeter(0.0)).run() == COMMAND_ENDED
