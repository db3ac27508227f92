"""Client certificate of a region for the global cell. It is reloaded when its file changes, without a restart.

A metric exports the expiry of the loaded certificate, so that an operator can verify the change before revoking the old
certificate. An unusable file (incomplete, or without its key) changes nothing.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from holdfast.client.http import HttpClient
from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.identity.node_certificates import validity_period

# Interval at which a region checks whether its client certificate for the global cell was replaced.
LINK_CERTIFICATE_CHECK_EVERY_S = 2.0

log = structlog.get_logger()


class LinkCertificate:
    def __init__(self, client: HttpClient, path: Path, ports: Ports) -> None:
        self._client = client
        self._path = path
        self._ports = ports
        self._loaded = b""

    async def start(self) -> None:
        self._loaded = self._path.read_bytes()
        self._export_expiry()

    async def stop(self) -> None:
        """Nothing to release."""

    async def run(self) -> None:
        while True:
            await self._ports.clock.sleep(LINK_CERTIFICATE_CHECK_EVERY_S)
            try:
                found = self._path.read_bytes()
                if found == self._loaded:
                    continue
                await self._client.reload_certificate()
            except (OSError, ssl.SSLError) as error:
                log.warning("link_certificate_unreadable", path=str(self._path), error=str(error))
                continue
            self._loaded = found
            self._export_expiry()
            log.info("link_certificate_changed", path=str(self._path))

    def _export_expiry(self) -> None:
        metrics.LINK_CERTIFICATE_EXPIRY.set(validity_period(self._loaded)[1])
