"""A WebSocket of this process as a client, with the messages of `model.pod_session`."""

from __future__ import annotations

import aiohttp

from holdfast.model.pod_session import SESSION_MESSAGE_BYTES_MAX

SESSION_PROTOCOL = "session.holdfast.dev"


class SessionSocket:
    """One task receives; several may send. A full connection delays the sender."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        self._websocket = websocket

    async def receive(self) -> tuple[int, bytes] | None:
        """The next message; None when the peer has closed or is gone."""
        while True:
            message = await self._websocket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                return None
            if message.data:
                return message.data[0], message.data[1:]

    async def send(self, channel: int, data: bytes) -> None:
        """Raises ConnectionError if the peer is gone."""
        for start in range(0, max(1, len(data)), SESSION_MESSAGE_BYTES_MAX):
            try:
                await self._websocket.send_bytes(bytes((channel,)) + data[start : start + SESSION_MESSAGE_BYTES_MAX])
            except (aiohttp.ClientError, RuntimeError, OSError) as error:
                raise ConnectionResetError(f"the session's connection was lost ({error})") from error
