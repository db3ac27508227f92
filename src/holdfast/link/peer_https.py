"""Probes another region's `/livez` over HTTPS, without credentials. Its certificate must be of the platform's CA."""

from __future__ import annotations

import ssl

import aiohttp

from holdfast.link.peer_probes import PEER_PROBE_TIMEOUT_S


class HttpsProbe:
    """One session for all probes. Any HTTP response counts as reachable."""

    def __init__(self, ca: str) -> None:
        self._ca = ca
        self._tls: ssl.SSLContext | None = None
        self._session: aiohttp.ClientSession | None = None

    async def reachable(self, region: str, endpoint: str) -> bool:
        if self._session is None:
            self._tls = ssl.create_default_context(cafile=self._ca)
            timeout = aiohttp.ClientTimeout(total=PEER_PROBE_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.get(f"{endpoint.rstrip('/')}/livez", ssl=self._tls or True) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
        return True

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
