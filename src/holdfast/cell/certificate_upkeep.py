"""Keeps a cell's certificates valid: renews them in time, and follows a rotation of the platform's CA.

The global cell has the CA's key and signs its own certificate. A region asks the global cell, with the link certificate
it has. Keys are made here and never leave the machine. While the global cell is away, the certificates in use stay, and
the rest of their lifetime is time to try again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog

from holdfast.client.http import HttpClient
from holdfast.foundation.ports import Ports
from holdfast.identity.cell_certificates import (
    CellCertificateAuthority,
    bundle_hashes,
    certificate_facts,
    issue_pem,
    issued_by,
)
from holdfast.identity.certificates import write_private, write_public
from holdfast.identity.node_certificates import make_csr, new_key
from holdfast.identity.server_records import ServerRecords
from holdfast.model.errors import Fault
from holdfast.model.join import CellRequests, TrustBundle
from holdfast.model.principal import SERVERS

# Interval at which a cell checks its certificates and, in a region, the CA certificates of the global cell.
CERTIFICATE_CHECK_EVERY_S = 10.0

_log = structlog.get_logger()


class GlobalCertificates:
    """Renews the certificates of a server of the global cell with the names they have: of the API that it serves, and
    for its calls to the other servers."""

    def __init__(
        self, authority: CellCertificateAuthority, server: Path, ports: Ports, *, peer: Path | None = None
    ) -> None:
        self._authority = authority
        self._server = server
        self._peer = peer
        self._ports = ports

    async def start(self) -> None:
        """Nothing to prepare."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def run(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._renew_if_due)
            except (OSError, ValueError, Fault) as error:
                _log.warning("server_certificate_renewal_failed", path=str(self._server), error=str(error))
            await self._ports.clock.sleep(CERTIFICATE_CHECK_EVERY_S)

    def _renew_if_due(self) -> None:
        held = certificate_facts(self._server.read_bytes())
        now_s = self._ports.clock.now()
        own, hosts = held.server, held.hosts
        if issue_pem(self._authority, self._server, "holdfast-cell-global", hosts=hosts, now_s=now_s, server=own):
            _log.info("server_certificate_renewed", path=str(self._server))
        if self._peer is None:
            return
        name = certificate_facts(self._peer.read_bytes()).server
        if issue_pem(self._authority, self._peer, "holdfast:server:global", (SERVERS,), now_s=now_s, server=name):
            _log.info("peer_certificate_renewed", path=str(self._peer))


class RegionCertificates:
    """Renews the certificates of a region's server, and copies from the global cell what it says about itself: the
    trusted CA certificates, its servers, and which servers of any cell are revoked. `known` is the file that keeps the
    URLs of the global cell's servers."""

    def __init__(
        self,
        client: HttpClient,
        trusted: Path,
        link: Path,
        server: Path,
        ports: Ports,
        *,
        peer: Path | None = None,
        records: ServerRecords | None = None,
        known: Path | None = None,
    ) -> None:
        self._peer = peer
        self._records = records
        self._known = known
        self._client = client
        self._trusted = trusted
        self._link = link
        self._server = server
        self._ports = ports

    async def start(self) -> None:
        """Nothing to prepare."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def run(self) -> None:
        while True:
            try:
                trust = await self._client.trust_bundle()
                await self._follow(trust)
                self._follow_servers(trust)
                if self._is_due(trust):
                    await self._renew()
            except (OSError, ValueError, msgspec.MsgspecError, Fault) as error:
                _log.warning("certificate_renewal_failed", error=str(error), link=str(self._link))
            await self._ports.clock.sleep(CERTIFICATE_CHECK_EVERY_S)

    async def _follow(self, trust: TrustBundle) -> None:
        found = trust.ca.encode()
        if not found or found == self._trusted.read_bytes():
            return
        bundle_hashes(found)  # raises if a certificate cannot be read; the file then stays
        write_public(self._trusted, found)
        await self._client.reload_certificate()
        _log.info("trusted_ca_changed", path=str(self._trusted))

    def _follow_servers(self, trust: TrustBundle) -> None:
        if self._records is not None and self._records.remember(trust.revoked):
            _log.info("revoked_servers_noted", servers=list(trust.revoked))
        if self._known is not None and trust.servers and set(trust.servers) != set(self._client.urls):
            write_public(self._known, ",".join(trust.servers).encode())
            self._client.use_servers(trust.servers)
            _log.info("global_servers_changed", servers=list(trust.servers))

    def _is_due(self, trust: TrustBundle) -> bool:
        now_s = self._ports.clock.now()
        for path in (self._link, self._server, *((self._peer,) if self._peer is not None else ())):
            held = path.read_bytes()
            if now_s >= certificate_facts(held).due_s():
                return True
            if trust.signer and not issued_by(trust.ca.encode(), trust.signer, held):
                return True
        return False

    async def _renew(self) -> None:
        link_key, server_key, peer_key = new_key(), new_key(), new_key()
        asked = CellRequests(
            link=make_csr(link_key, "link"),
            server=make_csr(server_key, "server"),
            peer=make_csr(peer_key, "peer") if self._peer is not None else "",
        )
        made = await self._client.renew_region_certificates(asked)
        if self._peer is not None and made.peer:
            write_private(self._peer, made.peer.encode() + peer_key)
        write_private(self._server, made.server.encode() + server_key)
        write_private(self._link, made.link.encode() + link_key)
        await self._client.reload_certificate()
        _log.info("cell_certificates_renewed", ends=made.expires_at)
