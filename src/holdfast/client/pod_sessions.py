"""Sessions with pods for commands: the same WebSocket that kubectl opens at a region's API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote, urlencode

import aiohttp

from holdfast.client.session_socket import SessionSocket
from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.pod_session import SESSION_MESSAGE_BYTES_MAX


@asynccontextmanager
async def open_pod_session(
    api: CellApi, tenant: str, pod: str, subresource: str, query: Sequence[tuple[str, str]]
) -> AsyncGenerator[SessionSocket]:
    """Raises CommandError with the server's reason if it refuses."""
    path = f"/api/v1/namespaces/{quote(tenant)}/pods/{quote(pod)}/{subresource}?{urlencode(query)}"
    context, headers = api.streaming_access()
    protocols = ("v4.channel.k8s.io",) if subresource == "portforward" else ("v5.channel.k8s.io",)
    async with aiohttp.ClientSession(headers=headers) as http:
        try:
            opened = await http.ws_connect(
                api.url + path,
                ssl=context if api.url.startswith("https:") else True,
                protocols=protocols,
                max_msg_size=2 * SESSION_MESSAGE_BYTES_MAX,
                timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
            )
        except aiohttp.WSServerHandshakeError as refused:
            api.request("GET", path)  # the handshake hides the reason; the same request without it does not
            raise CommandError(f"{tenant}/{pod}: the session was refused ({refused.status})") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CommandError(f"{api.name}: no connection ({error})", code=ExitCode.UNREACHABLE) from None
        try:
            yield SessionSocket(opened)
        finally:
            await opened.close()
