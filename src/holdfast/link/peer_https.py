"""Probes another region's `/livez` over HTTPS, without credentials. Its certificate must be of the platform's CA."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp

from holdfast.link.peer_probes import PEER_PROBE_TIMEOUT_S


class HttpsProbe:
    """One session for all probes. Any HTTP response counts as reachable."""

    def __init__(self, ca: str) -> None:
        self._ca = Path(ca)
        self._tls: ssl.SSLContext | None = None
        self._loaded = b""
        self._session: aiohttp.ClientSession | None = None

    async def reachable(self, region: str, endpoint: str) -> bool:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=PEER_PROBE_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.get(f"{endpoint.rstrip('/')}/livez", ssl=self._context()) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
        return True

    def _context(self) -> ssl.SSLContext:
        """Made anew when the CA file has changed, as during a rotation of the CA."""
        found = self._ca.read_bytes()
        if self._tls is None or found != self._loaded:
            self._tls, self._loaded = ssl.create_default_context(cadata=found.decode("ascii")), found
        return self._tls

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
