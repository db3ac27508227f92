"""The certificate a region shows to the global cell: read again when its file changes, so that it can be replaced while
the region runs.

The metric says until when the one that is shown is good: whoever replaces it sees there that it was taken up, and only
then has the old one refused. A file that cannot be used (half written, or without its key) changes nothing.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from holdfast.client.http import HttpClient
from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.identity.node_certificates import validity_period
from holdfast.model import limits

log = structlog.get_logger()


class LinkCertificate:
    def __init__(self, client: HttpClient, path: Path, ports: Ports) -> None:
        self._client = client
        self._path = path
        self._ports = ports
        self._seen = b""

    async def start(self) -> None:
        self._seen = self._path.read_bytes()
        self._tell()

    async def stop(self) -> None:
        """Nothing is held."""

    async def run(self) -> None:
        while True:
            await self._ports.clock.sleep(limits.LINK_CERTIFICATE_CHECK_EVERY_S)
            try:
                found = self._path.read_bytes()
                if found == self._seen:
                    continue
                await self._client.reload_certificate()
            except (OSError, ssl.SSLError) as error:
                log.warning("link_certificate_unreadable", path=str(self._path), error=str(error))
                continue
            self._seen = found
            self._tell()
            log.info("link_certificate_changed", path=str(self._path))

    def _tell(self) -> None:
        metrics.LINK_CERTIFICATE_EXPIRY.set(validity_period(self._seen)[1])
